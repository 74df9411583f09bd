"""Runs with bf16 weights: fp32 masters that are saved and resumed to the bit; and the flags of dtypes."""

from dataclasses import replace

import pytest
import torch
from batches import random_batch
from pretrain_runs import stop_at, timeless, weights

from fastbert import BertConfig
from fastbert.errors import UserError
from fastbert.models import BertForPreTraining
from fastbert.training import checkpoint
from fastbert.training.config import PretrainConfig
from fastbert.training.optimizer import clip_gradients
from fastbert.training.optimizer_choice import pretraining_optimizer
from fastbert.training.precision import tf32_matmuls
from fastbert.training.pretrain import pretrain
from fastbert.training.stopping import Stopped

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = BertConfig(
    vocab_size=70, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
    max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip


def test_the_norm_of_bf16_gradients_and_the_factor_are_not_rounded(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parameters = [torch.nn.Parameter(torch.zeros(50, 40, dtype=torch.bfloat16)) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.randn(50, 40, generator=generator).bfloat16()
    before = torch.stack([parameter.grad.double() for parameter in parameters])  # type: ignore[union-attr]
    norm = clip_gradients(parameters, 0.5)
    assert norm.dtype == torch.float32
    assert float(norm) == pytest.approx(float(before.norm()), rel=1e-6)
    clipped = torch.stack([parameter.grad for parameter in parameters])  # type: ignore[misc]
    assert (clipped == (before * 0.5 / before.norm()).bfloat16()).float().mean() > 0.99
    clip_gradients(parameters, 1.0)
    assert torch.equal(clipped, torch.stack([parameter.grad for parameter in parameters])), "a factor of 1"  # type: ignore[misc]


def test_a_run_with_bf16_weights_learns_and_resumes_to_the_bit(config: PretrainConfig) -> None:
    flags = {"param_dtype": "bf16", "dtype": "auto", "log_every": 1}
    whole = replace(config, **flags, out=config.out.with_name("whole"))
    pretrain(whole)
    run = replace(whole, out=config.out.with_name("run"))
    with pytest.raises(Stopped):
        pretrain(run, stop_at(7))
    pretrain(PretrainConfig(out=run.out, resume=True))
    assert timeless(run.out) == timeless(whole.out)
    last = checkpoint.load(checkpoint.find(whole.out / "checkpoints")[-1])
    saved = weights(whole.out)
    trained = [name for name in saved if f"master/{name}" in last.optimizer]
    assert len(trained) > 10
    for name, value in saved.items():
        assert torch.equal(value, weights(run.out)[name]), name
        assert value.dtype == torch.float32
        assert last.model[name].dtype == torch.bfloat16
        if name in trained:
            master = last.optimizer[f"master/{name}"]
            assert torch.equal(value, master)
            assert torch.equal(last.model[name], master.bfloat16())
            assert last.optimizer[f"exp_avg/{name}"].dtype == torch.float32


def test_bf16_weights_learn_like_fp32_ones(seed: int) -> None:
    """A batch by heart, with updates of less than the last bit of many weights."""
    batch = random_batch([9, 14], CONFIG.vocab_size, 5, seed)
    losses = {}
    for name in ("fp32", "bf16"):
        torch.manual_seed(seed)
        model = BertForPreTraining(CONFIG).train()
        if name == "bf16":
            model.to(torch.bfloat16)
        optimizer = pretraining_optimizer(model, PretrainConfig(), 1e-4, masters=name == "bf16")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4.0)
        for _ in range(25):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(batch).loss
            loss.backward()
            optimizer.clip_gradients(1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.setdefault(name, []).append(float(loss.detach()))
    falls = {name: values[0] - values[-1] for name, values in losses.items()}
    assert falls["fp32"] > 0.3
    assert falls["bf16"] == pytest.approx(falls["fp32"], rel=0.1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"param_dtype": "fp16"}, "--param-dtype fp16 must be fp32 or bf16"),
        ({"param_dtype": "bf16", "dtype": "fp16"}, "--param-dtype bf16 and --dtype fp16 exclude each other"),
        ({"param_dtype": "bf16", "dtype": "fp32"}, "--param-dtype bf16 and --dtype fp32 exclude each other"),
        ({"tf32": True}, "--tf32 is for matmuls in fp32, and --dtype is auto"),
    ],
)
def test_dtypes_that_exclude_each_other_are_named(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        PretrainConfig(**values)


def test_tf32_is_allowed_for_a_block_and_on_gpus_only() -> None:
    messages: list[str] = []
    before = torch.get_float32_matmul_precision()
    for device, inside in (("cpu", before), ("cuda", "high")):
        with tf32_matmuls(True, torch.device(device), messages.append):
            assert torch.get_float32_matmul_precision() == inside
        assert torch.get_float32_matmul_precision() == before
    assert messages == ["--tf32 has no effect on a device of type cpu"]
