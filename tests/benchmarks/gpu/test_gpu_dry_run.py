"""The program for GPU machines: a whole dry run, through every section."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fastbert.benchmarks import bench_gpu
from fastbert.benchmarks.gpu import attention as gpu_attention
from fastbert.benchmarks.gpu import fused as gpu_fused
from fastbert.benchmarks.gpu import layer as gpu_layer
from fastbert.benchmarks.gpu import loss as gpu_loss
from fastbert.benchmarks.gpu import models as gpu_models

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = float(os.environ.get("FASTBERT_TEST_PATIENCE", "1"))


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, float]:
    """The folder that a dry run filled, what it printed, and the processor seconds of all its processes."""
    pytest.importorskip("triton", reason="a dry run interprets the kernels")
    out = tmp_path_factory.mktemp("gpu") / "out"
    command = [
        sys.executable,
        ROOT / "benchmarks" / "bench_gpu.py",
        "--out",
        out,
        "--dry-run",
        "--seconds-per-measure",
        "0.01",
    ]
    # As a user's shell has it, and unlike the other tests (see conftest.py).
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_dry_run_goes_through_every_section(dry_run: tuple[Path, str, float]) -> None:
    out, _, _ = dry_run
    results = json.loads((out / "results.json").read_text())
    sections = results["sections"]
    assert list(sections) == [name for name in bench_gpu.SECTIONS if name != "tune"]
    problems = {
        name: section.get("failures") or section.get("lines")
        for name, section in sections.items()
        if section["status"] != "ok"
    }
    assert not problems
    assert results["dry_run"]
    assert all(section["dry_run"] for section in sections.values())
    rows = [row for section in sections.values() for row in section.get("rows", ())]
    assert len(rows) > 20
    assert all(row["dry_run"] and row["median_ms"] > 0 for row in rows)


def test_a_dry_run_times_the_interpreted_kernels_after_checking_them(dry_run: tuple[Path, str, float]) -> None:
    sections = json.loads((dry_run[0] / "results.json").read_text())["sections"]
    rows = [row for row in sections["attention"]["rows"] if row["contender"] == "fastbert"]
    assert {row["workload"] for row in rows} == set(gpu_attention.case_names(True))
    assert {row["details"]["backend"] for row in rows} == {"triton"}
    assert {row["outputs"] for row in rows} == {"close"}
    assert all(0 < row["max_abs_difference"] < 0.1 for row in rows), "compared with float64, in bf16"
    softmax = [row for row in sections["softmax"]["rows"] if row["contender"] == "fastbert"]
    assert {(row["details"]["backend"], row["outputs"]) for row in softmax} == {("triton", "close")}
    assert all(variant["seconds"] > 0 for variant in sections["compile"]["variants"])


def test_a_dry_run_measures_the_fused_operations_beside_eager_torch(dry_run: tuple[Path, str, float]) -> None:
    sections = json.loads((dry_run[0] / "results.json").read_text())["sections"]
    for section, names in (
        ("fused", [case for name in gpu_fused.case_names(True) for case in workloads_of(name)]),
        ("loss", gpu_loss.case_names(True)),
        ("layer", gpu_layer.case_names(True)),
        ("encoder", gpu_models.encoder_names(True)),
        ("pretraining", gpu_models.pretraining_names(True)),
    ):
        rows, unmeasured = sections[section]["rows"], sections[section]["unmeasured"]
        by_workload = {row["workload"]: row for row in rows if row["contender"] == "fastbert"}
        absent = {row["workload"] for row in unmeasured if row["contender"] == "fastbert" and row["reason"]}
        assert set(by_workload) | absent == set(names), section
        kernels = [row for row in by_workload.values() if row["details"].get("backend") == "triton"]
        assert {row["outputs"] for row in kernels} <= {"close"}, kernels
        others = {row["workload"] for row in rows if row["contender"] != "fastbert"}
        assert others == (set(names) if section != "pretraining" else set()), section
    for section in ("loss", "layer"):
        compared = [row for row in sections[section]["rows"] if row["contender"] == "fastbert"]
        assert {row["outputs"] for row in compared} == {"close"}, compared
        assert all(row["max_abs_difference"] > 0 for row in compared)
    assert {row["contender"] for row in sections["pretraining"]["unmeasured"]} == {"fastbert graphs"}, "on a CPU"


def workloads_of(name: str) -> tuple[str, ...]:
    return (name,) if name.startswith("linear") else gpu_fused.workloads(name)


def test_a_dry_run_leaves_few_files_and_judges_nothing(dry_run: tuple[Path, str, float]) -> None:
    out, printed, seconds = dry_run
    assert {file.name for file in out.iterdir()} <= {
        "results.json", "log.txt", "tests.txt", "tuning.json",
        "attention.png", "fused.png", "layers.png", "throughput.png",
    }  # fmt: skip
    last = printed.splitlines()[-2:]
    assert last[0].split() == ["goal", "target", "measured", "verdict"]
    assert last[1].endswith("unmeasured: figures of a dry run mean nothing")
    assert "met" not in printed.replace("unmet", "")
    assert seconds < 110 * PATIENCE, "under a minute on two cores"
