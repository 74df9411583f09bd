"""One encoder layer, forward and backward, in bf16 autocast with dropout: fastbert on packed tokens beside eager torch
on padded ones, eager and compiled. Rates count real tokens.

Between two layers autocast passes the output of LayerNorm: fp32 in eager torch, bf16 in fastbert; each gets its own.
Before timing, output and gradients are compared with float64, without dropout and under fastbert's masks; the compiled
layer is compared with the eager one by its moments over masks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.benchmarks.gpu import attention, models, moments
from fastbert.benchmarks.gpu.check import compiled, judged
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.benchmarks.gpu.padded import PaddedLayer, key_mask, padded, slots
from fastbert.benchmarks.gpu.timing import Calls, Case, Work, contest, willing
from fastbert.benchmarks.gpu.worker import announce
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.config import BertConfig
from fastbert.models.bert.architecture import bert_spec
from fastbert.models.layers import layer_batch
from fastbert.models.modules import Layer
from fastbert.ops import dispatch
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.packing import PackedBatch

DROPOUT = 0.1
SEQUENCES = {128: 512, 512: 64}
COMPILED = "eager compiled"
CHECKED = 4  # sequences
# In exact arithmetic the bias of keys does not change a softmax: its gradient is rounding error.
WITHOUT_GRADIENT = "attention.self.key.bias"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A batch with its tokens' states (tokens, width) bf16 and the upstream gradient; and the same padded, fp32, with
    the key mask."""

    batch: PackedBatch
    layers: LayerBatch
    x: Tensor
    gradient: Tensor
    padded_x: Tensor
    padded_gradient: Tensor
    mask: Tensor | None


def case_names(dry: bool) -> list[str]:
    """Return the cases, half full first, since goals refer to these."""
    if dry:
        return ["layer base 16 half"]
    kinds = [f"layer {size} {length}" for size in ("base", "large") for length in SEQUENCES]
    return [f"{kind} {padding}" for padding in ("half", "full") for kind in kinds]


def warm_names(dry: bool) -> list[str]:
    """Return the cases that torch compiles something for."""
    return [name for name in case_names(dry) if name.endswith("half")]


def config_of(size: str, dry: bool) -> BertConfig:
    return models.small(BertConfig.preset(size), dry)


def draw(device: Device, config: BertConfig, lengths: list[int], seed: int, dropout: float = DROPOUT) -> Inputs:
    """Draw random states and gradients of a batch."""
    target = device.torch_device
    generator = torch.Generator(target).manual_seed(seed)
    batch = models.make_batch(config, torch.tensor(lengths), seed).to(target)
    shape = (batch.num_tokens, config.hidden_size)
    x, gradient = (torch.randn(*shape, generator=generator, device=target).bfloat16() for _ in range(2))
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
    """Return the lengths of a case's sequences."""
    _, _, length, padding = name.split()
    sequences = 2 if dry else SEQUENCES[int(length)]
    return attention.Shape(length=int(length), sequences=sequences, padding=padding).lengths()


def packed_step(layer: Layer, inputs: Inputs) -> tuple[Tensor, ...]:
    """Return output and gradients of x and of all weights."""
    with torch.autocast(inputs.x.device.type, dtype=torch.bfloat16):
        out = layer(inputs.x, inputs.layers)
    return out, *torch.autograd.grad(out, [inputs.x, *layer.parameters()], inputs.gradient.to(out.dtype))


def padded_step(function: Callable[..., Tensor], parameters: Sequence[Tensor], inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the same on padded tensors."""
    with torch.autocast(inputs.x.device.type, dtype=torch.bfloat16):
        out = function(inputs.padded_x, inputs.mask)
    return out, *torch.autograd.grad(out, [inputs.padded_x, *parameters], inputs.padded_gradient.to(out.dtype))


def run_case(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Compare and time one size, length and padding."""
    device = open_device(dry)
    size, padding = name.split()[1], name.split()[3]
    config, lengths, case = config_of(size, dry), lengths_of(name, dry), Case()
    layer = new_layer(config, device)
    inputs = draw(device, config, lengths, 0)  # one set suffices: a layer's activations are many times the cache
    with dispatch.use_backend(own_backend(device, "encoder_layer")):
        announce(FASTBERT)
        difference, verdict = check(device, layer, draw(device, config, lengths[:CHECKED], 0, dropout=0.0))
        if verdict == "close":
            difference, verdict = check_masks(device, layer, draw(device, config, lengths[:CHECKED], 0))
        candidates = _candidates(device, layer, inputs, padding)
        runnable = willing(device, case, name, candidates, without)
        tokens = sum(lengths)
        measured = contest(
            device,
            name,
            runnable,
            Work(
                tokens=tokens,
                operations=3 * tokens * models.operations_per_token(config, lengths) / config.num_hidden_layers,
            ),
            seconds=seconds,
            differences={FASTBERT: difference},
            outputs={**dict.fromkeys(runnable, "not compared"), **_check_rivals(runnable, inputs), FASTBERT: verdict},
            details={
                "backends": {choice.operation: choice.backend for choice in dispatch.report(device.torch_device)},
                "sequences": len(lengths),
                "tokens": tokens,
                "longest": max(lengths),
            },
        )
        case.add(measured)
    device.free()
    return case.as_json()


def new_layer(config: BertConfig, device: Device) -> Layer:
    """Return a layer with random weights, fp32."""
    torch.manual_seed(0)
    with device.torch_device:
        layer = Layer(bert_spec(config).layers[0], 0, drops=True)
    for norm in (layer.attention.output.LayerNorm, layer.output.LayerNorm):
        nn.init.normal_(norm.weight, 1.0, 0.1)
        nn.init.normal_(norm.bias, 0.0, 0.1)
    return layer


def _candidates(device: Device, layer: Layer, inputs: Inputs, padding: str) -> dict[str, Callable[[], Calls]]:
    eager_layer, parameters = PaddedLayer(layer, DROPOUT), list(layer.parameters())
    results: dict[str, Callable[[], Calls]] = {
        FASTBERT: lambda: [partial(packed_step, layer, inputs)],
        "eager": lambda: [partial(padded_step, eager_layer, parameters, inputs)],
    }
    if padding == "half":
        whole = compiled(device, eager_layer)
        results[COMPILED] = lambda: [partial(padded_step, whole, parameters, inputs)]
    return results


def warm(device: Device, name: str) -> None:
    """Compile fastbert's and torch's kernels of a case, at its own size."""
    _, size, _, padding = name.split()
    config = config_of(size, device.dry_run)
    inputs = draw(device, config, lengths_of(name, device.dry_run), 0)
    with dispatch.use_backend(own_backend(device, "encoder_layer")):
        for contender, make in _candidates(device, new_layer(config, device), inputs, padding).items():
            if contender != "eager":
                make()[0]()


# Comparing


def check(device: Device, layer: Layer, subset: Inputs) -> tuple[float, str]:
    """Compare fastbert's layer without dropout with float64, relative to eager torch with everything in bf16."""
    exact, eager = (_padded_results(layer, subset, dtype) for dtype in (torch.float64, torch.bfloat16))
    return judged(device, partial(_packed_results, layer, subset), exact, eager)


def check_masks(device: Device, layer: Layer, subset: Inputs) -> tuple[float, str]:
    """Compare fastbert's layer with dropout with eager operations under the same masks: in float64, and by the error of
    bf16."""
    with dispatch.use_backend("eager"):
        double = replace(subset, x=subset.x.detach().double().requires_grad_())
        exact = _replayed(copy.deepcopy(layer).double(), double, autocast=False)
        eager = _replayed(layer, subset, autocast=True)
    return judged(device, partial(_packed_results, layer, subset), exact, eager)


def _replayed(layer: Layer, inputs: Inputs, autocast: bool) -> Mapping[str, Tensor]:
    with torch.autocast(inputs.x.device.type, dtype=torch.bfloat16, enabled=autocast):
        out = layer(inputs.x, inputs.layers)
    gradients = torch.autograd.grad(out, [inputs.x, *layer.parameters()], inputs.gradient.to(out.dtype))
    return _named(layer, (out.detach(), *(x.detach() for x in gradients)))


def _check_rivals(runnable: Mapping[str, Calls], inputs: Inputs) -> dict[str, str]:
    """Compare the compiled layer with the eager one, both with dropout, by the moments of real rows over masks."""
    if not {COMPILED, "eager"} <= runnable.keys():
        return {}
    rows = slots(inputs.batch)[: int(inputs.batch.cu_seqlens[min(CHECKED, len(inputs.batch))])]
    actual, expected = (
        moments.sample(lambda name=name: runnable[name][0]()[0].flatten(0, 1)[rows])  # type: ignore[misc]
        for name in (COMPILED, "eager")
    )
    return {COMPILED: moments.judge(actual, expected)}


def _packed_results(layer: Layer, subset: Inputs) -> Mapping[str, Tensor]:
    return _named(layer, tuple(x.detach() for x in packed_step(layer, subset)))


def _padded_results(layer: Layer, subset: Inputs, dtype: torch.dtype) -> Mapping[str, Tensor]:
    same = copy.deepcopy(layer).to(dtype)
    x = subset.padded_x.detach().to(dtype).requires_grad_()
    out = PaddedLayer(same, 0.0)(x, subset.mask)
    dx, *others = torch.autograd.grad(out, [x, *same.parameters()], subset.padded_gradient.to(dtype))
    rows = slots(subset.batch)
    real = [tensor.detach().flatten(0, 1)[rows] for tensor in (out, dx)]
    return _named(layer, (*real, *others))


def _named(layer: Layer, results: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
    names = ["output", "gradient of x", *(f"gradient of {name}" for name, _ in layer.named_parameters())]
    return {name: x for name, x in zip(names, results, strict=True) if not name.endswith(WITHOUT_GRADIENT)}
