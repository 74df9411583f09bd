"""Compare results before they are timed, by one rule: an error from float64 of at most twice eager torch's in the same
dtype. Also compile eager torch, the rival that needs no custom kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.benchmarks.gpu.device import Device
from fastbert.benchmarks.gpu.timing import REFUSALS

FACTOR = 2.0
SLACK = 1e-5  # relative to the largest value; a weight's gradient is a sum over all tokens

Tensors = Mapping[str, Tensor]


def judge(actual: Tensors, exact: Tensors, eager: Tensors) -> tuple[float, str]:
    """Return the largest difference of `found` from `exact`, and "close" or the tensor whose error exceeds the rule.

    `eager` has the same tensors as eager torch computes them.
    """
    worst, verdict = 0.0, "close"
    for name, expected in exact.items():
        error, eager_error = largest(actual[name], expected), largest(eager[name], expected)
        scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
        if not error <= FACTOR * eager_error + SLACK * scale and verdict == "close":
            verdict = f"wrong: {name} is off by {error:.3g}, eager torch by {eager_error:.3g}"
        # A NaN in any tensor is the result.
        worst = error if math.isnan(error) or error > worst else worst
        if math.isnan(worst):
            break
    return worst, verdict


def largest(actual: Tensor, exact: Tensor) -> float:
    """Return the largest absolute difference; NaN if there is one."""
    return float((actual.double() - exact).abs().max()) if exact.numel() else 0.0


Verdict = tuple[float, str]


def judged(device: Device, find: Callable[[], Tensors], exact: Tensors, eager: Tensors) -> Verdict:
    """Apply `judge` to the result of `find`. A contender that raises is not compared; the reason is recorded when it is
    to be timed."""
    try:
        return judge(find(), exact, eager)
    except REFUSALS:
        return 0.0, "not compared"
    finally:
        device.free()


def judged_apart(
    device: Device, find: Callable[[], Tensors], exact: Tensors, eager: Tensors
) -> tuple[Verdict, Verdict]:
    """Apply `judge` to the output, and to all gradients."""
    results: list[Tensors] = []

    def once() -> Tensors:
        results.append(find())
        return results[0]

    output = judged(device, once, {"output": exact["output"]}, eager)
    gradients = {name: x for name, x in exact.items() if name != "output"}
    return output, judged(device, lambda: results[0], gradients, eager) if results else output


def compiled(device: Device, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function with `torch.compile` for each shape; a dry run only traces it."""
    from torch._functorch import config

    # A timed backward pass runs many times on the buffers of one forward pass.
    config.donated_buffer = False
    torch._dynamo.reset()  # a function that was compiled for many shapes would fall back to eager
    return torch.compile(function, dynamic=False, backend=_compiler(device))


def compiled_layers(device: Device, layers: Iterable[nn.Module]) -> None:
    """Compile every layer of a stack, in place: layers of one kind share the code that is compiled for the first."""
    # Otherwise layers beyond a limit would silently run eagerly.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for layer in layers:
        layer.compile(dynamic=False, backend=_compiler(device))


def _compiler(device: Device) -> str:
    return "eager" if device.dry_run else "inductor"
