"""Softmax over explicit scores with scale, mask and dropout, beside torch's four operations in a row; and the ceilings
that the device itself sets: a copy, and a matrix product.
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
from fastbert.benchmarks.gpu.measure import Calls, Case, Work, contest, each, input_sets, willing, without_gradient
from fastbert.benchmarks.harness.measure import OWN
from fastbert.ops import dispatch, reference

SCALE, DROPOUT = 0.125, 0.1
CHECKED = 2  # sequences compared with float64


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores (sequences, heads, keys, keys) bf16, a mask of random lengths, and what comes back from above."""

    scores: Tensor
    mask: Tensor
    key: Tensor
    gradient: Tensor


def draw(device: Device, sequences: int, heads: int, keys: int, seed: int) -> Scores:
    """Random scores; every sequence has keys in at least half of its places."""
    place = device.torch_device
    generator = torch.Generator(place).manual_seed(seed)
    shape = (sequences, heads, keys, keys)
    scores, gradient = (torch.randn(shape, generator=generator, device=place, dtype=torch.bfloat16) for _ in range(2))
    lengths = torch.randint(keys // 2, keys + 1, (sequences,), generator=generator, device=place)
    mask = (torch.arange(keys, device=place) < lengths[:, None])[:, None, None]
    key = torch.randint(0, 2**62, (sequences,), generator=generator, device=place)
    return Scores(scores=(4 * scores).requires_grad_(), mask=mask, key=key, gradient=gradient)


def ours(one: Scores, dropout: float = DROPOUT) -> Tensor:
    return ops.softmax(one.scores, one.mask, scale=SCALE, dropout_p=dropout, dropout_key=one.key)


def eager(one: Scores) -> Tensor:
    probabilities = (one.scores * SCALE).masked_fill(~one.mask, -math.inf).softmax(-1)
    return F.dropout(probabilities, DROPOUT)


def case_names(dry: bool) -> list[str]:
    lengths = (16, 24) if dry else (128, 512)
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
        served = dispatch.preferred_backend("softmax", device.torch_device)
        sets = [draw(device, sequences, heads, int(keys), seed) for seed in range(input_sets(device, 2 * size))]
        difference, verdict = _compare(sets[0])
        candidates = {OWN: partial(_calls, ours, sets, backward), "eager": partial(_calls, eager, sets, backward)}
        case.rows = contest(
            device,
            name,
            willing(device, case, name, candidates, without),
            work,
            seconds=seconds,
            differences={OWN: difference},
            outputs={OWN: verdict, "eager": "not compared"},
            details={"backend": served, "sequences": sequences, "heads": heads, "keys": int(keys)},
        )
    device.free()
    return case.as_json()


def _calls(function: Any, sets: list[Scores], backward: bool) -> Calls:
    if not backward:
        return each(partial(without_gradient, function), sets)
    return [partial(_backward, function(one), one) for one in sets]


def _backward(out: Tensor, one: Scores) -> Tensor:
    return torch.autograd.grad(out, one.scores, one.gradient, retain_graph=True)[0]


def _compare(one: Scores) -> tuple[float, str]:
    """Of some sequences: our largest difference from float64, and whether it is at most twice eager torch's."""
    mine = ours(one).detach()[:CHECKED].double()
    heads, keys = one.scores.shape[1], one.scores.shape[2]
    kept = torch.stack(
        [reference.attention_dropout_mask(heads, keys, keys, DROPOUT, key, 0) for key in one.key[:CHECKED]]
    )
    found = []
    for dtype in (torch.float64, one.scores.dtype):
        scores = one.scores.detach()[:CHECKED].to(dtype) * SCALE
        found.append((reference.attention_probabilities(scores, one.mask[:CHECKED]) * kept.to(dtype)).double())
    exact, theirs = found
    own, others = float((mine - exact).abs().max()), float((theirs - exact).abs().max())
    return own, "close" if own <= 2 * others + 1e-5 else f"wrong: off by {own:.3g}, eager torch by {others:.3g}"


# Ceilings


def ceilings(dry: bool, seconds: float) -> dict[str, Any]:
    """Bytes a second of a copy, read and written both counted, and operations a second of a square bf16 product."""
    device = open_device(dry)
    place = device.torch_device
    count, side = (1 << 14, 32) if dry else (1 << 31, 8192)
    case = Case()
    source = torch.randn(count // 2, device=place).view(torch.bfloat16)
    target = torch.empty_like(source)
    work = Work(moved_bytes=float(2 * source.numel() * 2))
    case.rows += contest(device, "copy", {"torch": [partial(target.copy_, source)]}, work, seconds=seconds)
    del source, target
    device.free()
    a, b = (torch.randn(side, side, device=place).bfloat16() for _ in range(2))
    work = Work(operations=2.0 * side**3)
    case.rows += contest(device, f"product {side}", {"torch": [partial(torch.mm, a, b)]}, work, seconds=seconds)
    device.free()
    return case.as_json()
