"""The widening product of the feed-forward network with GELU in its epilogue, and the product behind it backward with
GELU's gradient in its own: beside torch's product followed by one pass of ours, and by torch's passes.

All bf16. Forward, with what training keeps: gelu(x weight^T + bias), x (tokens, width), weight (inner, width).
Backward, for the next layer's weight (width, inner) and the gradient (tokens, width) of its result: dh = grad weight,
du = dh gelu'(u), h = gelu(u), and the sum of du over the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert import ops
from fastbert.benchmarks.gpu.check import judged
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.benchmarks.gpu.measure import Case, Work, contest, each, input_sets, willing
from fastbert.benchmarks.gpu.worker import announce
from fastbert.benchmarks.harness.measure import OWN
from fastbert.ops import dispatch

SHAPES = ((32768, 768, 3072), (16384, 1024, 4096))
# Ours without asking the table whether it is the faster one; torch's product with one pass of ours behind it.
OWN_PRODUCT, APART = "own product", "product, bias_gelu"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """x and grad (tokens, width), weight (inner, width), its transpose `back`, bias (inner,), u (tokens, inner)."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    grad: Tensor
    back: Tensor
    u: Tensor

    def in_double(self) -> Inputs:
        """The same numbers in float64."""
        return Inputs(**{name: x.detach().double() for name, x in vars(self).items()})


Function = Callable[[Inputs], tuple[Tensor, ...]]
NAMES = {"forward": ("output",), "backward": ("du", "h", "gradient of bias")}


def case_names(dry: bool) -> list[str]:
    """Tokens are told by the width: 768 with 32,768 and 1024 with 16,384."""
    return [f"linear_gelu {direction} {width}" for _, width, _ in shapes(dry) for direction in NAMES]


def shapes(dry: bool) -> tuple[tuple[int, int, int], ...]:
    """Tokens, width, inner width."""
    return ((32, 32, 64),) if dry else SHAPES


def draw(device: Device, tokens: int, width: int, inner: int, seed: int) -> Inputs:
    """Random numbers, of a spread that makes u about as large as a trained network's."""
    generator = torch.Generator(device.torch_device).manual_seed(seed)

    def normal(*shape: int, spread: float = 1.0) -> Tensor:
        x = torch.randn(*shape, generator=generator, device=device.torch_device)
        return (spread * x).bfloat16()

    return Inputs(
        x=normal(tokens, width).requires_grad_(),
        weight=normal(inner, width, spread=width**-0.5).requires_grad_(),
        bias=normal(inner, spread=0.1).requires_grad_(),
        grad=normal(tokens, width),
        back=normal(width, inner, spread=width**-0.5),
        u=normal(tokens, inner),
    )


def run_case(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Compare and time one direction at one shape."""
    device = open_device(dry)
    _, direction, width = name.split()
    (shape,) = (one for one in shapes(dry) if one[1] == int(width))
    tokens, _, inner = shape
    case = Case()
    with dispatch.use_backend(_own(device)):
        sets = [draw(device, *shape, seed) for seed in range(input_sets(device, 2 * tokens * (int(width) + inner)))]
        functions = contenders(direction)
        announce(OWN)
        exact = _named(direction, functions["eager"](sets[0].in_double()))
        eager = _named(direction, functions["eager"](sets[0]))
        differences, outputs = {}, {}
        for who in functions.keys() - {"eager"}:
            found = judged(device, lambda who=who: _named(direction, functions[who](sets[0])), exact, eager)  # type: ignore[misc]
            differences[who], outputs[who] = found
        del exact, eager
        case.rows = contest(
            device,
            name,
            willing(device, case, name, {who: partial(each, call, sets) for who, call in functions.items()}, without),
            Work(tokens=tokens, operations=2.0 * tokens * int(width) * inner),
            seconds=seconds,
            differences=differences,
            outputs={**outputs, "eager": "not compared"},
            details={
                "backend": dispatch.preferred_backend("linear", device.torch_device),
                "tokens": tokens,
                "inner": inner,
            },
        )
    device.free()
    return case.as_json()


def _own(device: Device) -> dispatch.BackendName | None:
    """In a dry run Triton has to serve both halves of what is compared."""
    names = {own_backend(device, "linear"), own_backend(device, "bias_gelu")}
    return None if None in names else "triton"


def warm(device: Device, name: str) -> None:
    """Compile our kernels for a case."""
    _, direction, width = name.split()
    (shape,) = (one for one in shapes(device.dry_run) if one[1] == int(width))
    with dispatch.use_backend(_own(device)):
        functions, one = contenders(direction), draw(device, *shape, 0)
        for who in functions.keys() & {OWN, OWN_PRODUCT}:
            functions[who](one)


def contenders(direction: str) -> dict[str, Function]:
    """Ours, as the public function chooses and apart, and torch's. The backward product is a kernel's alone: an encoder
    layer calls it."""
    if direction == "forward":
        return {OWN: _forward, OWN_PRODUCT: _forward_own, APART: _forward_apart, "eager": _forward_eager}
    return {OWN: _backward, APART: _backward_apart, "eager": _backward_eager}


def _named(direction: str, found: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
    return dict(zip(NAMES[direction], (x.detach() for x in found), strict=True))


def _forward(one: Inputs) -> tuple[Tensor, ...]:
    return (ops.linear(one.x, one.weight, one.bias, activation="gelu"),)


def _forward_own(one: Inputs) -> tuple[Tensor, ...]:
    return tuple(
        import_module("fastbert.kernels.linear.linear").linear_gelu(one.x, one.weight, one.bias, False, True)[:1]
    )


def _forward_apart(one: Inputs) -> tuple[Tensor, ...]:
    return (ops.bias_gelu(F.linear(one.x, one.weight), one.bias, "none"),)


def _forward_eager(one: Inputs) -> tuple[Tensor, ...]:
    return (F.gelu(F.linear(one.x, one.weight, one.bias)),)


def _backward(one: Inputs) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = import_module("fastbert.kernels.linear.linear").gelu_gradient_product(
        one.grad, one.back, one.u, False
    )
    return found


def _backward_apart(one: Inputs) -> tuple[Tensor, ...]:
    """With u as the biased input of GELU: its forward pass gives h, its backward pass the rest."""
    u, bias = one.u.detach().requires_grad_(), torch.zeros_like(one.bias).requires_grad_()
    h = ops.bias_gelu(u, bias, "none")
    du, dbias = torch.autograd.grad(h, (u, bias), one.grad @ one.back)
    return du, h, dbias


def _backward_eager(one: Inputs) -> tuple[Tensor, ...]:
    du = torch.ops.aten.gelu_backward(one.grad @ one.back, one.u)
    return du, F.gelu(one.u), du.sum(0)
