"""Trackers, the profile, the costs in metrics.jsonl and the model card of fine-tuning runs."""

import json
from dataclasses import replace
from pathlib import Path

import fake_tracker
import pytest
from finetune_runs import config

import fastbert
from fastbert.finetuning.run import finetune
from fastbert.training.reporter import Record, Reporter
from fastbert.training.stopping import Stopped
from fastbert.training.trackers.tracker import TRIAL, numbers


def test_trials_have_curves_of_their_own_over_an_interruption(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_tracker.install(monkeypatch)
    out = tmp_path / "run"
    flags = config(place, out, seeds=2, epochs=(1.0,), track=("wandb",), profile=True, profile_steps=2, log_every=2)
    trials = []

    def stop(record: Record, progress: float) -> None:
        if len(trials) == 2 and record["step"] == 3:
            import signal

            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped):
        finetune(flags, Reporter(on_step=stop, on_trial=lambda *trial: trials.append(trial)))
    result = finetune(replace(flags, resume=True))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(fake.runs) == 2
    for logged, seed in zip(fake.runs.values(), (0, 1)):
        assert logged == [(line["step"], numbers(line)) for line in lines if line["seed"] == seed]
    assert [run.name for run in fake.opened] == [f"lr-0.01_batch-size-16_epochs-1_seed-{seed}" for seed in (0, 1, 1)]
    assert {run.group for run in fake.opened} == {"run"}
    assert fake.closed == [True, False, True]
    last = [line for line in lines if line["split"] == "train"][-1]
    assert last["gradient_norm"] > 0
    assert {"memory_bytes", "data_seconds", "validation_seconds", "checkpoint_seconds"} < set(last)
    assert (out / "profile.json.gz").stat().st_size > 1000
    card = (result.model / "README.md").read_text()
    assert (result.model / "loss.png").is_file()
    for seed_scores in result.scores["dev.tsv"].values():
        assert f"| {seed_scores['mean']:.4g} |" in card
    assert "| dev.tsv | " in card
    assert "(seed " in card
    assert set(TRIAL).isdisjoint(name.rpartition("/")[2] for name in numbers(last))
    fastbert.load(result.model)  # the manifest does not mind the card


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_tracker_that_a_finished_run_is_resumed_with_gets_its_trials(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int
) -> None:
    fake, flags = fake_tracker.install(monkeypatch), config(place, tmp_path / "run", epochs=(0.5,), log_every=2)
    finetune(flags)
    assert not fake.runs
    for _ in range(2):
        finetune(replace(flags, resume=True, track=("wandb",), seeds=seeds))
    lines = [json.loads(line) for line in (flags.out / "metrics.jsonl").read_text().splitlines()]
    for logged, seed in zip(fake.runs.values(), range(seeds), strict=True):
        assert logged == [(line["step"], numbers(line)) for line in lines if line["seed"] == seed]
    assert fake.closed == [True] * seeds
    assert fake.opened[0].settings["model.hidden_size"] > 0
