"""The program for GPU machines: a whole dry run, what happens when parts of it fail, and how goals are judged."""

import ast
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fastbert.benchmarks import gpu, gpu_attention, gpu_device, gpu_measure, gpu_processes, gpu_report, gpu_sections
from fastbert.benchmarks.gpu_sections import Options, Section, Session
from fastbert.benchmarks.gpu_worker import Worker, WorkerFailed

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "benchmarks").glob("gpu*.py"))
PATIENCE = float(os.environ.get("FASTBERT_TEST_PATIENCE", "1"))


# A whole run


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, float]:
    """The folder that a dry run filled, what it printed, and the processor seconds of all its processes."""
    pytest.importorskip("triton", reason="a dry run interprets the kernels")
    out = tmp_path_factory.mktemp("gpu") / "out"
    command = [
        sys.executable,
        ROOT / "benchmarks" / "gpu.py",
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
    assert list(sections) == [name for name in gpu.SECTIONS if name != "tune"]
    problems = {
        name: one.get("failures") or one.get("lines") for name, one in sections.items() if one["status"] != "ok"
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


def test_a_dry_run_leaves_few_files_and_judges_nothing(dry_run: tuple[Path, str, float]) -> None:
    out, printed, seconds = dry_run
    assert {file.name for file in out.iterdir()} <= {
        "results.json", "log.txt", "tests.txt", "attention.png", "throughput.png", "tuning.json",
    }  # fmt: skip
    last = printed.splitlines()[-2:]
    assert last[0].split() == ["goal", "wanted", "measured", "verdict"]
    assert last[1].endswith("unmeasured: figures of a dry run mean nothing")
    assert "met" not in printed.replace("unmet", "")
    assert seconds < 110 * PATIENCE, "under a minute on two cores"


# Failures


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `faults` that the measuring process finds where the benchmarks would be."""
    package = tmp_path / "path" / "faults"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "cases.py").write_text(
        "import os, sys, time\n"
        "from fastbert.benchmarks.gpu_worker import announce\n"
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
    monkeypatch.setattr(gpu_sections, "HOME", "faults")


def options(out: Path, *names: str) -> Options:
    return Options(out=out, root=ROOT, started=time.time(), only=names, dry_run=True, seconds_per_measure=0.01)


def test_a_case_that_dies_refuses_or_hangs_costs_only_itself(
    faults: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sections, "CASE_SECONDS", 4.0)
    session = Session(options(tmp_path / "out"))
    try:
        found = gpu_sections.cases("attention", "cases:names", "cases:run")(session, 60.0)
    finally:
        session.worker.close()
    assert [row["workload"] for row in found["rows"]] == ["first", "peer", "last"]
    assert len({row["process"] for row in found["rows"]}) == 2
    died, refused, hung, peer = found["failures"]
    assert (died["case"], died["reason"], died["lines"]) == ("dies", "its process ended with code 7", ["last words"])
    assert (refused["case"], refused["reason"]) == ("refuses", "ValueError: not this one")
    assert "raise ValueError('not this one')" in "".join(refused["lines"])
    assert (hung["case"], hung["reason"]) == ("hangs", "no answer within 4 s")
    assert (peer["case"], peer["attempted"]) == ("peer", "cudnn"), (
        "tried again without that peer, which then gave a row"
    )
    assert found["status"] == "partial"
    written = json.loads((tmp_path / "out" / "results.json").read_text())["sections"]["attention"]
    assert [row["workload"] for row in written["rows"]] == ["first", "peer", "last"], "written after each case"


def test_cases_that_come_too_late_are_named(faults: None, tmp_path: Path) -> None:
    session = Session(options(tmp_path / "out"))
    try:
        found = gpu_sections.cases("attention", "cases:names", "cases:run")(session, 0.0)
    finally:
        session.worker.close()
    assert found["out_of_time"] == ["first", "dies", "refuses", "hangs", "peer", "last"]


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
        "from fastbert.benchmarks import gpu_worker\n"
        "def number(): return os.getpid()\n"
        "def spoil(): gpu_worker_main()._device_answers = lambda: False\n"
        "def gpu_worker_main():\n    import sys\n    return sys.modules['__main__']\n"
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
    (found,) = gpu_processes.compile_all([{"name": "bad", "home": "absent"}], {"TRITON_INTERPRET": "1"}, 120.0)
    assert (found["name"], found["error"]) == ("bad", "its process ended with code 1")
    assert found["lines"][-1] == "KeyError: 'absent'"
    (late,) = gpu_processes.compile_all([{"name": "late", "home": "absent"}], {}, 0.0)
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
        gpu.parse(["--out", "somewhere", *flags])
    assert refused.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert [word for word in ("--dry-run", "sofmax", "--fast") if word in said]


def test_the_record_is_named_after_gpu_and_day(tmp_path: Path) -> None:
    session = Session(Options(out=tmp_path / "out", root=tmp_path, started=0.0, only=()))
    session.results["sections"]["environment"] = {"gpu": {"name": "NVIDIA H200"}}
    path = gpu_sections.record(session)
    assert path.parent == tmp_path / "benchmarks" / "results"
    assert path.name.startswith("nvidia-h200-20")
    assert json.loads(path.read_text()) == session.results


# Parts


def test_every_goal_has_its_case() -> None:
    names = gpu_attention.case_names(False)
    assert len(set(names)) == len(names)
    verdicts = gpu_report.verdicts(
        {"attention": {"rows": [], "failures": [{"case": n, "reason": "x"} for n in names]}}, False
    )
    attention = [one for one in verdicts if "softmax" not in one["goal"]]
    assert len(attention) == 34
    assert {one["verdict"] for one in attention} == {"unmeasured: x"}


@pytest.mark.parametrize("shape", gpu_attention.shapes(False)[::5], ids=lambda shape: shape.name)
def test_batches_have_the_tokens_and_the_padding_that_they_say(shape: gpu_attention.Shape) -> None:
    lengths = shape.lengths()
    assert len(lengths) == shape.sequences
    assert max(lengths) == shape.length
    assert min(lengths) >= 1
    assert sum(lengths) == pytest.approx(gpu_attention.TOKENS, rel=0.02)
    filled = sum(lengths) / (shape.sequences * shape.length)
    assert filled == pytest.approx({"full": 1.0, "half": 0.5, "lognormal": 0.3}[shape.padding], abs=0.02)


def test_operations_are_those_of_real_tokens() -> None:
    shape = gpu_attention.Shape(length=8, sequences=2, padding="half", heads=3, head_dim=32)
    squares = sum(length**2 for length in shape.lengths())
    assert shape.work().operations == 4 * squares * 32 * 3
    backward = gpu_attention.Shape(length=8, sequences=2, direction="backward", causal=True, heads=3, head_dim=32)
    assert backward.work().operations == 2.5 * 0.5 * 4 * 2 * 64 * 32 * 3


def row(contender: str, milliseconds: float, **others: Any) -> dict[str, Any]:
    return {
        "workload": "attention forward 128 full dropout 0.1",
        "contender": contender,
        "median_ms": milliseconds,
        "outputs": "close",
        "tflops": 100.0,
        "host_bound": False,
        **others,
    }


@pytest.mark.parametrize(
    ("rows", "measured", "verdict"),
    [
        pytest.param(
            [row("fastbert", 1.0), row("sdpa flash", 1.5), row("sdpa cudnn", 1.25), row("eager", 0.1)],
            "1.25x sdpa cudnn (1 ms, 100 TFLOP/s)",
            "met",
            id="the-fastest-fused-rival-counts",
        ),
        pytest.param([row("fastbert", 1.0), row("sdpa flash", 0.9)], None, "missed", id="slower"),
        pytest.param(
            [row("fastbert", 1.0, host_bound=True), row("sdpa flash", 0.9)], None, "missed (Python-bound)", id="python"
        ),
        pytest.param(
            [row("fastbert", 1.0, outputs="wrong: dq is off by 3, eager torch by 0.1"), row("sdpa flash", 2.0)],
            None,
            "wrong: dq is off by 3, eager torch by 0.1",
            id="wrong-is-never-met",
        ),
        pytest.param(
            [row("fastbert", 1.0), row("sdpa flash", 2.0), row("sdpa cudnn", 0.1, outputs="wrong: output")],
            "2.00x sdpa flash (1 ms, 100 TFLOP/s)",
            "met",
            id="a-wrong-rival-does-not-count",
        ),
        pytest.param(
            [row("fastbert", 1.0), row("sdpa cudnn, no dropout", 0.1)],
            "1 ms",
            "unmeasured: no rival took it: No available kernel",
            id="no-rival",
        ),
        pytest.param([row("sdpa flash", 0.9)], "-", "unmeasured: out of memory", id="ours-is-missing"),
    ],
)
def test_verdicts(rows: list[dict[str, Any]], measured: str | None, verdict: str) -> None:
    workload = rows[0]["workload"]
    unmeasured = [
        {"workload": workload, "contender": "sdpa flash", "reason": "No available kernel"},
        {"workload": workload, "contender": "fastbert", "reason": "out of memory"},
    ]
    table = gpu_report.verdicts({"attention": {"rows": rows, "unmeasured": unmeasured}}, False)
    (found,) = (one for one in table if one["goal"] == "forward 128 full, dropout 0.1")
    assert found["verdict"] == verdict
    assert measured in (None, found["measured"])
    assert {one["verdict"] for one in table if "softmax" in one["goal"]} == {"unmeasured: section softmax was not run"}


def test_ratios_are_those_to_the_fastest_that_does_the_same() -> None:
    rows = [row("fastbert", 2.0), row("eager", 3.0), row("nested flash", 2.5), row("sdpa cudnn, no dropout", 1.0)]
    (found,) = gpu_report.ratios({"attention": {"rows": rows}})
    assert (found["best"], found["ratio"]) == ("nested flash", 1.25)
    (alone,) = gpu_report.ratios({"attention": {"rows": rows[:1]}})
    assert (alone["best"], alone["ratio"]) == (None, None)


def test_cases_without_a_goal_get_a_line_of_their_own() -> None:
    names = [name for name in gpu_attention.case_names(False) if not gpu_report._has_goal(name)]
    assert len(names) == 24
    rows = [row("fastbert", 2.0, workload=name) for name in names]
    sections = {"attention": {"status": "ok", "rows": rows}}
    lines = gpu_report.text(sections, gpu_report.ratios(sections), []).splitlines()
    assert "attention forward 2048 full dropout 0 causal: 2 ms, 100 TFLOP/s, nobody else took it; close" in lines


def test_softmax_is_judged_by_the_copy_that_was_measured() -> None:
    details = {"details": {"backend": "triton"}, "workload": "softmax forward 128"}
    rows = [row("fastbert", 1.0, gigabytes_per_second=3600.0, **details), row("eager", 3.0, **details)]
    copy = {"rows": [{"workload": "copy", "gigabytes_per_second": 4000.0}]}
    table = gpu_report.verdicts({"softmax": {"rows": rows}, "ceilings": copy}, False)
    found = {one["goal"]: (one["measured"], one["verdict"]) for one in table}
    assert found["softmax 128 / copy bandwidth"] == ("90% (3,600 GB/s, triton)", "met")
    assert found["softmax 128 / eager"][1] == "met"
    (unmeasured,) = {one["verdict"] for one in gpu_report.verdicts({"softmax": {"rows": rows}}, False)
                     if one["goal"] == "softmax 128 / copy bandwidth"}  # fmt: skip
    assert unmeasured == "unmeasured: the copy was not measured"


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
    found = gpu_processes.read_tests(text, code)
    assert (found["status"], found["counts"], found["failures"]) == expected


def test_contenders_that_refuse_are_noted_and_the_others_timed() -> None:
    device, case = gpu_device.Device(), gpu_measure.Case()
    calls: list[str] = []

    def refuse() -> gpu_measure.Calls:
        raise NotImplementedError("no dropout here\nand more")

    found = gpu_measure.willing(
        device,
        case,
        "x",
        {"fastbert": lambda: [lambda: calls.append("a0"), lambda: calls.append("a1")], "other": refuse},
    )
    assert case.unmeasured == [{"workload": "x", "contender": "other", "reason": "no dropout here"}]
    (measured,) = gpu_measure.contest(device, "x", found, gpu_measure.Work(tokens=10, operations=1e9), seconds=0.01)
    assert calls == ["a0"] + ["a0", "a1"] * ((len(calls) - 1) // 2), "the sets of inputs take turns"
    assert measured.tflops is not None
    flat = measured.as_json()
    assert flat["contender"] == "fastbert"
    assert flat["tokens_per_second"] > 0
    assert not flat["host_bound"]


def test_a_peer_that_computes_something_else_is_found_out() -> None:
    shape = gpu_attention.Shape(length=9, sequences=3, padding="half", heads=2, head_dim=32, direction="backward")
    inputs = gpu_attention.make_inputs(gpu_device.Device(), shape, 0)
    right = gpu_attention.judge(shape, inputs, gpu_attention.gpu_peers.eager, padded=True, factor=4.0)
    assert right[1] == "close"
    inputs.visible = None  # padding is attended to
    wrong = gpu_attention.judge(shape, inputs, gpu_attention.gpu_peers.eager, padded=True, factor=4.0)
    assert wrong[1].startswith("wrong: dq is off by")
    assert wrong[0] > right[0]


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_modules_import_at_their_top_what_every_gpu_machine_has(file: Path) -> None:
    tree = ast.parse(file.read_text())
    statements = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in statements if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert roots <= {"torch", "triton", "numpy", "safetensors", "fastbert"}
    if file.name == "gpu.py":
        assert not roots, "it runs before anything is built"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_timed_by_its_own_clock() -> None:
    device = gpu_device.Cuda()
    x = torch.randn(1 << 26, device=device.torch_device)
    calls = [x.clone] * 4
    device.sample(calls)
    asleep, awake = device.sample(calls, asleep=0.01), device.sample(calls)
    assert not asleep.host_bound
    assert asleep.host_seconds < asleep.seconds, "queued while the device slept"
    assert asleep.seconds == pytest.approx(awake.seconds, rel=0.5)
