"""The encoder benchmark from end to end on toy sizes: workloads, peers, files, and Ctrl-C."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cpu_rows import row
from rich.console import Console

from fastbert import _C
from fastbert.benchmarks import bench_encoder, peers
from fastbert.benchmarks.bench_encoder import Options
from fastbert.benchmarks.cpu import contender as cpu_contender
from fastbert.benchmarks.cpu import lineup, peak, report, workloads
from fastbert.benchmarks.cpu.contender import CpuContender
from fastbert.benchmarks.cpu.lineup import Absent, Result
from fastbert.benchmarks.harness import command_line, measure, records
from fastbert.benchmarks.harness.measure import Row
from fastbert.benchmarks.peers import Entry
from fastbert.config import BertConfig
from fastbert.errors import UserError

pytestmark = pytest.mark.usefixtures("threads")

TOY = BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)
DESIGNED = {"workload", "contender", "median_ms", "p20", "p80", "tokens_per_second", "ratio_to_fastbert"}
DESIGNED |= {"max_abs_difference", "dtype", "threads"}
COMPILED = ("torch.compile fp32", "torch.compile bf16")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_encoder.save_model(tmp_path_factory.mktemp("model"), TOY)


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_contender, "TURN_SECONDS", 0.003)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything small: the model, the batches, the peak."""
    monkeypatch.setattr(Options, "config", TOY)
    batches = [workloads.batch("toy", [3, 7, 1], 8, TOY), workloads.batch("one", [5], 5, TOY)]
    monkeypatch.setattr(workloads, "batches", lambda config, quick: batches)
    monkeypatch.setattr(bench_encoder, "find_data", lambda named: None)
    monkeypatch.setattr(peak, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(_C, "cpu_peak", lambda dtype, threads, seconds: 1e11, raising=False)


# Workloads


def test_lognormal_lengths_fill_as_much_as_is_said() -> None:
    lengths = workloads.lognormal_lengths(32, 128)
    assert sum(lengths) / (32 * 128) == pytest.approx(0.37, abs=0.002)
    assert max(lengths) == 128
    assert min(lengths) > 5
    assert lengths == workloads.lognormal_lengths(32, 128)


@pytest.mark.parametrize("lengths", [pytest.param([12], id="one"), pytest.param([8, 8, 8], id="three")])
def test_operations_are_those_that_torch_counts(lengths: list[int], model: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    adapter = peers.load("encoder", "transformers eager fp32")(
        model, dtype="fp32", attention="eager", threads=1, scratch=model
    )
    workload = workloads.batch("full", lengths, lengths[0], TOY)
    adapter.open(workload.arrays)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        adapter.call(**adapter.inputs)
    assert workload.operations == counted.get_total_flops()


def test_quick_workloads_have_the_names_of_the_others() -> None:
    names = [workload.name for workload in workloads.batches(TOY, quick=True)]
    assert names == ["lognormal", "full-128", "full-512", "latency-16", "latency-128"]


# Adapters


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in COMPILED else (), id=name)
        for name in peers.names("encoder")
        if name != "transformers eager fp32"
    ],
)
def test_every_adapter_gives_the_hidden_states_of_real_tokens(name: str, model: Path, tmp_path: Path) -> None:
    if peers.missing("encoder", name):
        pytest.skip(f"{name} is not installed")
    path = tmp_path / "workload.npz"
    workloads.batch("toy", [3, 7, 1], 8, TOY).save(path)
    results = {}
    for index, one in enumerate(("transformers eager fp32", name)):
        contender = CpuContender("encoder", one, str(model), 1, str(tmp_path / "scratch"))
        try:
            contender.load()
            opened = contender.open(str(path))
        except NotImplementedError as error:  # also a dtype that this processor lacks
            pytest.skip(str(error))
        assert opened["calls_per_round"] >= 1
        assert contender.time().seconds > 0
        contender.save(str(tmp_path / f"{index}.npy"))
        results[one] = np.load(tmp_path / f"{index}.npy")
    expected, values = results.values()
    assert values.dtype == np.float32
    assert values.shape == (11, TOY.hidden_size)
    verdict = lineup.compare(expected, values, lineup.dtype_of("encoder", name), "reference")
    assert verdict.outputs in measure.AGREEING


@pytest.mark.parametrize("name", peers.names("matmul"))
def test_every_product_is_the_product(name: str, tmp_path: Path) -> None:
    [workload, *_] = workloads.matmuls(TOY, quick=True)
    make, engine = peers.load("matmul", name), torch.backends.quantized.engine
    adapter = make(None, threads=1, scratch=tmp_path, **peers.options("matmul", name))
    try:
        assert adapter.open(workload.arrays) == {"weights": TOY.num_hidden_layers}
    except RuntimeError as error:
        if "needs the cpu support" in str(error):  # oneDNN's bf16 is for processors that have it
            pytest.skip(str(error).splitlines()[0])
        raise
    finally:
        torch.backends.quantized.engine = engine
    x, bias = workload.arrays["x"].astype(np.float64), workload.arrays["bias"]
    for weight in workload.arrays["weight"]:
        exact = (x @ weight.T.astype(np.float64) + bias).astype(np.float32)
        verdict = lineup.compare(exact, adapter.values(adapter.run()), peers.options("matmul", name)["dtype"], "")
        assert verdict.outputs in measure.AGREEING


# From end to end


class Fake:
    """An adapter that returns the reference's values times what it was told, or fails."""

    def __init__(self, folder: Path, *, dtype: str, threads: int, scratch: Path, shift: float, fails: str = "") -> None:
        if fails == "load":
            raise NotImplementedError("no such instruction")
        self.shift, self.fails = shift, fails
        self.engine = peers.load("encoder", "fastbert fp32")(folder, dtype="fp32", threads=threads, scratch=scratch)

    def open(self, arrays: Any) -> dict[str, Any]:
        return {**self.engine.open(arrays), "note": "a fake"}

    def run(self) -> Any:
        return self.engine.run()

    def values(self, result: Any) -> np.ndarray:
        if self.fails == "values" and len(self.engine.batch) == 1:
            raise RuntimeError("broke on the second workload")
        return self.engine.values(result) + self.shift


def test_from_end_to_end(monkeypatch: pytest.MonkeyPatch, toy: None, tmp_path: Path) -> None:
    fakes: dict[str, dict[str, Any]] = {
        "good": {"shift": 0.0},
        "wrong": {"shift": 3.0},
        "unable": {"shift": 0.0, "fails": "load"},
        "breaking": {"shift": 0.0, "fails": "values"},
    }
    entries = {
        f"{name} fp32": Entry("fake", "Fake", ("torch",), (), {"dtype": "fp32"} | more) for name, more in fakes.items()
    }
    entries["absent bf16"] = Entry("fake", "Fake", ("no_such_module",), (), {"dtype": "bf16"})
    kept = {name: peers.REGISTRY["encoder"][name] for name in ("fastbert fp32", "fastbert bf16")}
    monkeypatch.setitem(peers.REGISTRY, "encoder", kept | entries)
    monkeypatch.setitem(lineup.REFERENCES, "encoder", ("absent bf16", "fastbert fp32"))
    load = peers.load
    monkeypatch.setattr(peers, "load", lambda kind, name: Fake if name in entries else load(kind, name))
    messages: list[str] = []
    steps: list[int] = []
    options = Options(rounds=2, threads=1, isolate=False)
    result = bench_encoder.run(options, messages.append, lambda done, total, name: steps.append(done))
    assert steps == [0, 1, 2]

    results = {(row.workload, row.contender): row for row in result.rows}
    names = ["fastbert fp32", "fastbert bf16", "good fp32", "wrong fp32"]
    assert list(results) == [("toy", name) for name in [*names, "breaking fp32"]] + [("one", name) for name in names]
    assert {row.contender: row.agrees for row in result.rows} == {
        "fastbert fp32": True,
        "fastbert bf16": True,
        "good fp32": True,
        "wrong fp32": False,
        "breaking fp32": True,
    }
    good = results["toy", "good fp32"]
    assert good.outputs == "equal"
    assert good.details["note"].endswith("a fake")
    assert good.details["reference"] == "fastbert fp32"
    assert good.details["gflops"] > 0
    assert good.details["share_of_peak"] > 0
    assert "share_of_model" not in good.details
    assert results["toy", "fastbert bf16"].details["share_of_model"] > 0
    assert list(results["toy", "fastbert bf16"].details["model_ms"]) == ["matmuls", "attention", "bytes"]
    reasons = {(row.workload, row.contender): row.reason for row in result.absent}
    assert reasons["toy", "absent bf16"] == reasons["one", "absent bf16"] == "not installed (no module no_such_module)"
    assert reasons["toy", "unable fp32"] == reasons["one", "unable fp32"] == "NotImplementedError: no such instruction"
    assert reasons["one", "breaking fp32"] == "RuntimeError: broke on the second workload"

    monkeypatch.setattr(peers, "distributions", lambda kind: ("torch",))
    path, picture = tmp_path / "new" / "rows.json", tmp_path / "chart.png"
    bench_encoder.publish(result, options, path, picture)
    record = json.loads(path.read_text())
    assert set(record) >= set(records.FIELDS)
    objects = record["rows"]
    assert len(objects) == len(result.rows) + len(result.absent)
    assert all(set(record) >= DESIGNED for record in objects)
    assert [record["median_ms"] for record in objects if record["outputs"] == "not measured"] == [None] * len(
        result.absent
    )
    assert picture.stat().st_size > 10_000
    assert sorted(file.name for file in (*tmp_path.iterdir(), *path.parent.iterdir())) == [
        "chart.png",
        "new",
        "rows.json",
    ]
    printed = io.StringIO()
    report.show(result, Console(file=printed))
    assert "does not agree: cosine" in printed.getvalue()
    assert "not measured: NotImplementedError: no such instruction" in printed.getvalue()


def test_a_table_of_nothing_but_absent_contenders(tmp_path: Path) -> None:
    result = Result([], [Absent("toy", "other fp32", "fp32", "not installed (no module other)")])
    printed = io.StringIO()
    report.show(result, Console(file=printed))
    assert "other fp32" in printed.getvalue()
    [one] = report.record_rows(result)
    assert one["details"] == {"reason": "not installed (no module other)"}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux to find processes")
def test_an_interrupted_benchmark_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-P", bench_encoder.__file__, "--quick", "--threads", "1", "--rounds", "100000"]
    command += ["--contenders", "fastbert fp32", "--workloads", "latency-16", "--json", str(tmp_path / "rows.json")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, start_new_session=True) as process:
        assert process.stderr is not None
        assert b"latency-16" in process.stderr.readline()
        while not (children := children_of(process.pid)):
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        try:
            _, message = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 130
    assert b"interrupted" in message
    assert b"Traceback" not in message
    assert not any(map(is_running, children))
    assert list(tmp_path.iterdir()) == []


def is_running(pid: str) -> bool:
    """Return whether a process runs: one that has ended may wait for the system to take note of it."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


# Flags


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"device": "cuda"}, "--device cuda: this measures the CPU", id="device"),
        pytest.param({"model": "huge"}, "--model huge is not one of tiny, mini", id="model"),
        pytest.param({"threads": 0}, "--threads 0 must be from 1", id="threads"),
        pytest.param({"rounds": 0}, "--rounds 0 must be at least 1", id="rounds"),
        pytest.param(
            {"contenders": ("nano",)}, "no contender has 'nano' in its name; there are fastbert", id="contender"
        ),
        pytest.param({"workloads": ("none",), "model": "tiny"}, "no workload has 'none' in its name", id="workload"),
    ],
)
def test_wrong_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Options(**options)


def test_a_picture_that_cannot_be_written_is_refused_before_the_measurement(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--chart rows.txt must end in .png"):
        command_line.check_files(None, Path("rows.txt"))
    with pytest.raises(UserError, match="is a folder"):
        command_line.check_files(tmp_path, None)


def test_the_command(
    toy: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    from fastbert.cli import main

    seen: list[Options] = []

    def measured(options: Options, say: Any, progress: Any) -> Result:
        seen.append(options)
        return Result(lineup.with_ratios([row("fastbert fp32", 2.0)]), [])

    monkeypatch.setattr(lineup, "with_ratios", lambda rows: [with_rate(row) for row in rows])
    monkeypatch.setattr(bench_encoder, "run", measured)
    flags = ["--device", "cpu", "--rounds", "1", "--contenders", "fastbert", "--json", str(tmp_path / "rows.json")]
    assert main(["bench", "encoder", *flags]) == 0
    assert seen == [Options(device="cpu", rounds=1, contenders=("fastbert",))]
    assert "fastbert fp32" in capsys.readouterr().out
    record = json.loads((tmp_path / "rows.json").read_text())
    assert [row["contender"] for row in record["rows"]] == ["fastbert fp32"]
    assert main(["bench", "encoder", "--vocab", "x"]) == 2
    assert (
        "unknown flag --vocab, which `fastbert bench tokenizer` and `fastbert bench training` have"
        in capsys.readouterr().err
    )


def with_rate(one: Row) -> Row:
    one.details.update(gflops=1.0, ratio_to_same_dtype=1.0)
    return one
