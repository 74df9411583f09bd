"""Softmax over explicit scores with scale, mask and dropout, beside torch's four operations in sequence; and the limits
of the device: a copy, and a matmul.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert import ops
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.benchmarks.gpu.timing import Calls, Case, Work, contest, each, input_sets, willing, without_gradient
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.ops import dispatch, reference

SCALE, DROPOUT = 0.125, 0.1
CHECKED = 2  # sequences compared with float64


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores (sequences, heads, keys, keys) bf16, a mask of random lengths, and the upstream gradient."""

    scores: Tensor
    mask: Tensor
    key: Tensor
    gradient: Tensor


def draw(device: Device, sequences: int, heads: int, keys: int, seed: int) -> Scores:
    """Draw random scores; every sequence has keys in at least half of its positions."""
    target = device.torch_device
    generator = torch.Generator(target).manual_seed(seed)
    shape = (sequences, heads, keys, keys)
    scores, gradient = (torch.randn(shape, generator=generator, device=target, dtype=torch.bfloat16) for _ in range(2))
    lengths = torch.randint(keys // 2, keys + 1, (sequences,), generator=generator, device=target)
    mask = (torch.arange(keys, device=target) < lengths[:, None])[:, None, None]
    key = torch.randint(0, 2**62, (sequences,), generator=generator, device=target)
    return Scores(scores=(4 * scores).requires_grad_(), mask=mask, key=key, gradient=gradient)


def run_fastbert(inputs: Scores, dropout: float = DROPOUT) -> Tensor:
    return ops.softmax(inputs.scores, inputs.mask, scale=SCALE, dropout_p=dropout, dropout_key=inputs.key)


def eager(inputs: Scores) -> Tensor:
    probabilities = (inputs.scores * SCALE).masked_fill(~inputs.mask, -math.inf).softmax(-1)
    return F.dropout(probabilities, DROPOUT)


def case_names(dry: bool) -> list[str]:
    lengths = (16,) if dry else (128, 512)
    return [f"softmax {direction} {keys}" for keys in lengths for direction in ("forward", "backward")]


def run_case(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Compare and time one direction at one number of keys."""
    device = open_device(dry)
    _, direction, keys = name.split()
    heads = 2 if dry else 16
    sequences = 2 if dry else 4 * 2**20 // int(keys) ** 2
    size = 2 * sequences * heads * int(keys) ** 2
    backward = direction == "backward"
    # Forward reads scores and writes probabilities; backward reads a gradient and one of these, and writes a gradient.
    work = Work(tokens=sequences * int(keys), moved_bytes=float(size * (3 if backward else 2)))
    case = Case()
    with dispatch.use_backend(own_backend(device, "softmax")):
        backend = dispatch.preferred_backend("softmax", device.torch_device)
        sets = [draw(device, sequences, heads, int(keys), seed) for seed in range(input_sets(device, 2 * size))]
        difference, verdict = _compare(sets[0])
        candidates = {
            FASTBERT: partial(_calls, run_fastbert, sets, backward),
            "eager": partial(_calls, eager, sets, backward),
        }
        measured = contest(
            device,
            name,
            willing(device, case, name, candidates, without),
            work,
            seconds=seconds,
            differences={FASTBERT: difference},
            outputs={FASTBERT: verdict, "eager": "not compared"},
            details={"backend": backend, "sequences": sequences, "heads": heads, "keys": int(keys)},
        )
        case.add(measured)
    device.free()
    return case.as_json()


def _calls(function: Any, sets: list[Scores], backward: bool) -> Calls:
    if not backward:
        return each(partial(without_gradient, function), sets)
    return [partial(_backward, function(inputs), inputs) for inputs in sets]


def _backward(out: Tensor, inputs: Scores) -> Tensor:
    return torch.autograd.grad(out, inputs.scores, inputs.gradient, retain_graph=True)[0]


def _compare(inputs: Scores) -> tuple[float, str]:
    """Return fastbert's largest difference from float64 on some sequences, and whether it is at most twice eager
    torch's."""
    actual = run_fastbert(inputs).detach()[:CHECKED].double()
    heads, keys = inputs.scores.shape[1], inputs.scores.shape[2]
    masks = torch.stack(
        [reference.attention_dropout_mask(heads, keys, keys, DROPOUT, key, 0) for key in inputs.key[:CHECKED]]
    )
    results = []
    for dtype in (torch.float64, inputs.scores.dtype):
        scores = inputs.scores.detach()[:CHECKED].to(dtype) * SCALE
        results.append((reference.attention_probabilities(scores, inputs.mask[:CHECKED]) * masks.to(dtype)).double())
    exact, eager_result = results
    error, eager_error = float((actual - exact).abs().max()), float((eager_result - exact).abs().max())
    return (
        error,
        "close" if error <= 2 * eager_error + 1e-5 else f"wrong: off by {error:.3g}, eager torch by {eager_error:.3g}",
    )


# Ceilings


def ceilings(dry: bool, seconds: float) -> dict[str, Any]:
    """Measure the bandwidth of a copy, reads and writes both counted, and the operations per second of a square bf16
    matmul."""
    device = open_device(dry)
    torch_device = device.torch_device
    count, side = (1 << 14, 32) if dry else (1 << 31, 8192)
    case = Case()
    source = torch.randn(count // 2, device=torch_device).view(torch.bfloat16)
    target = torch.empty_like(source)
    work = Work(moved_bytes=float(2 * source.numel() * 2))
    case.add(contest(device, "copy", {"torch": [partial(target.copy_, source)]}, work, seconds=seconds))
    del source, target
    device.free()
    a, b = (torch.randn(side, side, device=torch_device).bfloat16() for _ in range(2))
    work = Work(operations=2.0 * side**3)
    case.add(contest(device, f"matmul {side}", {"torch": [partial(torch.mm, a, b)]}, work, seconds=seconds))
    device.free()
    return case.as_json()
