"""The program for GPU machines: dry runs of the plan's commands, through every section; and one that is killed."""

import json
import os
import resource
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

import interpreter
import pytest
from patience import PATIENCE, measured

from fastbert.benchmarks.gpu import attention as gpu_attention
from fastbert.benchmarks.gpu import fused as gpu_fused
from fastbert.benchmarks.gpu import layer as gpu_layer
from fastbert.benchmarks.gpu import linear as gpu_linear
from fastbert.benchmarks.gpu import loss as gpu_loss
from fastbert.benchmarks.gpu import models as gpu_models
from fastbert.benchmarks.gpu import plan
from fastbert.benchmarks.gpu import positions as gpu_positions
from fastbert.benchmarks.gpu import sections as gpu_sections
from fastbert.benchmarks.gpu import softmax as gpu_softmax
from fastbert.benchmarks.gpu import steps as gpu_steps
from fastbert.kernels.tuning import tables

ROOT = Path(__file__).resolve().parents[3]


def shell(command: str, out: Path, *paths: Path) -> tuple[int, str, float]:
    """Run a command of the plan as a user's shell does; return its exit code, what it printed, and the processor
    seconds of all its processes."""
    # Unlike the other tests (see conftest.py).
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment |= {"OUT": str(out), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if paths:
        environment["PYTHONPATH"] = ":".join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.returncode, done.stdout + done.stderr, seconds


# Found by every process of a run before all others: it interprets kernels as fast as the tests do.
HASTENED = """
import importlib.abc, sys

class Hasten(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "fastbert.kernels.launch":
            sys.meta_path.remove(self)
            import interpreter
            interpreter.hasten()

sys.meta_path.insert(0, Hasten())
"""


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, float]:
    """The folder that a dry run of measuring filled, what it printed, and its processor seconds."""
    pytest.importorskip("triton", reason="a dry run interprets the kernels")
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "sitecustomize.py").write_text(HASTENED)
    out = folder / "out"
    code, printed, seconds = shell(
        plan.commands("0123456789ab", True)[0], out, folder, Path(interpreter.__file__).parent
    )
    assert code == 0, printed
    return out, printed, seconds


def test_a_dry_run_goes_through_every_section(dry_run: tuple[Path, str, float]) -> None:
    out, _, _ = dry_run
    results = json.loads((out / "results.json").read_text())
    sections = results["sections"]
    assert list(sections) == [section.name for section in gpu_sections.COMMANDS["measure"]]
    problems = {
        name: section.get("failures") or section.get("lines")
        for name, section in sections.items()
        if section["status"] not in ("ok", "skipped")
    }
    assert not problems
    assert {name for name, section in sections.items() if section["status"] == "skipped"} == {"resources", "profile"}
    assert results["dry_run"]
    assert results["commit"] == sections["environment"]["commit"] == "0123456789ab"
    assert all(section["dry_run"] for section in sections.values())
    rows = [row for section in sections.values() for row in section.get("rows", ())]
    assert len(rows) > 20
    assert all(row["dry_run"] and row["median_ms"] > 0 for row in rows)


def test_a_dry_run_times_the_interpreted_kernels_after_checking_them(dry_run: tuple[Path, str, float]) -> None:
    sections = json.loads((dry_run[0] / "results.json").read_text())["sections"]
    parts = [sections[name] for name in ("attention", "attention-rest")]
    rows = [row for part in parts for row in part["rows"] if row["contender"] == "fastbert"]
    assert {row["workload"] for row in rows} == set(gpu_attention.case_names(True))
    assert {row["details"]["backend"] for row in rows} == {"triton"}
    assert {row["outputs"] for row in rows} == {"close"}
    assert all(0 < row["max_abs_difference"] < 0.1 for row in rows), "compared with float64, in bf16"
    softmax = [row for row in sections["softmax"]["rows"] if row["contender"] == "fastbert"]
    assert {(row["details"]["backend"], row["outputs"]) for row in softmax} == {("triton", "close")}
    positions = [row for row in sections["positions"]["rows"] if row["contender"] == "fastbert"]
    assert {row["workload"] for row in positions} == set(gpu_positions.case_names(True))
    assert {(row["details"]["backend"], row["outputs"]) for row in positions} == {("triton", "close")}
    assert [variant["seconds"] > 0 for variant in sections["compile-rest"]["variants"]] == [True]


def test_a_dry_run_measures_the_fused_operations_beside_eager_torch(dry_run: tuple[Path, str, float]) -> None:
    sections = json.loads((dry_run[0] / "results.json").read_text())["sections"]
    for section, names in (
        ("fused", [case for name in gpu_fused.case_names(True) for case in gpu_fused.workloads(name)]),
        ("linear", gpu_linear.case_names(True)),
        ("loss", gpu_loss.case_names(True)),
        ("layer", gpu_layer.case_names(True)),
        ("encoder", gpu_models.encoder_names(True)),
        ("pretraining", gpu_steps.pretraining_names(True)),
    ):
        rows, unmeasured = sections[section]["rows"], sections[section]["unmeasured"]
        by_workload = {row["workload"]: row for row in rows if row["contender"] == "fastbert"}
        absent = {row["workload"] for row in unmeasured if row["contender"] == "fastbert" and row["reason"]}
        assert set(by_workload) | absent == set(names), section
        kernels = [row for row in by_workload.values() if row["details"].get("backend") == "triton"]
        assert {row["outputs"] for row in kernels} <= {"close"}, kernels
        others = {row["workload"] for row in rows if row["contender"] not in ("fastbert", "fastbert graphs")}
        assert others == {name for name in names if "large" not in name}, section
    for section in ("loss", "layer"):
        compared = [row for row in sections[section]["rows"] if row["contender"] == "fastbert"]
        assert {row["outputs"] for row in compared} == {"close"}, compared
        assert all(row["max_abs_difference"] > 0 for row in compared)
    assert {row["contender"] for row in sections["pretraining"]["unmeasured"]} == {"fastbert graphs"}, "on a CPU"
    assert {row["outputs"] for row in sections["pretraining"]["rows"]} == {"close"}, "rivals too"


def test_a_dry_run_leaves_few_files_and_judges_nothing(dry_run: tuple[Path, str, float]) -> None:
    out, printed, seconds = dry_run
    assert {file.name for file in out.iterdir()} <= {
        "results.json", "log.txt", "attention.png", "fused.png", "layers.png", "throughput.png",
    }, "and ncu.txt: seven"  # fmt: skip
    last = printed.splitlines()[-2:]
    assert last[0].split() == ["goal", "target", "measured", "verdict"]
    assert last[1].endswith("unmeasured: figures of a dry run mean nothing")
    assert "met" not in printed.replace("unmet", "")
    assert seconds < 80 * max(PATIENCE, measured()), "the machine may have become slower since the tests began"


# Found by every process of a run before all others: importing torch is slow, attention with positions hangs.
FAULTS = """
import importlib.abc, importlib.util, sys, time

def hang(**arguments):
    print("this case hangs", file=sys.stderr, flush=True)
    time.sleep(600)

class Faults(importlib.abc.MetaPathFinder):
    names = {"torch", "fastbert.benchmarks.gpu.positions"}

    def find_spec(self, name, path, target=None):
        if name not in self.names:
            return None
        self.names.remove(name)
        if name == "torch":
            time.sleep(0.5)
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def spoiled(module):
            run(module)
            module.run_case = hang

        spec.loader.exec_module = spoiled
        return spec

sys.meta_path.insert(0, Faults())
"""


def test_a_run_that_is_killed_in_a_hanging_case_keeps_what_it_had(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="a dry run interprets the kernels")
    (tmp_path / "sitecustomize.py").write_text(FAULTS)
    tuning, out = tmp_path / "tuning.json", tmp_path / "out"
    tuning.write_text(json.dumps({"format": tables.FORMAT, "kernels": tables.fingerprint(), "entries": {"sm_90": {}}}))
    flags = ["--only", "environment,ceilings,softmax,positions", "--dry-run", "--tuning", tuning, "--profile"]
    command = [sys.executable, "benchmarks/gpu.py", "measure", "--out", out, "--commit", "0123456789ab", *flags]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment["PYTHONPATH"] = str(tmp_path)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    log, deadline = out / "log.txt", time.monotonic() + 300
    try:
        while not log.exists() or "this case hangs" not in log.read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    finally:
        process.kill()
        process.wait()
    results = json.loads((out / "results.json").read_text())
    assert results["commit"] == "0123456789ab"
    assert "torch" in results["versions"]
    environment_section = results["sections"]["environment"]
    assert environment_section["gpu"]["name"] == "cpu"
    assert environment_section["tuning"] == {"entries": {"sm_90": {}}}
    rows = {name: section.get("rows", []) for name, section in results["sections"].items()}
    assert {row["workload"] for row in rows["ceilings"]} == {"copy", "matmul 32"}
    assert {row["workload"] for row in rows["softmax"]} == set(gpu_softmax.case_names(True))
    assert children, "the process that hung"
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in children):
        assert time.monotonic() < deadline, "it ends with its parent"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_dry_run_of_tests_and_tuning_leaves_names_and_spills(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="tuning compiles")
    code, printed, _ = shell(plan.commands("0123456789ab", True)[1], tmp_path)
    assert code == 0, printed
    assert {file.name for file in tmp_path.iterdir()} == {
        "tests.json", "tests.xml", "tests.txt", "tune.json", "tuning.json", "log.txt",
    }  # fmt: skip
    tests = json.loads((tmp_path / "tests.json").read_text())
    assert tests["commit"] == "0123456789ab"
    assert tests["sections"]["tests"]["counts"].keys() <= {"passed", "skipped"}, "a CPU has none to run"
    suite = xml.etree.ElementTree.parse(tmp_path / "tests.xml").getroot()
    assert int(suite.attrib["tests"]) == sum(tests["sections"]["tests"]["counts"].values()) > 0
    tune = json.loads((tmp_path / "tune.json").read_text())["sections"]["tune"]
    assert tune["status"] == "ok"
    spilled = [trial for trial in tune["trials"] if trial["problem"].startswith("spills ")]
    timed = [trial for trial in tune["trials"] if trial["ms"] is not None]
    assert len(timed) == 2
    assert [trial["ms"] for trial in spilled] == [None]
    assert json.loads((tmp_path / "tuning.json").read_text())["entries"].keys() == {"sm_90"}
