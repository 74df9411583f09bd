"""The tour in notebooks: its cells run, and its pages show them."""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
TOUR = ROOT / "docs" / "tour"
IMAGES = ROOT / "docs" / "images" / "tour"
NOTEBOOKS = sorted(TOUR.glob("*.ipynb"))
ABSOLUTE = re.compile(r"""(?<![\w.:/])/(?:home|root|tmp|usr|var|work|mnt|opt|Users)\b|[A-Za-z]:\\\\""")


def module(name: str) -> ModuleType:
    """Import a module of the tour under its own name, as its notebooks do."""
    spec = importlib.util.spec_from_file_location(name, TOUR / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """docs/tour/build.py; the modules of the tour are forgotten after the test."""
    monkeypatch.syspath_prepend(str(TOUR))
    yield module("build")
    for name in ("build", "everyday", "tour"):
        sys.modules.pop(name, None)


def test_every_notebook_is_valid_and_explains_its_code() -> None:
    """nbformat 4.5: cells with an id of their own, an explanation before each code cell, no outputs, no paths of the
    author's machine."""
    assert [notebook.name[:2] for notebook in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06"]
    for notebook in NOTEBOOKS:
        text = notebook.read_text(encoding="utf-8")
        assert not ABSOLUTE.search(text), f"{notebook.name}: {ABSOLUTE.search(text)}"
        values = json.loads(text)
        assert (values["nbformat"], values["nbformat_minor"]) == (4, 5), notebook.name
        assert values["metadata"]["language_info"] == {"name": "python"}, notebook.name
        cells = values["cells"]
        assert len({cell["id"] for cell in cells}) == len(cells), notebook.name
        assert all(re.fullmatch(r"[\w-]{1,64}", cell["id"]) for cell in cells), notebook.name
        for cell in cells:
            keys = {"cell_type", "id", "metadata", "source"}
            assert set(cell) == keys | ({"execution_count", "outputs"} if cell["cell_type"] == "code" else set())
            assert all(isinstance(line, str) for line in cell["source"]), notebook.name
            assert not cell.get("outputs"), f"{notebook.name}: clear the outputs of {cell['id']}"
            assert cell.get("execution_count") is None, f"{notebook.name}: clear the outputs of {cell['id']}"
        kinds = [cell["cell_type"] for cell in cells]
        assert kinds[0] == "markdown"
        assert ("code", "code") not in pairwise(kinds), f"{notebook.name}: code without an explanation before it"
        assert 5 <= kinds.count("code") <= 10, notebook.name


@pytest.mark.usefixtures("threads")
def test_every_cell_runs(build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All notebooks at a small scale, on models in one cache, as a reader runs them."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    torch.set_num_threads(1)  # several threads are slower for so small models
    monkeypatch.setenv("FASTBERT_TOUR_SCALE", "0.01")
    with matplotlib.rc_context():
        tour = module("tour")
        matplotlib.rcParams["figure.constrained_layout.use"] = False  # takes longer than the figures
        monkeypatch.setattr(tour, "CACHE", tmp_path / "cache")
        monkeypatch.setattr(tour, "VOCABULARY", 512)
        shape = replace(tour.SHAPE, vocab_size=512, hidden_size=48, intermediate_size=96)
        monkeypatch.setattr(tour, "SHAPE", shape)
        for notebook in NOTEBOOKS:
            results = list(build.run(build.read_cells(notebook), notebook.name, pictures=False))
            captions = [caption for _, output in results if output for _, caption in output.pictures]
            assert captions, f"{notebook.name} draws nothing"
            assert all(captions), f"{notebook.name}: a figure without a caption"


def test_the_pages_show_the_notebooks(build: ModuleType) -> None:
    pages = {file.stem for file in TOUR.glob("[0-9]*.md")}
    assert pages == {notebook.stem for notebook in NOTEBOOKS}
    shown = set()
    for notebook in NOTEBOOKS:
        page = notebook.with_suffix(".md").read_text(encoding="utf-8")
        assert build.drift(notebook, page) is None, f"{notebook.name}: run docs/tour/build.py"
        shown |= set(re.findall(r"\]\(\.\./images/tour/([^)]+)\)", page))
    assert shown == {file.name for file in IMAGES.iterdir()}
    for file in IMAGES.iterdir():
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG\r\n")
        assert len(data) <= build.MAX_IMAGE_BYTES, f"{file.name} has {len(data):,} bytes"


def test_drift_of_a_page_is_found(build: ModuleType) -> None:
    """A changed cell, a missing one, and text that is nobody's output."""
    notebook = NOTEBOOKS[1]
    page = notebook.with_suffix(".md").read_text(encoding="utf-8")
    cells = [cell for cell in build.read_cells(notebook) if cell.kind == "code"]
    assert build.drift(notebook, page.replace(cells[2].source, cells[2].source + "\nprint(1)")) is not None
    assert build.drift(notebook, page.replace(build.block_of(cells[2]), "")) is not None
    assert "between" in build.drift(notebook, page.replace("## Ask the model", "A stray line.\n\n## Ask the model"))
    assert build.drift(notebook, page + "A stray line.\n") is not None
