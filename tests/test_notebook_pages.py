"""The tour and the notebooks for practitioners: their cells run, and their pages show them."""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch

DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDERS = (DOCS / "tour", DOCS / "notebooks")
NOTEBOOKS = {folder.name: sorted(folder.glob("*.ipynb")) for folder in FOLDERS}
MODULES = {"tour": ("everyday", "tour"), "notebooks": ("hotels", "guests", "small")}  # in the order of their imports
ABSOLUTE = re.compile(r"""(?<![\w.:/])/(?:home|root|tmp|usr|var|work|mnt|opt|Users)\b|[A-Za-z]:\\\\""")


def module(file: Path) -> ModuleType:
    """Import a module beside the notebooks under its own name, as they do."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def pages() -> Iterator[ModuleType]:
    """docs/notebook_pages.py; it and the modules of the notebooks are forgotten after the test."""
    yield module(DOCS / "notebook_pages.py")
    for name in ("notebook_pages", *MODULES["tour"], *MODULES["notebooks"]):
        sys.modules.pop(name, None)


def test_every_notebook_is_valid_and_explains_its_code() -> None:
    """nbformat 4.5: cells with an id of their own, an explanation before each code cell, no outputs, no paths of the
    author's machine."""
    assert [notebook.name[:2] for notebook in NOTEBOOKS["tour"]] == ["01", "02", "03", "04", "05", "06"]
    assert [notebook.name[:2] for notebook in NOTEBOOKS["notebooks"]] == [f"0{number}" for number in range(1, 9)]
    for notebook in chain.from_iterable(NOTEBOOKS.values()):
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
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_cell_runs(pages: ModuleType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All notebooks of a folder at a small scale, on models in one cache, as a reader runs them."""
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("transformers")
    matplotlib.use("Agg")
    torch.set_num_threads(1)  # several threads are slower for so small models
    monkeypatch.setenv("FASTBERT_TOUR_SCALE", "0.01")
    monkeypatch.syspath_prepend(str(folder))
    with matplotlib.rc_context():
        shared = [module(folder / f"{name}.py") for name in MODULES[folder.name]][-1]
        matplotlib.rcParams["figure.constrained_layout.use"] = False  # takes longer than the figures
        monkeypatch.setattr(shared, "CACHE", tmp_path / "cache")
        monkeypatch.setattr(shared, "VOCABULARY", 512)
        shape = replace(shared.SHAPE, vocab_size=512, hidden_size=48, intermediate_size=96)
        monkeypatch.setattr(shared, "SHAPE", shape)
        for notebook in NOTEBOOKS[folder.name]:
            results = list(pages.run(pages.read_cells(notebook), notebook.name, pictures=False))
            captions = [caption for _, output in results if output for _, caption in output.pictures]
            assert captions, f"{notebook.name} draws nothing"
            assert all(captions), f"{notebook.name}: a figure without a caption"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_pages_show_the_notebooks(pages: ModuleType, folder: Path) -> None:
    assert {file.stem for file in folder.glob("[0-9]*.md")} == {file.stem for file in NOTEBOOKS[folder.name]}
    shown = set()
    for notebook in NOTEBOOKS[folder.name]:
        page = notebook.with_suffix(".md").read_text(encoding="utf-8")
        assert pages.drift(notebook, page) is None, f"{notebook.name}: run docs/notebook_pages.py {folder.name}"
        shown |= set(re.findall(rf"\]\(\.\./images/{folder.name}/([^)]+)\)", page))
    images = list(pages.images(folder).iterdir())
    assert shown == {file.name for file in images}
    for file in images:
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG\r\n")
        assert len(data) <= pages.MAX_IMAGE_BYTES, f"{file.name} has {len(data):,} bytes"


def test_drift_of_a_page_is_found(pages: ModuleType) -> None:
    """A changed cell, a missing one, and text that is nobody's output."""
    notebook = NOTEBOOKS["tour"][1]
    page = notebook.with_suffix(".md").read_text(encoding="utf-8")
    cells = [cell for cell in pages.read_cells(notebook) if cell.kind == "code"]
    assert pages.drift(notebook, page.replace(cells[2].source, cells[2].source + "\nprint(1)")) is not None
    assert pages.drift(notebook, page.replace(pages.block_of(cells[2]), "")) is not None
    assert "between" in pages.drift(notebook, page.replace("## Ask the model", "A stray line.\n\n## Ask the model"))
    assert pages.drift(notebook, page + "A stray line.\n") is not None
