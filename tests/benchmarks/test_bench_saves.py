"""The benchmark of saves on a tiny model: stalls, rows and the comparison of the checkpoint."""

import json
from pathlib import Path

import pytest
import torch

from fastbert.benchmarks import bench_saves
from fastbert.benchmarks.harness import records
from fastbert.config import BertConfig
from fastbert.training.saving import Checkpoints
from fastbert.training.snapshot import Snapshot, SnapshotBuffers


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    config = BertConfig(
        vocab_size=2000, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    monkeypatch.setattr(BertConfig, "preset", lambda name: config)
    monkeypatch.setattr(bench_saves, "SEQUENCES", {"tiny": 2})
    monkeypatch.setattr(bench_saves, "BASELINE_STEPS", 1)


def test_both_kinds_of_saves_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    arguments = ["--models", "tiny", "--rounds", "1", "--folder", str(tmp_path), "--json", str(file)]
    assert bench_saves.main(arguments) == 0
    record = json.loads(file.read_text())
    assert records.problems(record, "saves", records.machine_class(record["machine"])) == []
    behind, at_once = record["rows"]
    assert (behind["workload"], at_once["workload"]) == ("tiny, --async-save on", "tiny, --async-save off")
    assert behind["snapshot_bytes"] > 12 * 2000 * 64
    for row in (behind, at_once):
        assert row["share_at_one_per_5_minutes"] == pytest.approx(row["cost_seconds"] / 300, abs=1e-5)
        assert row["stall_ms"] > 0
    assert capsys.readouterr().out.count("stall") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]


def test_a_checkpoint_of_a_later_state_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(buffers: SnapshotBuffers, source: Snapshot) -> Snapshot:
        model = {name: torch.zeros_like(tensor) for name, tensor in source.model.items()}
        return Snapshot(model, {name: tensor.clone() for name, tensor in source.optimizer.items()})

    training = bench_saves.Training("tiny", torch.device("cpu"), torch.float32)
    training.step()
    bench_saves._compare(training, Checkpoints(tmp_path, 1, background="on"), 1)
    monkeypatch.setattr(SnapshotBuffers, "copy", late)
    with pytest.raises(SystemExit, match="the checkpoint is not the state at its call"):
        bench_saves._compare(training, Checkpoints(tmp_path, 1, background="on"), 2)
