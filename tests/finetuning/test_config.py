"""A run's flags: what they make of a grid, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.finetuning.defaults import resolved, with_dropout
from fastbert.finetuning.order import steps_of


@pytest.mark.parametrize(
    ("examples", "classes", "hidden_size", "trial"),
    [
        pytest.param(67_000, 2, 768, (5e-5, 32, 2), id="large-set-base"),
        pytest.param(60_000, 2, 384, (1e-4, 32, 3), id="large-set-narrow"),
        pytest.param(15_000, 150, 384, (1e-4, 32, 6), id="many-classes"),
        pytest.param(3_400, 0, 384, (1e-4, 32, 10), id="tags"),
        pytest.param(1_999, 2, 384, (1e-4, 16, 9), id="small-set"),
        pytest.param(100, 2, 768, (5e-5, 8, 20), id="few-examples"),
        pytest.param(1, 2, 128, (3e-4, 8, 20), id="one-example"),
    ],
)
def test_open_hyper_parameters_follow_from_model_and_data(
    examples: int, classes: int, hidden_size: int, trial: tuple[float, int, float]
) -> None:
    sizes = {"examples": examples, "classes": classes, "hidden_size": hidden_size}
    lr, batch_size, epochs = trial
    assert resolved(FinetuneConfig(), **sizes).trials() == [Trial(lr=lr, batch_size=batch_size, epochs=epochs, seed=0)]


def test_regression_takes_more_and_smaller_steps_without_dropout() -> None:
    config = resolved(FinetuneConfig(task="regression"), examples=5_749, classes=0, hidden_size=384)
    assert config.trials() == [Trial(lr=1e-4, batch_size=16, epochs=6, seed=0)]
    assert with_dropout(config).dropout == 0
    assert with_dropout(FinetuneConfig(task="regression", dropout=0.2)).dropout == 0.2
    assert with_dropout(FinetuneConfig(task="regression", grid="paper")).dropout is None
    assert with_dropout(FinetuneConfig(task="tagging")).dropout is None


def test_flags_take_the_place_of_defaults() -> None:
    sizes = {"examples": 1000, "classes": 2, "hidden_size": 768}
    assert resolved(FinetuneConfig(lr=(1e-5,)), **sizes).lr == (1e-5,)
    assert resolved(FinetuneConfig(batch_size=(100,)), **sizes).epochs == (20.0,)
    assert resolved(FinetuneConfig(frozen=True), **sizes).lr == (5e-4,)
    assert resolved(FinetuneConfig(lora=8), **sizes).lr == (2e-4,)
    assert resolved(FinetuneConfig(grid="paper"), **sizes) == FinetuneConfig(grid="paper")


def test_steps_alone_end_the_trials_of_every_batch_size() -> None:
    config = resolved(FinetuneConfig(steps=7, batch_size=(3, 5, 16)), examples=20, classes=2, hidden_size=768)
    for trial in config.trials():
        assert steps_of(20, trial.batch_size, trial.epochs, config.steps)[1] == 7


def test_open_hyper_parameters_are_refused_before_the_data_is_known() -> None:
    with pytest.raises(UserError, match="--batch-size is open"):
        FinetuneConfig().trials()


def test_the_papers_grid_has_eighteen_points() -> None:
    trials = FinetuneConfig(grid="paper", seeds=2, seed=7).trials()
    assert len(trials) == 36
    assert {one.lr for one in trials} == {5e-5, 3e-5, 2e-5}
    assert {one.batch_size for one in trials} == {16, 32}
    assert {one.epochs for one in trials} == {2, 3, 4}
    assert [one.seed for one in trials[:3]] == [7, 8, 7]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"seeds": 0}, "--seeds 0 must be at least 1"),
        ({"lr": (0.0,)}, "--lr 0.0 must be above 0"),
        ({"batch_size": (0,)}, "--batch-size 0 must be at least 1"),
        ({"warmup": 1.0}, "--warmup 1.0 must be from 0 to below 1"),
        ({"layer_decay": 0.0}, "--layer-decay 0.0 must be above 0"),
        ({"grid": "paper", "lr": (1e-5,)}, "--grid paper sets --lr itself"),
        ({"grid": "paper", "lr": (1e-5,), "epochs": (3,)}, "--grid paper sets --lr and --epochs itself"),
        ({"null_threshold": float("nan"), "unanswerable": True}, "--null-threshold nan must be a number"),
        ({"frozen": True, "lora": 8}, "--frozen and --lora exclude each other"),
        ({"early_stopping": 2}, "--early-stopping needs --eval"),
        ({"resume": True, "overwrite": True}, "--resume and --overwrite exclude each other"),
    ],
)
def test_wrong_flags(flags: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FinetuneConfig(**flags)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"null_threshold": 1.0}, "--null-threshold 1.0 changes nothing without --unanswerable"),
        ({"temperature": 3.0}, "--temperature 3.0 changes nothing without --teacher"),
        ({"task": "tagging", "unanswerable": True}, "--unanswerable changes nothing without --task span"),
        ({"task": "span", "decoder_layers": 2}, "--decoder-layers 2 changes nothing without --task seq2seq"),
        ({"task": "span", "num_beams": 4}, "--num-beams 4 changes nothing without --task seq2seq"),
    ],
)
def test_flags_that_change_nothing(flags: dict[str, object], message: str) -> None:
    config = FinetuneConfig(**flags)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        config.check_of_use()


def test_a_decoder_of_fewer_layers_is_of_use_whatever_begins_it() -> None:
    FinetuneConfig(task="seq2seq", decoder_layers=1).check_of_use()


def test_there_and_back() -> None:
    config = FinetuneConfig(task="span", train=Path("a.json"), eval=(Path("b.json"), Path("c")), lr=(1e-5, 2e-5))
    assert FinetuneConfig.from_dict(config.to_dict()) == config


def test_a_newer_versions_flags() -> None:
    with pytest.raises(UserError, match="unknown here: update fastbert"):
        FinetuneConfig.from_dict({**FinetuneConfig().to_dict(), "new": 1})


def test_resuming_takes_the_runs_own_flags() -> None:
    saved = FinetuneConfig(task="span", lr=(1e-5,), seeds=2)
    assert FinetuneConfig(resume=True).resumed_from(saved).lr == (1e-5,)
    assert FinetuneConfig(resume=True, seeds=5).resumed_from(saved).seeds == 5
    with pytest.raises(UserError, match=r"--lr 2e-05 differs from the run being resumed, which has 1e-05"):
        FinetuneConfig(resume=True, lr=(2e-5,)).resumed_from(saved)
    with pytest.raises(UserError, match=r"--temperature 3\.0 differs from the run being resumed, which has 2\.0"):
        FinetuneConfig(resume=True, temperature=3.0).resumed_from(saved)
    with pytest.raises(UserError, match="--batch-size 8 16 differs from the run being resumed, which has none"):
        FinetuneConfig(resume=True, batch_size=(8, 16)).resumed_from(saved)


def test_spans_see_longer_rows() -> None:
    assert FinetuneConfig(task="span").length == 384
    assert FinetuneConfig(task="tagging").length == 128
    assert FinetuneConfig(task="span", max_length=100).length == 100
