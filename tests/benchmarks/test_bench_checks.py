"""The benchmark of checks on a tiny model: its rows, and that a step reports what a run does."""

import json
from pathlib import Path

import pytest
import torch

from fastbert.benchmarks import bench_checks
from fastbert.benchmarks.harness import records
from fastbert.config import BertConfig


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, threads: None) -> None:
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=2000, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    monkeypatch.setattr(BertConfig, "preset", lambda name: config)
    monkeypatch.setattr(bench_checks, "SEQUENCES", 2)


def test_steps_and_loading_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    assert bench_checks.main(["--models", "tiny", "--rounds", "1", "--json", str(file)]) == 0
    record = {**json.loads(file.read_text()), "commit": "0123456789ab"}  # none in an installed package
    assert records.problems(record, "checks", records.machine_class(record["machine"])) == []
    step, load, sentence = record["rows"]
    assert step["share"] == pytest.approx(step["checks_processor_ms"] / step["step_ms"], rel=0.05)
    assert step["steps"] == 10, "with a line of metrics.jsonl"
    assert (load["workload"], sentence["workload"]) == ("tiny, load", "tiny, first-sentence")
    assert all(row["verified_seconds"] > 0 for row in (load, sentence))
    assert capsys.readouterr().out.count("of it are checks") == 3


def test_a_step_is_logged_as_in_a_run(tmp_path: Path) -> None:
    training = bench_checks.CheckedTraining("tiny", torch.device("cpu"), torch.float32, tmp_path)
    for _ in range(training.log_every):
        training.before()
        training.step()
        training.after()
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps] == list(range(1, training.log_every + 1))
    assert "weights" in steps[-1]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert len(training.monitors.spikes.losses) == training.log_every
