"""docs/support.md and docs/deprecation.md: their versions and formats are those of the code."""

import importlib
import re
import tomllib
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
# Rows of the table of formats, and where the code has their versions.
FORMATS = {
    "token shards (`index.json`)": "fastbert.data.shards.VERSION",
    "a run's `config.json`": "fastbert.training.run_files.FORMAT_VERSION",
    "training checkpoints (`manifest.json`, `state.json`)": "fastbert.training.checkpoint.FORMAT_VERSION",
    "dropout's random numbers, recorded in checkpoints": "fastbert.ops.dropout.arguments.DRAWS_FORMAT",
    "manifests of model folders (`fastbert_manifest.json`)": "fastbert.checkpoints.manifest.VERSION",
    "fine-tuned models (`fastbert_task.json`)": "fastbert.tasks.finetuned_model.FORMAT_VERSION",
    "results of fine-tuning (`results.json`)": "fastbert.finetuning.results.FORMAT_VERSION",
    "deltas": "fastbert.checkpoints.delta.files.VERSION",
    "search indexes": "fastbert.search.format.VERSION",
    "bulk embeddings with Ray": "fastbert.integrations.ray.shard_records.VERSION",
    "tuning tables of GPU kernels": "fastbert.kernels.tuning.tables.FORMAT",
    "tuning tables of CPU matmuls": "fastbert.ops.native.matmul_table.FORMAT",
    "benchmark records": "fastbert.benchmarks.harness.records.SCHEMA_VERSION",
}


def document(name: str) -> str:
    file = ROOT / "docs" / name
    if not file.exists():
        pytest.skip("needs the documentation")
    return file.read_text(encoding="utf-8")


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows of the table with this heading."""
    table = text[text.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def test_formats_have_the_versions_of_the_policy() -> None:
    listed = {cells[0]: cells[1] for cells in rows(document("deprecation.md"), "| files | version |")}
    assert list(listed) == list(FORMATS)
    for name, place in FORMATS.items():
        module, _, constant = place.rpartition(".")
        assert listed[name] == str(getattr(importlib.import_module(module), constant)), name


def test_packages_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [item for items in project["optional-dependencies"].values() for item in items]
    asked = {item.name: item.specifier for item in map(Requirement, [*project["dependencies"], *extras])}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    table = rows(document("support.md"), "| package | accepted | tested |")
    assert len(table) >= 10
    for name, accepted, tested in table:
        least, limit = re.fullmatch(r"([\d.]+) and newer(?:, below (\d+))?", accepted).groups()  # type: ignore[union-attr]
        assert asked[name] == SpecifierSet(f">={least}" + (f",<{limit}" if limit else "")), name
        assert tested.split(";")[0] == pinned[name], name


def test_pythons_are_those_of_the_project() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = re.findall(r"Python :: (3\.\d+)\b", "\n".join(classifiers))
    tested = [version for version in named if version != "3.14"]
    assert f"| Python {', '.join(tested)} | tested" in document("support.md")
    workflow = ROOT / ".github/workflows/tests.yml"
    if workflow.exists():
        versions = re.search(r"python: \[(.*)\]", workflow.read_text())
        assert versions
        assert [version.strip('" ') for version in versions[1].split(",")] == tested


def test_fastbert_itself_uses_nothing_deprecated() -> None:
    """A deprecated name warns its caller; in a module of ours, the suite makes an error of it."""
    warn = "fastbert.old is deprecated and goes in 0.3: use fastbert.new"
    with pytest.raises(FutureWarning, match=re.escape(warn)):
        warnings.warn_explicit(warn, FutureWarning, "loop.py", 1, module="fastbert.training.loop")
    with pytest.warns(FutureWarning, match=re.escape(warn)):
        warnings.warn_explicit(warn, FutureWarning, "mine.py", 1, module="mine")
