"""The GPU benchmark's sections: what happens when parts of them fail, and what is written and printed."""

import ast
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gpu_rows import row

from fastbert.benchmarks import bench_gpu
from fastbert.benchmarks.gpu import processes as gpu_processes
from fastbert.benchmarks.gpu import report as gpu_report
from fastbert.benchmarks.gpu import sections as gpu_sections
from fastbert.benchmarks.gpu.sections import Options, Section, Session
from fastbert.benchmarks.gpu.worker import Worker, WorkerFailed
from fastbert.benchmarks.harness import records

ROOT = Path(__file__).resolve().parents[3]
MODULES = [ROOT / "benchmarks" / "bench_gpu.py", *sorted((ROOT / "benchmarks" / "gpu").glob("*.py"))]


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `faults` that the measuring process finds where the benchmarks would be."""
    package = tmp_path / "path" / "faults"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cases.py").write_text(
        "import os, sys, time\n"
        "from fastbert.benchmarks.gpu.worker import announce\n"
        "def names(dry): return ['first', 'dies', 'refuses', 'hangs', 'peer', 'last']\n"
        "def run(name, dry, seconds, without=()):\n"
        "    if name == 'peer':\n"
        "        announce('fastbert')\n"
        "        for peer in sorted({'cudnn', 'flash'} - set(without)):\n"
        "            announce(peer)\n"
        "            if peer == 'cudnn':\n"
        "                os._exit(9)\n"
        "    if name == 'dies':\n"
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
    monkeypatch.setattr(gpu_sections, "PACKAGE", "faults")


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
    assert [row["workload"] for row in actual["rows"]] == ["first", "peer", "last"]
    assert len({row["process"] for row in actual["rows"]}) == 2
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
    assert [row["workload"] for row in written["rows"]] == ["first", "peer", "last"], "written after each case"


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

    code = gpu_sections.run(
        options(tmp_path, "attention", "softmax"), (Section("attention", 3, breaks), Section("softmax", 1, works))
    )
    results = json.loads((tmp_path / "results.json").read_text())["sections"]
    assert code == 1
    assert results["attention"]["reason"] == "RuntimeError: an illegal memory access was encountered"
    assert "breaks" in "".join(results["attention"]["lines"])
    assert results["softmax"]["status"] == "ok"
    assert results["softmax"]["seconds_given"] > 500, "the time that the first did not need"
    assert "attention: failed: RuntimeError: an illegal memory access" in capsys.readouterr().out


def test_without_time_sections_are_skipped_and_said_so(tmp_path: Path) -> None:
    late = Options(out=tmp_path, root=ROOT, started=0.0, only=("environment",), dry_run=True)
    assert gpu_sections.run(late) == 0
    section = json.loads((tmp_path / "results.json").read_text())["sections"]["environment"]
    assert (section["status"], section["reason"]) == ("skipped", "out of time")


def test_a_worker_is_replaced_when_its_device_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text(
        "import os\n"
        "def number(): return os.getpid()\n"
        "def spoil(): main_module()._device_answers = lambda: False\n"
        "def main_module():\n    import sys\n    return sys.modules['__main__']\n"
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


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--record", "--dry-run"], id="record-of-a-dry-run"),
        pytest.param(["--only", "attention,sofmax"], id="unknown-section"),
        pytest.param(["--fast"], id="unknown-flag"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        bench_gpu.parse(["--out", "somewhere", *flags])
    assert refused.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert [word for word in ("--dry-run", "sofmax", "--fast") if word in message]


def test_the_record_is_named_after_the_architecture(tmp_path: Path) -> None:
    session = Session(Options(out=tmp_path / "out", root=tmp_path, started=0.0, only=()))
    session.results["sections"] = {
        "environment": {
            "gpu": {"name": "NVIDIA H200", "compute_capability": "9.0"},
            "machine": {"cpu": "a processor", "features": ["avx2"]},
            "versions": {"torch": "2.13.0"},
            "commit": "0123456789ab",
        },
        "softmax": {"status": "ok", "rows": [row("fastbert", 1.0)]},
    }
    path = gpu_sections.record(session)
    assert path == tmp_path / "benchmarks" / "results" / "gpu" / "sm_90.json"
    record = json.loads(path.read_text())
    assert records.problems(record, "gpu", "sm_90") == []
    assert record["rows"] == [{"section": "softmax", **row("fastbert", 1.0)}]
    assert record["settings"]["sections"] == {"softmax": {"status": "ok"}}
    assert session.results["sections"]["softmax"]["rows"], "what is written elsewhere is unchanged"


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
        "tests": {"status": "failed", "reason": "pytest ended with code 1", "failures": ["FAILED tests/a.py::b"]},
        "attention": {"status": "partial", "failures": [failure], "out_of_time": ["attention backward 128"]},
    }
    assert gpu_report.text(sections, [], []).splitlines()[1:9] == [
        "compile: partial: see results.json",
        "  a: OutOfResources",
        "tests: failed: pytest ended with code 1",
        "  FAILED tests/a.py::b",
        "attention: partial: see results.json",
        "  attention forward 128 (attempting sdpa cudnn): no answer within 4 s",
        "  out of time: attention backward 128",
        "",
    ]


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        pytest.param("..\n2 passed, 9 deselected in 3.21s", 0, ("ok", {"passed": 2, "deselected": 9}, []), id="passed"),
        pytest.param(
            "F.\nFAILED tests/a.py::b - AssertionError: 1 != 2\nERROR tests/c.py\n1 failed, 1 passed, 1 error in 3s",
            1,
            ("failed", {"failed": 1, "passed": 1, "error": 1},
             ["FAILED tests/a.py::b - AssertionError: 1 != 2", "ERROR tests/c.py"]),
            id="failed",
        ),
        pytest.param("...", None, ("failed", {}, []), id="stopped"),
        pytest.param("9 deselected in 1.00s", 5, ("ok", {"deselected": 9}, []), id="none-marked"),
    ],
)  # fmt: skip
def test_the_output_of_the_tests_is_read(text: str, code: int | None, expected: tuple[Any, ...]) -> None:
    actual = gpu_processes.read_tests(text, code)
    assert (actual["status"], actual["counts"], actual["failures"]) == expected


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_modules_import_at_their_top_what_every_gpu_machine_has(file: Path) -> None:
    tree = ast.parse(file.read_text())
    statements = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in statements if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert roots <= {"torch", "triton", "numpy", "safetensors", "fastbert"}
    if file.name == "bench_gpu.py":
        assert not roots, "it runs before anything is built"
