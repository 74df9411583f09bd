"""DeBERTa's convolution: the bits of a text in every batch, the values and gradients of torch's, changed weights."""

from __future__ import annotations

from typing import Any

import cpu_kernels
import pytest
import torch
from torch import nn

from fastbert.models.architecture import ConvolutionSpec
from fastbert.models.convolution import Convolution
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.encoder_layer.spec import NormSpec

WIDTH = 64
LENGTHS = (1, 17, 2, 3, 1)
SHAPES = [(size, groups) for size in (3, 5) for groups in (1, 2)]
ACTIVATIONS: tuple[Any, ...] = ("tanh", "gelu")


def module_of(size: int, groups: int, activation: Any = "tanh") -> Convolution:
    module = Convolution(ConvolutionSpec(size, groups, activation, NormSpec(1e-7)), WIDTH)
    nn.init.normal_(module.LayerNorm.weight)
    return module


def batch_of(*lengths: int) -> LayerBatch:
    return LayerBatch(cu_seqlens=torch.tensor((0, *lengths)).cumsum(0).int(), max_seqlen=max(lengths))


@pytest.mark.skipif("avx2" not in cpu_kernels.HERE, reason="on this processor the library multiplies floats")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_text_has_the_same_bits_in_every_batch(dtype: torch.dtype, seed: int) -> None:
    """In inference, with gradients, and under autocast for bf16."""
    torch.manual_seed(seed)
    for size, groups in SHAPES:
        for activation in ACTIVATIONS:
            module = module_of(size, groups, activation)
            embedded, states = torch.randn(2, sum(LENGTHS), WIDTH).unbind()
            for narrow, trains in ((False, False), (False, True), (True, False)):
                if narrow:
                    module, embedded, states = module.to(dtype), embedded.to(dtype), states.to(dtype)
                with torch.set_grad_enabled(trains), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                    whole = module(embedded, states, batch_of(*LENGTHS))
                    start = 0
                    for length in LENGTHS:
                        rows = slice(start, start + length)
                        alone = module(embedded[rows], states[rows], batch_of(length))
                        where = f"{length} tokens, size {size}, {groups} groups, {activation}, trains={trains}"
                        assert torch.equal(alone, whole[rows]), where
                        start += length


@pytest.mark.parametrize(("size", "groups"), SHAPES)
def test_values_and_gradients_are_those_of_torch(size: int, groups: int, seed: int) -> None:
    torch.manual_seed(seed)
    module = module_of(size, groups)
    embedded, states = torch.randn(2, sum(LENGTHS), WIDTH).unbind()
    upstream = torch.randn(sum(LENGTHS), WIDTH)

    def reference(x: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        convolved = [module.conv(text.T[None])[0].T for text in x.split(LENGTHS)]
        normed: torch.Tensor = module.LayerNorm(states + torch.tanh(torch.cat(convolved)))
        return normed

    results = []
    for compute in (lambda x, y: module(x, y, batch_of(*LENGTHS)), reference):
        inputs = [embedded.clone().requires_grad_(), states.clone().requires_grad_()]
        out = compute(*inputs)
        gradients = torch.autograd.grad(out, [*inputs, *module.parameters()], upstream)
        results.append([out, *gradients])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)


def test_changed_weights_are_prepacked_again(seed: int) -> None:
    torch.manual_seed(seed)
    module, x = module_of(3, 2), torch.randn(5, WIDTH)
    frozen = nn.Parameter(module.conv.weight.detach().clone())
    with torch.no_grad():
        before = module(x, x, batch_of(2, 3))
        assert torch.equal(module(x, x, batch_of(2, 3)), before)
        module.conv.weight.add_(0.5)
        changed = module(x, x, batch_of(2, 3))
        assert (changed - before).abs().max() > 1e-3
        module.conv.weight = frozen
        assert torch.equal(module(x, x, batch_of(2, 3)), before)
    with torch.inference_mode():
        assert torch.equal(module(x, x, batch_of(2, 3)), before)
