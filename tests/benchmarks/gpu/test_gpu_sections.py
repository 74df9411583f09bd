"""The GPU benchmark's sections: what happens when parts of them fail, and what is written and printed."""

import ast
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sweeps import sweep

from fastbert.benchmarks.gpu import device as gpu_device
from fastbert.benchmarks.gpu import precompile
from fastbert.benchmarks.gpu import processes as gpu_processes
from fastbert.benchmarks.gpu import report as gpu_report
from fastbert.benchmarks.gpu import sections as gpu_sections
from fastbert.benchmarks.gpu import session as gpu_session
from fastbert.benchmarks.gpu.sections import Section
from fastbert.benchmarks.gpu.session import Options, Session
from fastbert.benchmarks.gpu.worker import Worker, WorkerFailed
from fastbert.errors import UserError
from fastbert.kernels.tuning import processes as tuning_processes

ROOT = Path(__file__).resolve().parents[3]
MODULES = [ROOT / "benchmarks" / "gpu.py", *sorted((ROOT / "benchmarks" / "gpu").glob("*.py"))]


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `faults` that the measuring process finds where the benchmarks would be."""
    package = tmp_path / "path" / "faults"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cases.py").write_text(
        "import os, sys, time\n"
        "from fastbert.benchmarks.gpu.worker import announce, finished\n"
        "def names(dry): return ['first', 'dies', 'refuses', 'hangs', 'peer', 'last']\n"
        "def run(name, dry, seconds, without=()):\n"
        "    if name == 'peer':\n"
        "        announce('fastbert')\n"
        "        for peer in sorted({'cudnn', 'flash'} - set(without)):\n"
        "            announce(peer)\n"
        "            if peer == 'cudnn':\n"
        "                os._exit(9)\n"
        "    if name == 'dies':\n"
        "        finished([{'workload': 'half of it', 'process': 0}])\n"
        "        print('last words', file=sys.stderr, flush=True)\n"
        "        os._exit(7)\n"
        "    if name == 'refuses':\n"
        "        raise ValueError('not this one')\n"
        "    if name == 'hangs':\n"
        "        time.sleep(60)\n"
        "    print('noise between the answers')\n"
        "    return {'rows': [{'workload': name, 'process': os.getpid()}], 'unmeasured': []}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setattr(gpu_session, "PACKAGE", "faults")


def options(out: Path, *names: str) -> Options:
    return Options(out=out, root=ROOT, started=time.time(), only=names, dry_run=True, seconds_per_measure=0.01)


def test_a_case_that_dies_refuses_or_hangs_costs_only_itself(
    faults: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sections, "CASE_SECONDS", 4.0)
    session = Session(options(tmp_path / "out"))
    try:
        actual = gpu_sections.cases("attention", "cases:names", "cases:run")(session, 60.0)
    finally:
        session.worker.close()
    assert [row["workload"] for row in actual["rows"]] == ["first", "half of it", "peer", "last"]
    assert len({row["process"] for row in actual["rows"]}) == 3
    died, refused, hung, peer = actual["failures"]
    assert (died["case"], died["reason"], died["lines"]) == ("dies", "its process ended with code 7", ["last words"])
    assert (refused["case"], refused["reason"]) == ("refuses", "ValueError: not this one")
    assert "raise ValueError('not this one')" in "".join(refused["lines"])
    assert (hung["case"], hung["reason"]) == ("hangs", "no answer within 4 s")
    assert (peer["case"], peer["attempted"]) == ("peer", "cudnn"), (
        "tried again without that peer, which then gave a row"
    )
    assert actual["status"] == "partial"
    written = json.loads((tmp_path / "out" / "results.json").read_text())["sections"]["attention"]
    assert written["rows"] == actual["rows"], "written after each case"


def test_cases_that_come_too_late_are_named(faults: None, tmp_path: Path) -> None:
    session = Session(options(tmp_path / "out"))
    try:
        actual = gpu_sections.cases("attention", "cases:names", "cases:run")(session, 0.0)
    finally:
        session.worker.close()
    assert actual["out_of_time"] == ["first", "dies", "refuses", "hangs", "peer", "last"]


def test_a_section_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def breaks(session: Session, seconds: float) -> dict[str, Any]:
        raise RuntimeError("an illegal memory access was encountered")

    def works(session: Session, seconds: float) -> dict[str, Any]:
        return {"rows": [], "seconds_given": seconds}

    def refuses(session: Session, seconds: float) -> dict[str, Any]:
        (session.options.out / "log.txt").write_bytes(b"x" * (gpu_session.MOST_LOG_BYTES + 9))
        raise WorkerFailed("UserError: not on this device", [], None)

    chosen = (Section("attention", 3, breaks), Section("fused", 1, refuses), Section("softmax", 1, works))
    code = gpu_sections.run(options(tmp_path), None, chosen)
    results = json.loads((tmp_path / "results.json").read_text())["sections"]
    assert code == 1
    assert results["attention"]["reason"] == "RuntimeError: an illegal memory access was encountered"
    assert "breaks" in "".join(results["attention"]["lines"])
    assert results["softmax"]["status"] == "ok"
    assert results["fused"]["status"] == "failed"
    assert (tmp_path / "log.txt").stat().st_size == gpu_session.MOST_LOG_BYTES
    assert results["softmax"]["seconds_given"] > 500, "the time that the first did not need"
    assert "attention: failed: RuntimeError: an illegal memory access" in capsys.readouterr().out


def test_without_time_sections_are_skipped_and_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = Options(out=tmp_path, root=ROOT, started=0.0, only=("softmax", "fused"), dry_run=True)
    assert gpu_sections.run(late) == 0
    section = json.loads((tmp_path / "results.json").read_text())["sections"]["softmax"]
    assert (section["status"], section["reason"]) == ("skipped", "out of time")
    assert "out of time: fused, softmax: raise --budget-seconds, or choose" in capsys.readouterr().out


def test_a_worker_is_replaced_when_its_device_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text(
        "import os\n"
        "def number(): return os.getpid()\n"
        "from fastbert.benchmarks.gpu import worker\n"
        "def spoil(): worker._device_answers = lambda: False\n"
    )
    worker = Worker({"PYTHONPATH": str(tmp_path)}, tmp_path / "log.txt")
    try:
        first = worker.call("broken:number", timeout=60)
        assert worker.call("broken:number", timeout=60) == first
        assert worker.call("broken:spoil", timeout=60) is None
        assert worker.call("broken:number", timeout=60) != first
        with pytest.raises(WorkerFailed, match="AttributeError: module 'broken' has no attribute 'absent'"):
            worker.call("broken:absent", timeout=60)
    finally:
        worker.close()


def test_a_variant_that_does_not_compile_is_named_with_its_last_lines() -> None:
    (actual,) = gpu_processes.compile_all([{"name": "bad", "kind": "absent"}], {"TRITON_INTERPRET": "1"}, 120.0)
    assert (actual["name"], actual["error"]) == ("bad", "its process ended with code 1")
    assert actual["lines"][-1] == "KeyError: 'absent'"
    (late,) = gpu_processes.compile_all([{"name": "late", "kind": "absent"}], {}, 0.0)
    assert late == {"name": "late", "error": "out of time"}


def test_a_compiler_whose_parent_has_ended_ends_before_it_imports_torch() -> None:
    command = [sys.executable, "-P", "-X", "importtime", "-m", "fastbert.benchmarks.gpu.precompile", "{}"]
    environment = {**os.environ, tuning_processes.PARENT: "1"}  # not ours
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "fastbert.kernels.tuning.processes" in modules
    assert "torch" not in modules


def test_resources_of_kernels_need_triton_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('No module named triton')")
    command = [sys.executable, str(ROOT / "benchmarks" / "kernel_resources.py"), "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: benchmarks/kernel_resources.py needs triton: pip install triton (No module named triton)"
    ]


def test_what_failed_is_printed_with_its_last_line() -> None:
    failure = {
        "case": "attention forward 128",
        "reason": "no answer within 4 s",
        "attempted": "sdpa cudnn",
        "lines": [],
    }
    sections = {
        "compile": {
            "status": "partial",
            "variants": [{"name": "a", "error": "code 1", "lines": ["x", "OutOfResources"]}],
        },
        "tests": {
            "status": "failed",
            "reason": "pytest ended with code 1",
            "failures": [{"test": "tests/a.py::b", "message": "assert 1 == 2"}],
        },
        "attention": {"status": "partial", "failures": [failure], "out_of_time": ["attention backward 128"]},
    }
    assert gpu_report.text(sections, [], []).splitlines()[1:] == [
        "compile: partial: the details are in the JSON",
        "  a: OutOfResources",
        "tests: failed: pytest ended with code 1",
        "  tests/a.py::b: assert 1 == 2",
        "attention: partial: the details are in the JSON",
        "  attention forward 128 (attempting sdpa cudnn): no answer within 4 s",
        "out of time: attention (1 cases): raise --budget-seconds, or choose sections with --only",
    ]


def test_a_machine_without_a_usable_gpu_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "CUDA initialization: The NVIDIA driver on your system is too old\n(found version 11040)"

    def unavailable() -> bool:
        warnings.warn(told, stacklevel=2)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", unavailable)
    with pytest.raises(UserError, match=r"driver on your system is too old \(found version 11040\); --dry-run needs"):
        gpu_device.require_gpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(name="Tesla T4", major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    with pytest.raises(UserError, match=r"^Tesla T4 \(compute capability 7.5\) has no bf16 arithmetic.*8.0 or newer$"):
        gpu_device.require_gpu()

    def fails(session: Session, seconds: float) -> dict[str, Any]:
        raise WorkerFailed("UserError: torch finds no GPU", [], None)

    chosen = (Section("environment", 1, fails), Section("later", 1, gpu_sections.built))
    assert gpu_sections.run(Options(out=tmp_path, root=ROOT, started=time.time()), None, chosen) == 1
    assert capsys.readouterr().out == "error: torch finds no GPU\n"
    assert list(json.loads((tmp_path / "results.json").read_text())["sections"]) == ["environment"]
    with pytest.raises(UserError, match="--only names sofmax: choose among build, environment, ceilings, compile, pre"):
        gpu_sections.run(options(tmp_path, "sofmax"))


def test_parts_that_start_cold_have_their_time_in_any_case(tmp_path: Path) -> None:
    def given(session: Session, seconds: float) -> dict[str, Any]:
        return {"given": seconds}

    sections = [Section(name, share, given, floor) for name, share, _, floor in (
        ("environment", 10, None, gpu_sections.COLD_SECONDS), ("ceilings", 8, None, gpu_sections.CEILING_SECONDS),
        ("late", 500, None, 0.0),
    )]  # fmt: skip
    gpu_sections.run(Options(out=tmp_path, root=ROOT, started=0.0, dry_run=True), None, sections)
    results = json.loads((tmp_path / "results.json").read_text())["sections"]
    assert [results[name].get("given") for name in ("environment", "ceilings", "late")] == [90.0, 30.0, None]
    assert [section.floor for section in gpu_sections.COMMANDS["measure"][1:3]] == [90.0, 30.0]


def test_the_headline_comes_first_and_nothing_else_is_compiled_before_it() -> None:
    names = [section.name for section in gpu_sections.COMMANDS["measure"]]
    assert names[:6] == ["build", "environment", "ceilings", "compile", "pretraining", "encoder"]
    assert [name for name in names[6:13] if "compile" not in name] == [
        "layer", "attention", "linear", "loss", "fused",
    ]  # fmt: skip
    kinds = {stage: {each["kind"] for each in precompile.variants(False, stage)} for stage in precompile.STAGES}
    assert kinds["steps"] == {"steps", "model"}
    assert "softmax" in kinds["rest"]
    assert sum(len(precompile.variants(False, stage)) for stage in precompile.STAGES) == len(precompile.every(False))


@sweep("file", MODULES, ids=lambda file: file.name)
def test_modules_import_at_their_top_what_every_gpu_machine_has(file: Path) -> None:
    tree = ast.parse(file.read_text())
    statements = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in statements if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert roots <= {"torch", "triton", "numpy", "safetensors", "fastbert"}
    if file.name in ("gpu.py", "command.py", "plan.py"):
        assert not roots, "it runs before anything is built"
