"""One encoder layer, forward and backward, in bf16 autocast with dropout: ours on packed tokens beside eager torch on
padded ones, as it is and compiled. Rates count real tokens.

Between two layers autocast hands on what LayerNorm gives: fp32 in eager torch, bf16 in ours; that is what each gets.
Before timing, output and gradients without dropout are compared with float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.benchmarks.gpu import attention as gpu_attention
from fastbert.benchmarks.gpu import models
from fastbert.benchmarks.gpu.check import compiled, judged
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.benchmarks.gpu.measure import Calls, Case, Work, contest, willing
from fastbert.benchmarks.gpu.padded import PaddedLayer, key_mask, padded, slots
from fastbert.benchmarks.gpu.worker import announce
from fastbert.benchmarks.harness.measure import OWN
from fastbert.config import BertConfig
from fastbert.models.bert.modules import Layer
from fastbert.models.layers import layer_batch
from fastbert.ops import dispatch
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.packing import PackedBatch

DROPOUT = 0.1
SEQUENCES = {128: 512, 512: 64}
COMPILED = "eager compiled"
CHECKED = 4  # sequences
# In exact arithmetic no key's bias changes a softmax: what is left of its gradient is rounding.
WITHOUT_GRADIENT = "attention.self.key.bias"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A batch with its tokens' states (tokens, width) bf16 and the gradient of the result; and the same padded, fp32
    with the mask of keys."""

    batch: PackedBatch
    layers: LayerBatch
    x: Tensor
    gradient: Tensor
    padded_x: Tensor
    padded_gradient: Tensor
    mask: Tensor | None


def case_names(dry: bool) -> list[str]:
    """Half full first: goals speak of these."""
    if dry:
        return ["layer base 16 half", "layer base 16 full"]
    kinds = [f"layer {size} {length}" for size in ("base", "large") for length in SEQUENCES]
    return [f"{kind} {how}" for how in ("half", "full") for kind in kinds]


def warm_names(dry: bool) -> list[str]:
    """Cases that torch compiles something for."""
    return [name for name in case_names(dry) if name.endswith("half")]


def config_of(size: str, dry: bool) -> BertConfig:
    return models.small(BertConfig.preset(size), dry)


def draw(device: Device, config: BertConfig, lengths: list[int], seed: int, dropout: float = DROPOUT) -> Inputs:
    """Random states and gradients of a batch."""
    place = device.torch_device
    generator = torch.Generator(place).manual_seed(seed)
    batch = models.make_batch(config, torch.tensor(lengths), seed).to(place)
    shape = (batch.num_tokens, config.hidden_size)
    x, gradient = (torch.randn(*shape, generator=generator, device=place).bfloat16() for _ in range(2))
    return Inputs(
        batch=batch,
        layers=layer_batch(batch, dropout, dropout, dropout > 0),
        x=x.requires_grad_(),
        gradient=gradient,
        padded_x=padded(x.detach(), batch).float().requires_grad_(),
        padded_gradient=padded(gradient, batch).float(),
        mask=key_mask(batch),
    )


def lengths_of(name: str, dry: bool) -> list[int]:
    """Of a case's sequences."""
    _, _, length, how = name.split()
    sequences = 2 if dry else SEQUENCES[int(length)]
    return gpu_attention.Shape(length=int(length), sequences=sequences, padding=how).lengths()


def packed_step(layer: Layer, one: Inputs) -> tuple[Tensor, ...]:
    """Output and gradients of x and of all weights."""
    with torch.autocast(one.x.device.type, dtype=torch.bfloat16):
        out = layer(one.x, one.layers)
    return out, *torch.autograd.grad(out, [one.x, *layer.parameters()], one.gradient.to(out.dtype))


def padded_step(function: Callable[..., Tensor], parameters: Sequence[Tensor], one: Inputs) -> tuple[Tensor, ...]:
    """The same on padded tensors."""
    with torch.autocast(one.x.device.type, dtype=torch.bfloat16):
        out = function(one.padded_x, one.mask)
    return out, *torch.autograd.grad(out, [one.padded_x, *parameters], one.padded_gradient.to(out.dtype))


def run_case(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Compare and time one size, length and filling."""
    device = open_device(dry)
    size, how = name.split()[1], name.split()[3]
    config, lengths, case = config_of(size, dry), lengths_of(name, dry), Case()
    layer = new_layer(config, device)
    one = draw(device, config, lengths, 0)  # one is enough: a layer's activations are many times the cache
    with dispatch.use_backend(own_backend(device, "encoder_layer")):
        announce(OWN)
        difference, verdict = check(device, layer, draw(device, config, lengths[:CHECKED], 0, dropout=0.0))
        candidates = _candidates(device, layer, one, how)
        takers = willing(device, case, name, candidates, without)
        tokens = sum(lengths)
        case.rows = contest(
            device,
            name,
            takers,
            Work(
                tokens=tokens,
                operations=3 * tokens * models.operations_per_token(config, lengths) / config.num_hidden_layers,
            ),
            seconds=seconds,
            differences={OWN: difference},
            outputs={OWN: verdict, **{who: "not compared" for who in takers if who != OWN}},
            details={
                "backends": {choice.operation: choice.backend for choice in dispatch.report(device.torch_device)},
                "sequences": len(lengths),
                "tokens": tokens,
                "longest": max(lengths),
            },
        )
    device.free()
    return case.as_json()


def new_layer(config: BertConfig, device: Device) -> Layer:
    """A layer with random weights, fp32."""
    torch.manual_seed(0)
    with device.torch_device:
        layer = Layer(config, 0)
    for norm in (layer.attention.output.LayerNorm, layer.output.LayerNorm):
        nn.init.normal_(norm.weight, 1.0, 0.1)
        nn.init.normal_(norm.bias, 0.0, 0.1)
    return layer


def _candidates(device: Device, layer: Layer, one: Inputs, how: str) -> dict[str, Callable[[], Calls]]:
    plain, parameters = PaddedLayer(layer, DROPOUT), list(layer.parameters())
    found: dict[str, Callable[[], Calls]] = {
        OWN: lambda: [partial(packed_step, layer, one)],
        "eager": lambda: [partial(padded_step, plain, parameters, one)],
    }
    if how == "half":
        whole = compiled(device, plain)
        found[COMPILED] = lambda: [partial(padded_step, whole, parameters, one)]
    return found


def warm(device: Device, name: str) -> None:
    """Compile what a case runs, ours and torch's, at its own size."""
    _, size, _, how = name.split()
    config = config_of(size, device.dry_run)
    one = draw(device, config, lengths_of(name, device.dry_run), 0)
    with dispatch.use_backend(own_backend(device, "encoder_layer")):
        for who, make in _candidates(device, new_layer(config, device), one, how).items():
            if who != "eager":
                make()[0]()


# Comparing


def check(device: Device, layer: Layer, few: Inputs) -> tuple[float, str]:
    """Ours without dropout against float64, and beside the layer of eager torch with everything in bf16."""
    exact, eager = (_found_padded(layer, few, dtype) for dtype in (torch.float64, torch.bfloat16))
    return judged(device, partial(_found_packed, layer, few), exact, eager)


def _found_packed(layer: Layer, few: Inputs) -> Mapping[str, Tensor]:
    return _named(layer, tuple(x.detach() for x in packed_step(layer, few)))


def _found_padded(layer: Layer, few: Inputs, dtype: torch.dtype) -> Mapping[str, Tensor]:
    same = copy.deepcopy(layer).to(dtype)
    x = few.padded_x.detach().to(dtype).requires_grad_()
    out = PaddedLayer(same, 0.0)(x, few.mask)
    dx, *others = torch.autograd.grad(out, [x, *same.parameters()], few.padded_gradient.to(dtype))
    rows = slots(few.batch)
    real = [tensor.detach().flatten(0, 1)[rows] for tensor in (out, dx)]
    return _named(layer, (*real, *others))


def _named(layer: Layer, found: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
    names = ["output", "gradient of x", *(f"gradient of {name}" for name, _ in layer.named_parameters())]
    return {name: x for name, x in zip(names, found, strict=True) if not name.endswith(WITHOUT_GRADIENT)}
