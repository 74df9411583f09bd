"""Averages of weights: their formulas, the weights that a run validates and saves, and runs that resume to the bit."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretrain_runs import stop_at, timeless, weights
from safetensors.torch import load_file
from torch import nn
from toy_checkpoints import Writer

from fastbert.errors import CheckpointError, UserError
from fastbert.training import checkpoint
from fastbert.training.averaging import MovingAverage, decay_at, mean_of_checkpoints
from fastbert.training.config import PretrainConfig
from fastbert.training.metrics import read_metrics
from fastbert.training.optimizer import AdamW
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_moving_average_is_that_of_the_formula(dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    own = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in ((20, 30), (7,))]
    optimizer = AdamW(own, lr=0.1, masters=True)
    average = MovingAverage(optimizer, 0.9)
    expected: torch.Tensor | None = None
    for step in range(1, 201):
        own[0].grad = torch.randn(20, 30, generator=generator).to(dtype)
        optimizer.step()
        average.update(step)
        source = optimizer.state[own[0]].get("master", own[0]).detach().double()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = source if expected is None else decay * expected + (1 - decay) * source
    assert (decay_at(0.9, 1), decay_at(0.9, 200)) == (2 / 11, 0.9)
    ema = optimizer.state[own[0]]["ema"]
    assert ema.dtype == torch.float32
    torch.testing.assert_close(ema.double(), expected, rtol=1e-5, atol=1e-6)
    before = [p.detach().clone() for p in own]
    with average.applied():
        assert torch.equal(own[0].detach(), ema.to(dtype))
        assert torch.equal(own[1].detach(), before[1]), "a parameter without steps is its own average"
    assert all(torch.equal(p.detach(), value) for p, value in zip(own, before, strict=True))


def test_a_run_with_a_moving_average_saves_it_and_resumes_to_the_bit(config: PretrainConfig) -> None:
    whole = replace(config, ema=0.9, optimizer="stableadamw", schedule="wsd", out=config.out.with_name("whole"))
    messages: list[str] = []
    pretrain(whole, Reporter(on_message=messages.append))
    assert "the model is the moving average of the weights (--ema 0.9)" in messages
    run = replace(whole, out=config.out.with_name("run"))
    with pytest.raises(Stopped):
        pretrain(run, stop_at(7))
    pretrain(PretrainConfig(out=run.out, resume=True))
    assert timeless(run.out) == timeless(whole.out)
    last = checkpoint.load(checkpoint.find(whole.out / "checkpoints")[-1])
    saved = weights(whole.out)
    assert all(torch.equal(tensor, weights(run.out)[name]) for name, tensor in saved.items())
    averaged = [name for name in saved if f"ema/{name}" in last.optimizer]
    assert len(averaged) > 10
    for name in averaged:
        assert torch.equal(saved[name], last.optimizer[f"ema/{name}"]), name
        assert not torch.equal(saved[name], last.model[name]), name


def test_matrices_that_muon_updates_are_averaged_too(config: PretrainConfig) -> None:
    run = replace(config, ema=0.9, optimizer="muon")
    pretrain(run)
    last = checkpoint.load(checkpoint.find(run.out / "checkpoints")[-1])
    matrices = [name for name in last.model if ".layer." in name and last.model[name].ndim == 2]
    assert len(matrices) >= 6
    for name in matrices:
        assert torch.equal(weights(run.out)[name], last.optimizer[f"ema/{name}"]), name
        assert not torch.equal(last.model[name], last.optimizer[f"ema/{name}"]), name


def test_the_mean_of_the_last_checkpoints_is_validated_and_saved(config: PretrainConfig) -> None:
    run = replace(config, average_last=3, keep_checkpoints=3, checkpoint_every=2)
    pretrain(run)
    folders = checkpoint.find(run.out / "checkpoints")
    assert [folder.name for folder in folders] == ["step-00000008", "step-00000010", "step-00000012"]
    tensors = [load_file(folder / "model.safetensors") for folder in folders]
    for name, value in weights(run.out).items():
        expected = torch.stack([each[name].double() for each in tensors]).mean(0)
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-7, msg=name)
    *_, last, mean = [line for line in read_metrics(run.out / "metrics.jsonl") if line.split == "validation"]
    assert (last.step, mean.step) == (12, 12)
    assert last.loss != mean.loss
    # Killed before the model was written: the mean is made and validated again.
    shutil.rmtree(run.out / "model")
    again = PretrainConfig(out=run.out, resume=True)
    assert pretrain(again).validation.loss == mean.loss


def test_checkpoints_that_cannot_be_averaged(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint to average"):
        mean_of_checkpoints(tmp_path, 3)
    Writer(tmp_path, keep=9).save(3, 4)
    assert mean_of_checkpoints(tmp_path, 3)[1] == 2
    path = checkpoint.find(tmp_path)[0] / checkpoint.MODEL
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        mean_of_checkpoints(tmp_path, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ema": 0.0}, "--ema 0.0 must be between 0 and 1"),
        ({"ema": 1.0}, "--ema 1.0 must be between 0 and 1"),
        ({"average_last": 1}, "--average-last 1 must be at least 2"),
        (
            {"average_last": 5},
            "--average-last 5 needs as many checkpoints, and --keep-checkpoints keeps 2; raise it to 5",
        ),
        ({"ema": 0.9, "average_last": 2}, "--ema and --average-last exclude each other"),
    ],
)
def test_flags_out_of_range_are_named(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        PretrainConfig(**values)
