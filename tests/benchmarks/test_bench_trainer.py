"""The benchmark beside transformers' Trainer: equal losses pass, different ones do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fastbert.benchmarks import bench_trainer
from fastbert.benchmarks.bench_trainer import Shape
from fastbert.benchmarks.training import planned_run
from fastbert.cli import main
from fastbert.config import PRESETS

pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' Trainer needs it")

ARGUMENTS = ["--model", "tiny", "--batch-size", "8", "--max-length", "32", "--lr", "5e-3"]


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A toy model and little text."""
    monkeypatch.setitem(PRESETS, "tiny", (2, 32, 2))
    for module, name, value in (
        (planned_run, "CORPUS_BYTES", 30_000),
        (planned_run, "LEARNED", 250),
        (bench_trainer, "VOCABULARY", 256),
    ):
        monkeypatch.setattr(module, name, value)


def test_losses_are_those_of_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fastbert.benchmarks.peers import transformers_trainer
    from fastbert.benchmarks.peers.transformers_trainer import Settings

    changes: dict[str, Any] = {}

    def in_this_process(command: list[str], threads: int, folder: Path) -> None:
        module, *arguments = command[3:]
        if module == "fastbert":
            assert main(arguments) == 0
        else:
            settings = {**json.loads(Path(arguments[0]).read_text()), **changes}
            transformers_trainer.train(Settings(**settings))

    monkeypatch.setattr(bench_trainer, "call", in_this_process)
    monkeypatch.setattr(bench_trainer, "PRETRAINING", (Shape(1, 1), Shape(1, 2)))
    monkeypatch.setattr("fastbert.training.pretrain.plot_runs", lambda runs, file, **options: file.write_bytes(b""))
    threads = torch.get_num_threads()
    file = tmp_path / "rows.json"
    try:
        shards = planned_run.prepare_shards(tmp_path, bench_trainer.VOCABULARY)
        arguments = [*ARGUMENTS, "--steps", "12", "--workloads", "mlm+nsp", "--data", str(shards)]
        assert bench_trainer.main([*arguments, "--json", str(file)]) == 0
        rows = json.loads(file.read_text())["rows"]
        assert [(row["processes"], row["micro_batches"], row["steps"]) for row in rows] == [(1, 1, 12), (1, 2, 12)]
        assert all(row["largest_relative_difference"] < 2e-5 for row in rows)
        assert all(row["last_loss"] < row["first_loss"] - 0.1 for row in rows), "something is learned"
        # Another rule of training is seen.
        changes["weight_decay"] = 0.5
        monkeypatch.setattr(bench_trainer, "PRETRAINING", (Shape(1, 1),))
        assert bench_trainer.main(arguments) == 1
        assert "MORE THAN 0.0001" in capsys.readouterr().out
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_several_processes_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    arguments = [*ARGUMENTS, "--steps", "6", "--workloads", "mlm", "--json", str(file)]
    assert bench_trainer.main(arguments) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [(row["processes"], row["micro_batches"]) for row in rows] == [(1, 1), (2, 1), (2, 2)]


def test_flags_that_cannot_be_compared_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_trainer.main(["--batch-size", "6"])
    assert "--batch-size a multiple of 4" in capsys.readouterr().err
