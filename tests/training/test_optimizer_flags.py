"""Flags of optimisers and schedules: refused in one line, and a run of each optimiser that resumes to the bit."""

from dataclasses import replace

import pytest
from pretrain_runs import assert_resumes_to_the_bit

from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import read_metrics
from fastbert.training.pretrain import pretrain


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimizer": "sgd"}, "--optimizer sgd must be adamw, stableadamw, lamb or muon"),
        ({"betas": (0.9,)}, r"--betas 0\.9 must be two numbers"),
        ({"betas": (0.9, 1.0)}, "--betas 0.9 1 must be two numbers"),
        ({"betas": (0.9, float("nan"))}, "--betas 0.9 nan must be two numbers"),
        ({"eps": 0.0}, "--eps 0.0 must be above 0"),
        ({"eps": float("inf")}, "--eps inf must be above 0 and finite"),
        ({"weight_decay": -1.0}, "--weight-decay -1.0 must be at least 0"),
        ({"weight_decay": float("nan")}, "--weight-decay nan must be at least 0"),
        ({"max_grad_norm": 0.0}, "--max-grad-norm 0.0 must be above 0"),
        ({"schedule": "wsd", "decay_fraction": 0.0}, "--decay-fraction 0.0 must be above 0"),
        ({"schedule": "wsd", "warmup": 0.5, "decay_fraction": 0.6}, "0.5 and --decay-fraction 0.6 are more than"),
        ({"schedule": "cosine", "decay_fraction": 0.5}, "--decay-fraction 0.5 changes nothing without --schedule wsd"),
        ({"schedule": "constant", "min_lr_ratio": 0.5}, "--min-lr-ratio 0.5 changes nothing with --schedule constant"),
        ({"min_lr_ratio": 1.5}, "--min-lr-ratio 1.5 must be from 0 to 1"),
    ],
)
def test_flags_out_of_range_are_named(values: dict, message: str) -> None:
    for config in (PretrainConfig, FinetuneConfig):
        with pytest.raises(UserError, match=message):
            config(**values)


def test_a_run_with_lamb_resumes_to_the_bit(config: PretrainConfig) -> None:
    flags = {"optimizer": "lamb", "betas": (0.8, 0.95), "schedule": "cosine", "min_lr_ratio": 0.1}
    whole = replace(config, **flags, log_every=1)
    run = assert_resumes_to_the_bit(whole)
    rates = [line.learning_rate for line in read_metrics(whole.out / "metrics.jsonl") if line.split == "train"]
    assert rates[-1] == pytest.approx(0.1 * whole.lr, rel=0.2)
    other = PretrainConfig(out=run.out, resume=True, optimizer="stableadamw")
    with pytest.raises(UserError, match="--optimizer stableadamw differs from the run being resumed, which has lamb"):
        pretrain(other)
