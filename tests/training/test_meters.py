"""What a run costs, and the optional fields of metrics.jsonl that hold it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from fastbert.errors import CheckpointError, UserError
from fastbert.training.meters import RunMeters, gpu_peak, peak_flops, peak_memory
from fastbert.training.metrics import MEASURED, Metrics, MetricsLog, read_metrics

CPU = torch.device("cpu")
LINE = Metrics(
    step=1, split="train", loss=2.0, mlm_loss=2.0, nsp_loss=None, mlm_accuracy=0.1, nsp_accuracy=None, tokens=10,
    tokens_per_second=5.0, learning_rate=1e-4, seconds=1.0,
)  # fmt: skip


def test_time_is_counted_by_activity_also_when_a_block_raises() -> None:
    now = iter([0.0, 1.5, 2.0, 2.25, 10.0, 14.0, 20.0, 21.0])
    meters = RunMeters(CPU, peak_flops=1e12, clock=lambda: next(now))
    with meters.timed("data"):
        pass
    with pytest.raises(RuntimeError), meters.timed("data"):
        raise RuntimeError
    with meters.timed("validation"):
        pass
    with meters.timed("checkpoint"):
        pass
    meters.skip()
    values = meters.fields(flops=3e12, seconds=10.0, gradient_norm=0.5)
    assert values.pop("memory_bytes") > 1 << 20
    assert values == {
        "gradient_norm": 0.5, "mfu": 0.3, "skipped_steps": 1, "data_seconds": 1.75, "validation_seconds": 4.0,
        "checkpoint_seconds": 1.0,
    }  # fmt: skip
    assert RunMeters(CPU).mfu(1e12, 1.0) is None
    assert meters.mfu(1e12, 0.0) is None
    assert "mfu" not in meters.fields()
    resumed = RunMeters(CPU)
    resumed.restore(json.loads(json.dumps(meters.to_state())))
    assert (resumed.seconds, resumed.skipped_steps) == (meters.seconds, 1)
    resumed.restore({})
    assert resumed.skipped_steps == 0, "a checkpoint from before the meters"
    for state in ({"skipped_steps": "1"}, {"data_seconds": None}, {"skipped_steps": True}):
        with pytest.raises(CheckpointError, match="meters"):
            resumed.restore(state)


def test_costs_are_written_where_they_are_known_and_older_lines_load(tmp_path: Path) -> None:
    assert set(LINE.record()) == set(asdict(LINE)) - {name for name, value in asdict(LINE).items() if value is None} | {
        "nsp_loss",
        "nsp_accuracy",
    }
    told: list[dict[str, object]] = []
    log = MetricsLog(tmp_path / "metrics.jsonl", None, told.append)
    costs = replace(LINE, step=2, **RunMeters(CPU, peak_flops=1e12).fields(flops=1e11, seconds=1.0, gradient_norm=1.0))
    for line in (LINE, costs):
        log.append(line.record())
    assert read_metrics(tmp_path / "metrics.jsonl") == [LINE, costs]
    assert told == [LINE.record(), costs.record()]
    assert {name for name in MEASURED if name in costs.record()} == set(MEASURED)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({**LINE.record(), "surprise": 1}) + "\n\n")
    with pytest.raises(UserError, match="line 1 is not a metrics record"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_peaks() -> None:
    measured = peak_flops(CPU, torch.float32)
    assert measured is not None
    assert 1e8 < measured < 1e14
    assert gpu_peak("NVIDIA H100 80GB HBM3", torch.bfloat16) == 989e12
    assert gpu_peak("NVIDIA H100 PCIe", torch.bfloat16) == 756e12
    assert gpu_peak("NVIDIA A100-SXM4-40GB", torch.float32) == 19.5e12
    assert gpu_peak("Tesla T4", torch.float16) == 65e12
    assert gpu_peak("NVIDIA L4", torch.float16) == 121e12
    assert gpu_peak("NVIDIA L40S", torch.float16) == 362e12
    assert gpu_peak("Some Other GPU", torch.float16) is None
    assert (peak_memory(CPU) or 0) > 1 << 20
