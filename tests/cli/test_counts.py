"""Numbers of things in messages."""

from fastbert.cli.counts import counted
from fastbert.finetuning.config import Trial
from fastbert.training.config import Budget, PretrainConfig, described


def test_one_is_singular() -> None:
    assert [counted(number, "text") for number in (0, 1, 1200)] == ["0 texts", "1 text", "1,200 texts"]


def test_a_trial_of_one_epoch_is_singular() -> None:
    trials = [Trial(lr=2e-5, batch_size=8, epochs=epochs, seed=0) for epochs in (1.0, 0.5, 3.0)]
    assert [str(trial).split(", ")[2] for trial in trials] == ["1 epoch", "0.5 epochs", "3 epochs"]


def test_the_length_of_a_run_is_singular_where_it_is_one() -> None:
    config = PretrainConfig(batch_size=4, lr=1e-3)
    assert described(config, Budget(steps=1, seconds=3600.0), 4).startswith("1 hour or 1 step (1 epoch) of 4 ")
    assert described(config, Budget(steps=2, seconds=90.0), 4).startswith("1.5 minutes or 2 steps (2 epochs) of 4 ")
