"""The first feed-forward matmul with GELU in its epilogue, and the backward of the second one with GELU's gradient in
its epilogue: beside torch's matmul followed by one fused pass, and by torch's passes.

All bf16. Forward, saving tensors for backward: gelu(x weight^T + bias), x (tokens, width), weight (inner, width).
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
from fastbert.benchmarks.gpu.timing import Case, Work, contest, each, input_sets, willing
from fastbert.benchmarks.gpu.worker import announce
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.ops import dispatch

SHAPES = ((32768, 768, 3072), (16384, 1024, 4096))
# fastbert's matmul, whatever the table of configurations selects; torch's matmul followed by fastbert's bias + GELU.
TRITON_MATMUL, APART = "triton matmul", "matmul, bias_gelu"


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
        """Return the same numbers in float64."""
        return Inputs(**{name: x.detach().double() for name, x in vars(self).items()})


Function = Callable[[Inputs], tuple[Tensor, ...]]
NAMES: dict[str, tuple[str, ...]] = {"forward": ("output",), "backward": ("du", "h", "gradient of bias")}


def case_names(dry: bool) -> list[str]:
    """Return the cases; the width determines the tokens: 32,768 for 768 and 16,384 for 1024."""
    return [f"linear_gelu {direction} {width}" for _, width, _ in shapes(dry) for direction in NAMES]


def warm_names(dry: bool) -> list[str]:
    """Return the cases that differ in what is compiled: all."""
    return case_names(dry)


def shapes(dry: bool) -> tuple[tuple[int, int, int], ...]:
    """Return tokens, width, inner width."""
    return ((32, 32, 64),) if dry else SHAPES


def draw(device: Device, tokens: int, width: int, inner: int, seed: int) -> Inputs:
    """Draw random numbers, scaled so that u is about as large as in a trained network."""
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
    (shape,) = (candidate for candidate in shapes(dry) if candidate[1] == int(width))
    tokens, _, inner = shape
    case = Case()
    with dispatch.use_backend(_forced_backend(device)):
        sets = [draw(device, *shape, seed) for seed in range(input_sets(device, 2 * tokens * (int(width) + inner)))]
        functions = contenders(direction)
        announce(FASTBERT)
        exact = _named(direction, functions["eager"](sets[0].in_double()))
        eager = _named(direction, functions["eager"](sets[0]))
        differences, outputs = {}, {}
        for contender in functions.keys() - {"eager"}:
            judged_result = judged(
                device, lambda contender=contender: _named(direction, functions[contender](sets[0])), exact, eager
            )  # type: ignore[misc]
            differences[contender], outputs[contender] = judged_result
        del exact, eager
        measured = contest(
            device,
            name,
            willing(
                device,
                case,
                name,
                {contender: partial(each, call, sets) for contender, call in functions.items()},
                without,
            ),
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
        case.add(measured)
    device.free()
    return case.as_json()


def _forced_backend(device: Device) -> dispatch.BackendName | None:
    """Return the backend to force: in a dry run Triton must support both halves of the comparison."""
    names = {own_backend(device, "linear"), own_backend(device, "bias_gelu")}
    return None if None in names else "triton"


def warm(device: Device, name: str) -> None:
    """Compile fastbert's kernels for a case."""
    _, direction, width = name.split()
    (shape,) = (shape for shape in shapes(device.dry_run) if shape[1] == int(width))
    with dispatch.use_backend(_forced_backend(device)):
        functions, inputs = contenders(direction), draw(device, *shape, 0)
        for name in functions.keys() & {FASTBERT, TRITON_MATMUL}:
            functions[name](inputs)


def contenders(direction: str) -> dict[str, Function]:
    """Return fastbert's public function, its two-pass form, and torch's. The backward matmul is only available as a
    kernel: an encoder layer calls it."""
    if direction == "forward":
        return {FASTBERT: _forward, TRITON_MATMUL: _forward_own, APART: _forward_apart, "eager": _forward_eager}
    return {FASTBERT: _backward, APART: _backward_apart, "eager": _backward_eager}


def _named(direction: str, results: tuple[Tensor, ...]) -> Mapping[str, Tensor]:
    return dict(zip(NAMES[direction], (x.detach() for x in results), strict=True))


def _forward(inputs: Inputs) -> tuple[Tensor, ...]:
    return (ops.linear(inputs.x, inputs.weight, inputs.bias, activation="gelu"),)


def _forward_own(inputs: Inputs) -> tuple[Tensor, ...]:
    return tuple(
        import_module("fastbert.kernels.linear.linear").linear_gelu(inputs.x, inputs.weight, inputs.bias, False, True)[
            :1
        ]
    )


def _forward_apart(inputs: Inputs) -> tuple[Tensor, ...]:
    return (ops.bias_gelu(F.linear(inputs.x, inputs.weight), inputs.bias, "none"),)


def _forward_eager(inputs: Inputs) -> tuple[Tensor, ...]:
    return (F.gelu(F.linear(inputs.x, inputs.weight, inputs.bias)),)


def _backward(inputs: Inputs) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = import_module("fastbert.kernels.linear.linear").linear_gelu_backward(
        inputs.grad, inputs.back, inputs.u, False
    )
    return results


def _backward_apart(inputs: Inputs) -> tuple[Tensor, ...]:
    """Compute the same with u as the biased input of GELU: its forward pass gives h, its backward pass the rest."""
    u, bias = inputs.u.detach().requires_grad_(), torch.zeros_like(inputs.bias).requires_grad_()
    h = ops.bias_gelu(u, bias, "none")
    du, dbias = torch.autograd.grad(h, (u, bias), inputs.grad @ inputs.back)
    return du, h, dbias


def _backward_eager(inputs: Inputs) -> tuple[Tensor, ...]:
    du = torch.ops.aten.gelu_backward(inputs.grad @ inputs.back, inputs.u)
    return du, F.gelu(inputs.u), du.sum(0)
