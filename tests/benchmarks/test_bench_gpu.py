"""The program for GPU machines: a whole dry run, what happens when parts of it fail, and how goals are judged."""

import ast
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fastbert.benchmarks import bench_gpu
from fastbert.benchmarks.gpu import attention as gpu_attention
from fastbert.benchmarks.gpu import check, timing
from fastbert.benchmarks.gpu import device as gpu_device
from fastbert.benchmarks.gpu import fused as gpu_fused
from fastbert.benchmarks.gpu import goals as gpu_goals
from fastbert.benchmarks.gpu import graphs as gpu_graphs
from fastbert.benchmarks.gpu import layer as gpu_layer
from fastbert.benchmarks.gpu import linear as gpu_linear
from fastbert.benchmarks.gpu import loss as gpu_loss
from fastbert.benchmarks.gpu import models as gpu_models
from fastbert.benchmarks.gpu import padded as gpu_padded
from fastbert.benchmarks.gpu import processes as gpu_processes
from fastbert.benchmarks.gpu import report as gpu_report
from fastbert.benchmarks.gpu import sections as gpu_sections
from fastbert.benchmarks.gpu import softmax as gpu_softmax
from fastbert.benchmarks.gpu.sections import Options, Section, Session
from fastbert.benchmarks.gpu.worker import Worker, WorkerFailed
from fastbert.benchmarks.harness import records
from fastbert.config import BertConfig
from fastbert.models import BertModel
from fastbert.ops import dispatch

ROOT = Path(__file__).resolve().parents[2]
MODULES = [ROOT / "benchmarks" / "bench_gpu.py", *sorted((ROOT / "benchmarks" / "gpu").glob("*.py"))]
DEVICE = gpu_device.Device()
PATIENCE = float(os.environ.get("FASTBERT_TEST_PATIENCE", "1"))


# A whole run


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


def test_a_dry_run_measures_the_fused_operations_beside_eager_torch(dry_run: tuple[Path, str, float]) -> None:
    sections = json.loads((dry_run[0] / "results.json").read_text())["sections"]
    for section, names in (
        ("fused", [one for name in gpu_fused.case_names(True) for one in workloads_of(name)]),
        ("loss", gpu_loss.case_names(True)),
        ("layer", gpu_layer.case_names(True)),
        ("encoder", gpu_models.encoder_names(True)),
        ("pretraining", gpu_models.pretraining_names(True)),
    ):
        rows, unmeasured = sections[section]["rows"], sections[section]["unmeasured"]
        fastbert_rows = {row["workload"]: row for row in rows if row["contender"] == "fastbert"}
        absent = {one["workload"] for one in unmeasured if one["contender"] == "fastbert" and one["reason"]}
        assert set(fastbert_rows) | absent == set(names), section
        kernels = [row for row in fastbert_rows.values() if row["details"].get("backend") == "triton"]
        assert {row["outputs"] for row in kernels} <= {"close"}, kernels
        others = {row["workload"] for row in rows if row["contender"] != "fastbert"}
        assert others == (set(names) if section != "pretraining" else set()), section
    for section in ("loss", "layer"):
        compared = [row for row in sections[section]["rows"] if row["contender"] == "fastbert"]
        assert {row["outputs"] for row in compared} == {"close"}, compared
        assert all(row["max_abs_difference"] > 0 for row in compared)
    assert {one["contender"] for one in sections["pretraining"]["unmeasured"]} == {"fastbert graphs"}, "on a CPU"


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


# Failures


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
        result = gpu_sections.cases("attention", "cases:names", "cases:run")(session, 60.0)
    finally:
        session.worker.close()
    assert [row["workload"] for row in result["rows"]] == ["first", "peer", "last"]
    assert len({row["process"] for row in result["rows"]}) == 2
    died, refused, hung, peer = result["failures"]
    assert (died["case"], died["reason"], died["lines"]) == ("dies", "its process ended with code 7", ["last words"])
    assert (refused["case"], refused["reason"]) == ("refuses", "ValueError: not this one")
    assert "raise ValueError('not this one')" in "".join(refused["lines"])
    assert (hung["case"], hung["reason"]) == ("hangs", "no answer within 4 s")
    assert (peer["case"], peer["attempted"]) == ("peer", "cudnn"), (
        "tried again without that peer, which then gave a row"
    )
    assert result["status"] == "partial"
    written = json.loads((tmp_path / "out" / "results.json").read_text())["sections"]["attention"]
    assert [row["workload"] for row in written["rows"]] == ["first", "peer", "last"], "written after each case"


def test_cases_that_come_too_late_are_named(faults: None, tmp_path: Path) -> None:
    session = Session(options(tmp_path / "out"))
    try:
        result = gpu_sections.cases("attention", "cases:names", "cases:run")(session, 0.0)
    finally:
        session.worker.close()
    assert result["out_of_time"] == ["first", "dies", "refuses", "hangs", "peer", "last"]


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
    (result,) = gpu_processes.compile_all([{"name": "bad", "kind": "absent"}], {"TRITON_INTERPRET": "1"}, 120.0)
    assert (result["name"], result["error"]) == ("bad", "its process ended with code 1")
    assert result["lines"][-1] == "KeyError: 'absent'"
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
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert [word for word in ("--dry-run", "sofmax", "--fast") if word in last_line]


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


# Parts


def test_every_goal_has_its_case() -> None:
    names = {
        "attention": gpu_attention.case_names(False),
        "softmax": gpu_softmax.case_names(False),
        "fused": gpu_fused.case_names(False),
        "loss": gpu_loss.case_names(False),
        "layer": gpu_layer.case_names(False),
        "encoder": gpu_models.encoder_names(False),
        "pretraining": gpu_models.pretraining_names(False),
    }
    assert all(len(set(one)) == len(one) for one in names.values())
    failed = {
        section: {"rows": [], "failures": [{"case": name, "reason": "x"} for name in one]}
        for section, one in names.items()
    }
    verdicts = gpu_goals.verdicts(failed, False)
    assert len({one["goal"] for one in verdicts}) == len(verdicts) == 34 + 4 + 20 + 4 + 6 + 8 + 3 + 3
    assert {one["verdict"] for one in verdicts} == {"unmeasured: x"}


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
            "unmeasured: no rival ran: No available kernel",
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
    table = gpu_goals.verdicts({"attention": {"rows": rows, "unmeasured": unmeasured}}, False)
    (result,) = (one for one in table if one["goal"] == "forward 128 full, dropout 0.1")
    assert result["verdict"] == verdict
    assert measured in (None, result["measured"])
    assert {one["verdict"] for one in table if "softmax" in one["goal"]} == {"unmeasured: section softmax was not run"}


def test_ratios_are_those_to_the_fastest_that_does_the_same() -> None:
    rows = [row("fastbert", 2.0), row("eager", 3.0), row("nested flash", 2.5), row("sdpa cudnn, no dropout", 1.0)]
    (result,) = gpu_goals.ratios({"attention": {"rows": rows}})
    assert (result["best"], result["ratio"]) == ("nested flash", 1.25)
    (alone,) = gpu_goals.ratios({"attention": {"rows": rows[:1]}})
    assert (alone["best"], alone["ratio"]) == (None, None)


def test_cases_without_a_goal_get_a_line_of_their_own() -> None:
    names = [name for name in gpu_attention.case_names(False) if not gpu_goals.has_goal(name)]
    assert len(names) == 24
    rows = [row("fastbert", 2.0, workload=name) for name in names]
    sections = {"attention": {"status": "ok", "rows": rows}}
    lines = gpu_report.text(sections, gpu_goals.ratios(sections), []).splitlines()
    assert "attention forward 2048 full dropout 0 causal: 2 ms, 100 TFLOP/s, no other contender; close" in lines


def test_softmax_is_judged_by_the_copy_that_was_measured() -> None:
    details = {"details": {"backend": "triton"}, "workload": "softmax forward 128"}
    rows = [row("fastbert", 1.0, gigabytes_per_second=3600.0, **details), row("eager", 3.0, **details)]
    copy = {"rows": [{"workload": "copy", "gigabytes_per_second": 4000.0}]}
    table = gpu_goals.verdicts({"softmax": {"rows": rows}, "ceilings": copy}, False)
    results = {one["goal"]: (one["measured"], one["verdict"]) for one in table}
    assert results["softmax 128 / copy bandwidth"] == ("90% (3,600 GB/s, triton)", "met")
    assert results["softmax 128 / eager"][1] == "met"
    (unmeasured,) = {one["verdict"] for one in gpu_goals.verdicts({"softmax": {"rows": rows}}, False)
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
    actual = gpu_processes.read_tests(text, code)
    assert (actual["status"], actual["counts"], actual["failures"]) == expected


def test_contenders_that_refuse_are_noted_and_the_others_timed() -> None:
    device, case = gpu_device.Device(), timing.Case()
    calls: list[str] = []

    def refuse() -> timing.Calls:
        raise NotImplementedError("no dropout here\nand more")

    result = timing.willing(
        device,
        case,
        "x",
        {"fastbert": lambda: [lambda: calls.append("a0"), lambda: calls.append("a1")], "other": refuse},
    )
    assert case.unmeasured == [{"workload": "x", "contender": "other", "reason": "no dropout here"}]
    (measured,) = timing.contest(device, "x", result, timing.Work(tokens=10, operations=1e9), seconds=0.01)
    assert calls == ["a0"] + ["a0", "a1"] * ((len(calls) - 1) // 2), "the sets of inputs take turns"
    assert measured.tflops is not None
    flat = measured.as_json()
    assert flat["contender"] == "fastbert"
    assert flat["tokens_per_second"] > 0
    assert not flat["host_bound"]


def test_a_peer_that_computes_something_else_is_found_out() -> None:
    shape = gpu_attention.Shape(length=9, sequences=3, padding="half", heads=2, head_dim=32, direction="backward")
    inputs = gpu_attention.make_inputs(gpu_device.Device(), shape, 0)
    right = gpu_attention.judge(shape, inputs, gpu_attention.attention_peers.eager, padded=True, factor=4.0)
    assert right[1] == "close"
    inputs.visible = None  # padding is attended to
    wrong = gpu_attention.judge(shape, inputs, gpu_attention.attention_peers.eager, padded=True, factor=4.0)
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
    if file.name == "bench_gpu.py":
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


# Fused operations, losses, layers and models: comparing


def test_outputs_may_be_off_twice_as_far_as_eager() -> None:
    exact = {"output": torch.zeros(3, dtype=torch.float64)}
    eager = {"output": torch.tensor([0.0, 0.1, 0.0])}
    assert check.judge({"output": torch.tensor([0.2, 0.0, 0.0])}, exact, eager) == (pytest.approx(0.2), "close")
    difference, verdict = check.judge({"output": torch.tensor([0.3, 0.0, 0.0])}, exact, eager)
    assert verdict == "wrong: output is off by 0.3, eager torch by 0.1"
    assert difference == pytest.approx(0.3)
    difference, verdict = check.judge({"output": torch.tensor([torch.nan, 0.0, 0.0])}, exact, eager)
    assert verdict.startswith("wrong: output is off by nan")
    assert difference != difference


def test_output_and_gradients_are_judged_apart() -> None:
    exact = {name: torch.ones(2, dtype=torch.float64) for name in ("output", "gradient of x")}
    eager = {name: x.float() for name, x in exact.items()}
    results = {**eager, "gradient of x": torch.tensor([1.0, 2.0])}
    output, gradients = check.judged_apart(DEVICE, lambda: results, exact, eager)
    assert output == (0.0, "close")
    assert gradients == (1.0, "wrong: gradient of x is off by 1, eager torch by 0")

    def refuse() -> check.Tensors:
        raise TypeError("no such argument")

    assert check.judged_apart(DEVICE, refuse, exact, eager) == ((0.0, "not compared"), (0.0, "not compared"))


@pytest.mark.parametrize("operation", gpu_fused.PATTERNS)
def test_the_yardstick_is_the_oracle_but_for_rounding(operation: str) -> None:
    pattern = gpu_fused.PATTERNS[operation]
    one = gpu_fused.draw(DEVICE, pattern, 16, 32, 0)
    assert (one.dropout is not None) == pattern.drops
    exact = gpu_fused._composed(pattern, one, torch.float64)
    rounded = gpu_fused._composed(pattern, one, torch.bfloat16)
    assert set(exact) == {"output", *(f"gradient of {name}" for name in one.leaves)}
    assert all(x.dtype == torch.float64 for x in exact.values())
    for name, truth in exact.items():
        assert rounded[name].dtype != torch.float64
        torch.testing.assert_close(rounded[name].double(), truth, atol=0.2, rtol=0.1)
    if pattern.drops:
        free = gpu_fused.draw(DEVICE, pattern, 16, 32, 0, variant=("inference",))
        assert free.dropout is None
        assert not torch.equal(gpu_fused._composed(pattern, free, torch.float64)["output"], exact["output"])


def test_the_products_that_are_compared_agree() -> None:
    one = gpu_linear.draw(DEVICE, 12, 16, 32, 0).in_double()
    forward, backward = gpu_linear.contenders("forward"), gpu_linear.contenders("backward")
    torch.testing.assert_close(forward[gpu_linear.APART](one), forward["eager"](one))
    torch.testing.assert_close(backward[gpu_linear.APART](one), backward["eager"](one))
    u, weight = one.u.clone().requires_grad_(), one.back
    h = F.gelu(u)
    (du,) = torch.autograd.grad(h @ weight.T, u, one.grad)
    torch.testing.assert_close(backward["eager"](one), (du, h.detach(), du.sum(0)))


def test_padded_layers_compute_what_packed_ones_do() -> None:
    config = BertConfig.preset("tiny", vocab_size=50)
    model = BertModel(config).eval()
    batch = gpu_models.make_batch(config, torch.tensor([7, 3, 5]), 0)
    plain = gpu_padded.PaddedEncoder(model)
    one, mask = batch.unpack(), gpu_padded.key_mask(batch)
    states = plain(one["input_ids"], one["token_type_ids"], mask)[one["attention_mask"].bool()]
    torch.testing.assert_close(states, model(batch).last_hidden_state, atol=1e-5, rtol=1e-5)
    assert mask is not None
    assert mask.sum() == 15
    full = gpu_models.make_batch(config, torch.tensor([4, 4]), 0)
    assert gpu_padded.key_mask(full) is None


def test_a_layer_that_computes_something_else_is_found_out() -> None:
    config = BertConfig.preset("tiny")
    layer = gpu_layer.new_layer(config, DEVICE)
    few = gpu_layer.draw(DEVICE, config, [9, 4], 0, dropout=0.0)
    exact = gpu_layer._padded_results(layer, few, torch.float64)
    eager = gpu_layer._padded_results(layer, few, torch.bfloat16)
    result = gpu_layer._packed_results(layer, few)
    assert check.judge(result, exact, eager)[1] == "close"
    layer.output.LayerNorm.eps = 0.5
    assert check.judge(gpu_layer._packed_results(layer, few), exact, eager)[1].startswith("wrong: output")


def test_a_loss_that_computes_something_else_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    one = gpu_loss.draw(DEVICE, 20)
    assert gpu_loss._check(DEVICE, one)[1] == "close"
    monkeypatch.setattr(gpu_loss, "ours", lambda *arguments: 1.01 * gpu_loss.eager(*arguments))
    assert gpu_loss._check(DEVICE, one)[1].startswith("wrong: loss is off by")


def test_what_is_not_recorded_is_no_graph() -> None:
    uses = [SimpleNamespace(how="graph", reason="recorded"), SimpleNamespace(how="eager", reason="a host read")]
    gpu_graphs._insist(SimpleNamespace(report=lambda: uses[:1]))
    with pytest.raises(NotImplementedError, match="a host read"):
        gpu_graphs._insist(SimpleNamespace(report=lambda: uses))


# Their counting


def test_bytes_are_the_fewest_that_a_pattern_needs() -> None:
    norm = gpu_fused.PATTERNS["dropout_add_layer_norm"]
    one = gpu_fused.draw(DEVICE, norm, 16, 32, 0)
    count = [gpu_fused.moved_bytes(norm, one, *flags) for flags in ((False, False), (True, False), (True, True))]
    assert count == [8 * 16 * 32, 8 * 16 * 32, 6 * 16 * 32]
    embedding = gpu_fused.PATTERNS["embedding_layer_norm"]
    one = gpu_fused.draw(DEVICE, embedding, 16, 32, 0)
    read = 16 + 8 + 2  # all words differ, two sequences of 8 tokens, both segments
    assert gpu_fused.moved_bytes(embedding, one, False, False) == 2 * 16 * 32 + 4 * 32 * read
    backward = 2 * 16 * 32 + 4 * 32 * read + 4 * 4 * 16 * 32 + 4 * 32 * (64 + 32 + 2)
    assert gpu_fused.moved_bytes(embedding, one, True, False) == backward
    frequent = gpu_fused.draw(DEVICE, embedding, 512, 32, 0, variant=("frequent",))
    counts = frequent.tensors["ids"].bincount(minlength=64)
    assert counts[:8].sum() > 2 * counts[-8:].sum()


def test_two_sequences_share_a_slot() -> None:
    lengths = gpu_models.step_lengths(32768, 512, "packed")
    assert len(lengths) == 128
    assert float(lengths.double().mean()) == 254.5
    assert (lengths.view(-1, 2).sum(1) == 509).all()
    assert lengths.min() < 70
    assert gpu_models.step_lengths(1024, 128, "full").tolist() == [128] * 8


def test_operations_count_what_a_token_sees() -> None:
    config = BertConfig.preset("tiny")
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    weights = 2 * (4 * width * width + 2 * width * inner)
    assert gpu_models.operations_per_token(config, [10, 10]) == layers * (weights + 4 * 10 * width)
    assert gpu_models.operations_per_token(config, [3, 1]) == layers * (weights + 4 * 2.5 * width)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_at_the_peak_of_a_call_is_counted() -> None:
    device = gpu_device.Cuda()

    def call() -> torch.Tensor:
        x = torch.ones(1 << 20, device=device.torch_device)
        return (x + x)[:1].clone()

    peak = device.peak_bytes(call)
    assert peak is not None
    assert 8 << 20 <= peak < 9 << 20


# Their goals


def row_of(workload: str, contender: str, milliseconds: float, **others: Any) -> dict[str, Any]:
    details = {"backend": "triton", **others.pop("details", {})}
    return row(contender, milliseconds, workload=workload, details=details, **{"tflops": None, **others})


def judged(goal: str, **sections: list[dict[str, Any]]) -> tuple[str, str]:
    table = gpu_goals.verdicts({name: {"rows": rows} for name, rows in sections.items()}, False)
    (result,) = (one for one in table if one["goal"] == goal)
    return result["measured"], result["verdict"]


COPY = [{"workload": "copy", "gigabytes_per_second": 4000.0}]


@pytest.mark.parametrize(
    ("rate", "eager", "verdict"),
    [
        pytest.param(3600.0, 3.0, "met", id="both"),
        pytest.param(3200.0, 3.0, "missed", id="slower-than-a-copy"),
        pytest.param(3600.0, 2.0, "missed", id="eager-is-fast"),
    ],
)
def test_a_pattern_meets_both_of_its_goals_or_misses(rate: float, eager: float, verdict: str) -> None:
    name = "gelu_layer_norm backward 768"
    rows = [row_of(name, "fastbert", 1.0, gigabytes_per_second=rate), row_of(name, "eager", eager)]
    measured = f"{rate / 4000:.0%} ({rate:,.0f} GB/s, triton), {eager:.2f}x eager"
    assert judged(name, fused=rows, ceilings=COPY) == (measured, verdict)
    assert judged(name, fused=rows)[1] == "unmeasured: the copy was not measured"
    assert judged(name, fused=rows[1:], ceilings=COPY)[1] == "unmeasured: no such case"


def test_products_are_judged_by_their_operations() -> None:
    name = "linear_gelu forward 768"
    rows = [
        row_of(name, "fastbert", 1.0, tflops=610.0),
        row_of(name, "matmul, bias_gelu", 1.25),
        row_of(name, "eager", 1.5),
    ]
    assert judged(name, fused=rows) == ("610, 1.25x matmul, bias_gelu, 1.50x eager", "met")


def test_a_loss_is_judged_by_time_and_memory() -> None:
    details = {"extra_bytes": 100_000_000, "logits_bytes": 2_000_000_000}
    rows = [row_of("loss 10000", "fastbert", 1.0, details=details), row_of("loss 10000", "eager", 0.9)]
    assert judged("loss 10000 / eager", loss=rows) == ("0.90x eager (1 ms)", "missed")
    assert judged("loss 10000, extra memory", loss=rows) == ("5.0% (100 MB)", "met")
    rows[0]["details"]["extra_bytes"] = None
    assert judged("loss 10000, extra memory", loss=rows)[1] == "unmeasured: the device does not count memory"


def test_a_layer_has_two_rivals() -> None:
    name = "layer large 512 half"
    rows = [row_of(name, "fastbert", 1.0), row_of(name, "eager", 2.5), row_of(name, "eager compiled", 1.1)]
    assert judged(f"{name} / eager", layer=rows) == ("2.50x eager (1 ms)", "met")
    assert judged(f"{name} / eager compiled", layer=rows) == ("1.10x eager compiled (1 ms)", "missed")


def test_the_faster_of_ours_counts_if_it_is_right() -> None:
    name = "encoder base 16 latency"
    rows = [row_of(name, "fastbert", 2.0), row_of(name, "fastbert graphs", 0.5), row_of(name, "torch padded", 3.0)]
    goal = f"{name} / transformers"
    assert judged(goal, encoder=rows) == ("6.00x torch padded (0.5 ms, fastbert graphs)", "met")
    rows[1]["outputs"] = "wrong: states"
    assert judged(goal, encoder=rows) == ("1.50x torch padded (2 ms)", "missed")
    name = "pretraining large 512 packed"
    steps = [row_of(name, "fastbert", 120.0, details={"tokens": 32576})]
    assert judged(f"{name}, tokens/s", pretraining=steps) == ("271,467 (fastbert)", "met")


def test_kernels_are_forced_in_a_dry_run_only_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(dispatch, "supported_by", lambda name: ("softmax", "linear"))
    assert gpu_device.own_backend(DEVICE, "softmax") == "triton"
    assert gpu_device.own_backend(DEVICE, "layer_norm") is None
    assert gpu_linear._forced_backend(DEVICE) is None
