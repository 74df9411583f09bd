"""The training benchmark from end to end on toy sizes: peers, verdicts, losses, files."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from toy_workloads import TOY, text_file, toy_workload

from fastbert import _C
from fastbert.benchmarks import bench_training, peers
from fastbert.benchmarks.bench_training import Options
from fastbert.benchmarks.cpu import peak
from fastbert.benchmarks.cpu.lineup import Absent, Result
from fastbert.benchmarks.harness import measure, records
from fastbert.benchmarks.training import contender, lineup, loss_curve, memory, profile, report, workloads
from fastbert.benchmarks.training.contender import TrainingContender
from fastbert.benchmarks.training.loss_curve import Curves
from fastbert.errors import UserError

pytestmark = pytest.mark.usefixtures("threads")
DESIGNED = {"workload", "contender", "median_ms", "p20", "p80", "tokens_per_second", "ratio_to_fastbert"}
DESIGNED |= {"max_abs_difference", "dtype", "threads"}
PHASES = {"forward", "backward", "clip", "optimizer"}
ALWAYS = [name for name in peers.names("training") if "compile" not in name]
COMPILED = [name for name in peers.names("training") if "compile" in name]


# Contenders


@pytest.mark.parametrize("classifies", [pytest.param(False, id="pretraining"), pytest.param(True, id="classes")])
@pytest.mark.parametrize(
    "name",
    [
        *(name for name in ALWAYS if name != "transformers fp32"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in COMPILED),
    ],
)
def test_every_contender_takes_the_same_step(name: str, classifies: bool, tmp_path: Path) -> None:
    if peers.missing("training", name):
        pytest.skip(f"{name} is not installed")
    workload = toy_workload(classifies)
    model = bench_training.save_model(tmp_path / "model", workload)
    workload.save(tmp_path / "workload.npz")
    results = {}
    for number, one in enumerate(("transformers fp32", name)):
        contender = TrainingContender("training", one, str(model), 1, str(tmp_path / "scratch"))
        contender.load()
        before = {key: value.clone() for key, value in contender.peer.model.state_dict().items()}
        details = contender.open(str(tmp_path / "workload.npz"))
        assert details["calls_per_round"] % 2 == 0
        assert contender.time().seconds > 0
        contender.save(str(tmp_path / f"{number}.npy"))
        results[one] = np.load(tmp_path / f"{number}.npy")
        after = contender.peer.model.state_dict()
        assert all(not torch.equal(before[key], after[key]) for key in before if "weight" in key)
        assert all(parameter.grad is None for parameter in contender.peer.model.parameters())
    expected, values = results["transformers fp32"], results[name]
    dtype = peers.options("training", name)["dtype"]
    verdict = lineup.compare(expected, values, dtype, "transformers fp32")
    assert verdict.outputs in measure.AGREEING, verdict


def test_verdicts(seed: int) -> None:
    rng = np.random.default_rng(seed % 2**32)
    expected = np.concatenate(([7.0, 2.0], rng.standard_normal(300)))

    def verdict(dtype: str = "fp32", **changes: Any) -> str:
        actual = expected.copy()
        for place, factor in changes.items():
            actual[int(place[1:])] *= factor
        return lineup.compare(expected, actual, dtype, "reference").outputs

    assert verdict() == "equal"
    assert verdict(_0=1 + 1e-6, _1=1 + 1e-4) == "close"
    assert verdict(_0=1.001) == "loss off by 0.001, more than 1e-05"
    assert verdict("bf16", _0=1.001, _1=1.01) == "close"
    assert verdict("bf16", _1=1.05) == "gradient norm off by 0.05, more than 0.03"
    assert verdict(_0=float("nan")) == "loss or gradients are not finite"
    turned = np.concatenate((expected[:2], expected[:1:-1]))
    assert "gradient's cosine" in lineup.compare(expected, turned, "bf16", "").outputs
    assert lineup.compare(expected, expected[:9], "fp32", "").outputs == "9 compared values, not 302"


# Losses


def test_curves_are_compared_smoothed() -> None:
    reference = [10.0] * 20
    other = [10.0] * 9 + [12.0] + [10.0] * 9 + [11.0]
    actual = loss_curve.compare("other", other, reference)
    assert actual.final_loss == 10.5
    assert actual.final_off == pytest.approx(0.05)
    assert actual.drift == pytest.approx(0.1)


def test_a_loss_curve_from_end_to_end(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Options, "curve_config", TOY)
    monkeypatch.setattr(loss_curve, "SEQUENCES", 4)
    text = text_file(tmp_path / "text.txt", seed)
    options = Options(loss_curve=6, text=text, threads=1)
    steps: list[tuple[int, int]] = []
    actual = bench_training.run(options, lambda line: None, lambda done, whole, name: steps.append((done, whole)))
    assert isinstance(actual, Curves)
    assert steps[-1] == (24, 24)
    curves = {curve.name: curve for curve in actual.curves}
    assert list(curves) == list(loss_curve.KINDS)
    assert actual.config.hidden_dropout_prob == actual.config.attention_probs_dropout_prob == 0
    reference = curves["eager fp32"]
    assert (reference.final_off, reference.drift) == (0, 0)
    # Six steps of a toy, each on other text, need not end lower; but every one changes the model.
    assert min(reference.losses) > 0
    assert len(set(reference.losses)) == len(reference.losses)
    assert curves["fastbert fp32"].drift < 1e-4
    assert 0 < curves["fastbert bf16"].drift < 1e-2
    assert curves["fastbert bf16"].losses != reference.losses

    bench_training.publish(actual, options, tmp_path / "curve.json", tmp_path / "curve.png")
    record = json.loads((tmp_path / "curve.json").read_text())
    assert set(record) >= set(records.FIELDS)
    assert {row["name"] for row in record["rows"]} == set(curves)
    assert record["settings"]["steps"] == len(record["rows"][0]["losses"]) == 6
    assert {"threads", "model"} <= set(record["settings"])
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    printed = io.StringIO()
    loss_curve.show(actual, Console(file=printed, width=120))
    assert "loss over 6 steps" in printed.getvalue()
    assert "fastbert bf16" in printed.getvalue()


# From end to end


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything small: the batches, the peak, the turns."""
    made = {"toy": toy_workload, "classes": lambda: toy_workload(True)}
    monkeypatch.setattr(workloads, "builders", lambda sources: made)
    monkeypatch.setattr(peak, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(_C, "cpu_peak", lambda dtype, threads, seconds: 1e11, raising=False)
    monkeypatch.setattr(contender, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(contender, "MOST_PROFILED", 2)


def test_from_end_to_end(toy: None, tmp_path: Path) -> None:
    messages: list[str] = []
    options = Options(rounds=2, threads=1, isolate=False, profile=True, contenders=("bf16",))
    result = bench_training.run(options, messages.append)
    assert isinstance(result, Result)
    names = ["fastbert bf16", "transformers bf16"]
    assert [(row.workload, row.contender) for row in result.rows] == [
        (workload, name) for workload in ("toy", "classes") for name in names
    ]
    for row in result.rows:
        assert row.agrees, row
        assert row.tokens_per_second
        details = row.details
        assert details["reference"] == "transformers fp32"
        assert details["gflops"] > 0
        assert 0 < details["share_of_peak"] < 1
        assert details["loss"] > 0
        assert details["gradient_norm"] > 0
        assert set(details["profile"]["phases_ms"]) == PHASES
        if "memory" in details:
            parts = details["memory"]["parts_bytes"]
            assert set(parts) == set(memory.PARTS)
            assert sum(parts.values()) == details["memory"]["peak_bytes"]
            assert parts["weights"] > 4 * TOY.num_parameters()
            assert parts["optimizer"] > 8 * TOY.num_parameters()

    json_file, picture = tmp_path / "new" / "rows.json", tmp_path / "chart.png"
    bench_training.publish(result, options, json_file, picture)
    record = json.loads(json_file.read_text())
    assert set(record) >= set(records.FIELDS)
    objects = record["rows"]
    assert len(objects) == 4
    assert all(set(record) >= DESIGNED for record in objects)
    assert picture.stat().st_size > 10_000
    printed = io.StringIO()
    report.show(result, Console(file=printed, width=200))
    for heading in ("toy: peak memory, MB", "ms per step by phase", "ms per step by operation"):
        assert heading in printed.getvalue()


def test_a_contender_that_cannot_be_had_is_listed(toy: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = peers.REGISTRY["training"]["transformers bf16"]._replace(needs=("no_such_module",))
    monkeypatch.setitem(peers.REGISTRY["training"], "transformers bf16", entry)
    options = Options(
        rounds=1, threads=1, isolate=False, contenders=("fastbert fp32", "transformers bf16"), workloads=("classes",)
    )
    result = bench_training.run(options, lambda line: None)
    assert isinstance(result, Result)
    assert [row.contender for row in result.rows] == ["fastbert fp32"]
    reason = "not installed (no module no_such_module)"
    assert result.absent == [Absent("classes", "transformers bf16", "bf16", reason)]
    bench_training.publish(result, options, tmp_path / "rows.json", None)
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][-1]["details"] == {"reason": reason}


def test_what_is_explained_may_fail_without_losing_the_times(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no profiler here")

    monkeypatch.setattr(profile, "profile", broken)
    options = Options(
        rounds=1, threads=1, isolate=False, profile=True, contenders=("fastbert fp32",), workloads=("classes",)
    )
    result = bench_training.run(options, lambda line: None)
    assert isinstance(result, Result)
    [row] = result.rows
    assert row.median_ms > 0
    assert row.details["note"].endswith("not explained: RuntimeError: no profiler here")


# Flags


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"device": "cuda"}, "--device cuda: this measures the CPU", id="device"),
        pytest.param({"model": "huge"}, "--model huge is not one of tiny, mini", id="model"),
        pytest.param({"threads": 0}, "--threads 0 must be from 1", id="threads"),
        pytest.param({"rounds": 0}, "--rounds 0 must be at least 1", id="rounds"),
        pytest.param({"contenders": ("nano",)}, "no contender has 'nano' in its name; there are fastbert", id="who"),
        pytest.param({"workloads": ("none",)}, "no workload has 'none' in its name; there are base", id="workload"),
        pytest.param({"loss_curve": 0}, "--loss-curve 0 must be from 1 to", id="no steps"),
        pytest.param({"loss_curve": 5, "profile": True}, "--profile does not apply to --loss-curve", id="curve"),
        pytest.param({"loss_curve": 5, "rounds": 2}, "--rounds does not apply to --loss-curve", id="curve rounds"),
        pytest.param({"text": Path("nowhere.txt")}, "--text nowhere.txt: no such file", id="text"),
        pytest.param({"lengths": Path("nowhere.txt")}, "--lengths nowhere.txt: no such file", id="lengths"),
        pytest.param({"checkpoint": Path("nowhere")}, "nowhere: no such file; a model folder", id="checkpoint"),
        pytest.param({"vocab": Path(__file__)}, "--vocab belongs to --text", id="vocab"),
    ],
)
def test_wrong_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Options(**options)


def test_compiling_takes_part_only_when_it_is_named() -> None:
    assert Options().names() == ALWAYS
    assert Options(contenders=("bf16",)).names() == ["fastbert bf16", "transformers bf16"]
    assert Options(contenders=("compile",)).names() == COMPILED


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")
    from fastbert.cli import main

    seen: list[Options] = []

    def measured(options: Options, say: Any, progress: Any = None) -> Curves:
        seen.append(options)
        return Curves([loss_curve.compare("eager fp32", [2.0, 1.0], [2.0, 1.0])], TOY)

    monkeypatch.setattr(bench_training, "run", measured)
    flags = ["--loss-curve", "2", "--model", "mini", "--json", str(tmp_path / "curve.json")]
    assert main(["bench", "training", *flags]) == 0
    assert bench_training.main(flags) == 0
    assert seen == [Options(loss_curve=2, model="mini")] * 2
    assert "eager fp32" in capsys.readouterr().out
    assert json.loads((tmp_path / "curve.json").read_text())["settings"]["steps"] == 2
    assert main(["bench", "training", "--chart", "rows.txt"]) == 2
    assert "--chart rows.txt must end in .png" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        bench_training.main(["--json", str(tmp_path / "curve.json" / "rows.json")])
    assert stopped.value.code == 2
    assert f"{tmp_path / 'curve.json'} is not a folder: name another place" in capsys.readouterr().err


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench_training.main(["--threads", "0"])
    assert stopped.value.code == 2
    assert "error: --threads 0 must be from 1 to" in capsys.readouterr().err
