"""What a run costs, and the optional fields of metrics.jsonl that hold it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from fastbert import BertConfig, WordPieceTokenizer
from fastbert.errors import CheckpointError, UserError
from fastbert.planning.flops import BatchStatistics, ModelFlops
from fastbert.planning.peak import GPUS
from fastbert.training.meters import RunMeters, peak_memory
from fastbert.training.metrics import MEASURED, Metrics, MetricsLog, read_metrics

CPU = torch.device("cpu")
LINE = Metrics(
    step=1, split="train", loss=2.0, mlm_loss=2.0, nsp_loss=None, mlm_accuracy=0.1, nsp_accuracy=None, tokens=10,
    tokens_per_second=5.0, learning_rate=1e-4, seconds=1.0,
)  # fmt: skip


def test_time_is_counted_by_activity_also_when_a_block_raises() -> None:
    now = iter([0.0, 1.5, 2.0, 2.25, 10.0, 14.0, 20.0, 21.0])
    peaks = iter([1e12])
    flops = ModelFlops(BertConfig.preset("tiny"), "mlm")
    meters = RunMeters(CPU, model=flops, peak=lambda: next(peaks), clock=lambda: next(now))
    with meters.timed("data"):
        pass
    with pytest.raises(RuntimeError), meters.timed("data"):
        raise RuntimeError
    with meters.timed("validation"):
        pass
    with meters.timed("checkpoint"):
        pass
    meters.count(1e12)
    meters.count(2e12)
    state = json.loads(json.dumps(meters.to_state()))
    values = meters.fields(seconds=10.0, gradient_norm=0.5, skipped=1)
    assert values.pop("memory_bytes") > 1 << 20
    assert values == {
        "gradient_norm": 0.5, "mfu": 0.3, "skipped_steps": 1, "data_seconds": 1.75, "validation_seconds": 4.0,
        "checkpoint_seconds": 1.0,
    }  # fmt: skip
    assert "mfu" not in meters.fields(seconds=10.0), "the FLOPs begin anew with each line"
    meters.count(5e12)
    assert meters.fields(seconds=10.0)["mfu"] == 0.5, "the peak is found once"
    assert meters.mfu(1e12, 0.0) is None
    resumed = RunMeters(CPU, model=flops, peak=lambda: 1e12)
    resumed.restore(state)
    assert resumed.seconds == meters.seconds
    assert resumed.fields(seconds=10.0)["mfu"] == 0.3
    resumed.restore({})
    assert resumed.seconds["data"] == 0.0, "a checkpoint from before the meters"
    for damaged in ({"flops": "1"}, {"data_seconds": None}, {"data_seconds": True}, [1]):
        with pytest.raises(CheckpointError, match="meters"):
            resumed.restore(damaged)  # type: ignore[arg-type]


def test_the_utilisation_of_a_model_is_its_flops_over_those_of_the_machine() -> None:
    config = BertConfig.preset("tiny")
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"])
    batch = tokenizer.pack(["a b c", "a b"], max_length=16)
    meters = RunMeters.of_model(config, "mlm", CPU, torch.float32)
    flops = meters.flops_of([batch, batch])
    assert flops == pytest.approx(2 * ModelFlops(config, "mlm").of(BatchStatistics.of([batch])))
    share = meters.mfu(1e9, 1.0)
    assert share is not None
    assert 1e-5 < share < 10, "of a peak between 100 MFLOP/s and 100 TFLOP/s"
    bare = RunMeters(CPU)
    assert bare.flops_of([batch]) == 0.0
    bare.count(1e9)
    assert "mfu" not in bare.fields(seconds=1.0)
    assert (peak_memory(CPU) or 0) > 1 << 20


def test_the_peak_of_a_gpu_is_that_of_the_dtype_of_its_matmuls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    h100, config = GPUS["h100"], BertConfig.preset("tiny")
    for dtype, tf32, rate in (
        (torch.float32, False, h100.single),
        (torch.float32, True, h100.tf32),
        (torch.bfloat16, False, h100.half),
    ):
        meters = RunMeters.of_model(config, "mlm", torch.device("cuda"), dtype, devices=2, tf32=tf32)
        assert meters.mfu(1e12, 1.0) == pytest.approx(1 / rate / 2)


def test_costs_are_written_where_they_are_known_and_older_lines_load(tmp_path: Path) -> None:
    assert set(LINE.record()) == set(asdict(LINE)) - {name for name, value in asdict(LINE).items() if value is None} | {
        "nsp_loss",
        "nsp_accuracy",
    }
    told: list[dict[str, object]] = []
    log = MetricsLog(tmp_path / "metrics.jsonl", None, told.append)
    meters = RunMeters(CPU, model=ModelFlops(BertConfig.preset("tiny"), "mlm"), peak=lambda: 1e12)
    meters.count(1e11)
    costs = replace(LINE, step=2, **meters.fields(seconds=1.0, gradient_norm=1.0))
    for line in (LINE, costs):
        log.append(line.record())
    assert read_metrics(tmp_path / "metrics.jsonl") == [LINE, costs]
    assert told == [LINE.record(), costs.record()]
    assert {name for name in MEASURED if name in costs.record()} == set(MEASURED)
    for wrong in ({"surprise": 1}, {"step": {}}, {"step": 1.5}, {"step": None}, {"loss": "1"}, {"split": "test"}):
        (tmp_path / "metrics.jsonl").write_text(json.dumps({**LINE.record(), **wrong}) + "\n\n")
        with pytest.raises(UserError, match="line 1 is not a metrics record"):
            read_metrics(tmp_path / "metrics.jsonl")
