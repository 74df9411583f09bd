"""The records of measurements: their schema, their names, and the paths of them that documents name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from sweeps import sweep

from fastbert.benchmarks.harness import records

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# The resources of compiled kernels have a schema of their own: tests/fastbert_kernels/test_kernel_resources.py.
RECORDS = sorted({*RESULTS.rglob("*.json")} - {RESULTS / "kernel_resources.json"})
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def example(**changes: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "benchmark": "encoder",
        "machine": {"cpu": "a processor", "features": ["avx2", "avx512f", "fma"]},
        "versions": {"python": "3.11.7"},
        "commit": "0123456789ab",
        "rows": [{"workload": "full-128", "median_ms": 1.0}],
        **changes,
    }


def test_there_are_records() -> None:
    assert len(RECORDS) > 20
    assert {path.parent.parent for path in RECORDS} == {RESULTS}, "<benchmark>/<machine class>.json"


@sweep("path", RECORDS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_record_passes_the_schema(path: Path) -> None:
    assert records.problems(json.loads(path.read_text()), path.parent.name, path.stem) == []


@sweep("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_records_that_exist(document: Path) -> None:
    text = document.read_text()
    named = re.findall(r"benchmarks/results/[\w./-]+\.json\b", text)
    # The README of the records and the guide show a command that writes one.
    written = re.findall(r"--json (benchmarks/results/[\w./-]+\.json)", text)
    assert [name for name in named if name not in written and not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({}, None, id="right"),
        pytest.param({"schema": 2}, "schema 2 must be 1", id="schema"),
        pytest.param({"benchmark": "embed"}, "benchmark embed must be encoder, the folder's name", id="benchmark"),
        pytest.param({"machine": {"features": ["avx2"]}}, "machine is of class avx2, not avx512", id="class"),
        pytest.param({"commit": None}, "a record without commit or versions needs a note", id="commit"),
        pytest.param({"commit": None, "note": "measured elsewhere"}, None, id="commit-with-note"),
        pytest.param({"rows": []}, "rows must be a list with at least one row", id="no-rows"),
        pytest.param({"rows": [{"median_ms": 1.0}]}, "every row must be an object with a workload", id="no-workload"),
        pytest.param({"extra": 1}, "unknown fields extra", id="unknown"),
    ],
)
def test_problems(changes: dict[str, Any], message: str | None) -> None:
    result = records.problems(example(**changes), "encoder", "avx512")
    assert [line for line in result if not line.startswith(message or "\0")] == []
    assert bool(result) == (message is not None)


def test_a_list_is_no_record() -> None:
    assert records.problems([], "encoder", "avx512")[0].startswith("must be an object with schema, benchmark")


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (None, "any"),
        ({"features": ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile"]}, "amx"),
        ({"features": ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_vp2intersect", "amx_tile"]}, "amx"),
        ({"features": ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_vp2intersect"]}, "zen5"),
        ({"features": ["avx2", "avx512f", "avx512_vnni", "avx512_bf16"]}, "avx512-bf16"),
        ({"features": ["avx2", "avx512f", "avx512_vnni", "avx512_vp2intersect"]}, "avx512-vnni"),
        ({"features": ["avx2", "avx512f", "avx512_vnni"]}, "avx512-vnni"),
        ({"features": ["neon"]}, "neon"),
        ({"features": []}, "unknown"),
        ({"features": ["avx2"], "architecture": "sm_90"}, "sm_90"),
    ],
)
def test_classes_of_machines(machine: dict[str, Any] | None, expected: str) -> None:
    assert records.machine_class(machine) == expected


def test_a_record_of_here_and_now_passes_the_schema(tmp_path: Path) -> None:
    rows = [{"workload": "toy", "median_ms": float("inf"), "details": {"peak": float("-inf")}}]
    record = records.record("toy", rows, ("numpy", "no-such-distribution"), {"steps": 3})
    records.write(tmp_path / "deep" / "toy.json", record)
    read = json.loads((tmp_path / "deep" / "toy.json").read_text())
    assert read == record
    assert set(read["versions"]) == {"python", "numpy"}
    assert {"cpu", "features", "cpu_capability", "gpu", "system"} <= set(read["machine"])
    assert read["rows"] == [{"workload": "toy", "median_ms": None, "details": {"peak": None}}]
    # An installed copy has no commit; everything else must be right.
    result = records.problems({**read, "note": "a test"}, "toy", records.machine_class(read["machine"]))
    assert result == []
