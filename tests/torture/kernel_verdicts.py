"""How a case of the kernels is judged: against float64, at most twice as wrong as eager torch, plus 1e-5.

The rule is that of `tests/accuracy.py`, in steps which the figures count apart (tensors, not cases):

- `within_the_rule`: the worst error is at most twice that of eager torch in the same dtype, plus 1e-5 of the largest
  value. For values below 1 that is stricter than the rule, whose 1e-5 is absolute.
- `within_a_unit`: eager torch's error in one place is a matter of luck; of a few elements it may be 0. Rounding a
  result to its dtype may always cost half a unit of the last place: twice that, of the largest value, is allowed.
- `within_eager_nearby`: the same, of eager torch's worst error in `NEIGHBOURS` places, for which the inputs and
  upstream gradients are moved by at most one unit of their last place.
- `ill_conditioned`: rounding the inputs to their dtype changes the exact result by more than the error. The change is
  computed, in float64, in the same number of places: no algorithm that is given rounded inputs can promise more. For
  two operations a bound of their own is computed in float64 (`Case.terms`, the condition number times the result). Of
  attention's gradients: the terms that cancel in P (dP - D), each rounded once, where P is nearly 1 and D subtracted
  from its own value. Of a LayerNorm of GELU: what it makes of 4e-7, the stated error of the native kernels' GELU, in
  rows of nearly equal values, which it divides by little more than the root of eps.
- `below_1e-5`: the error is within the absolute 1e-5 of the rule alone, of a result that is itself tiny.

Everything else is a failure. NaN and infinities must stand where the exact result has them, once it is rounded to the
dtype. If eager torch itself overflows on the way, the tensor is counted (`eager_overflows`) and not compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from accuracy import FACTOR, FLOOR
from torch import Tensor

NEIGHBOURS = 32
Named = dict[str, Tensor]
# Results by name of the inputs that are given, moved by no more than a rounding: eager torch's, and exact ones.
Compute = Callable[[Named], Named]


def judge(
    actual: Named,
    leaves: Named,
    eager: Compute,
    exact: Compute,
    generator: torch.Generator,
    what: str,
    terms: Callable[[], dict[str, float]] | None = None,
) -> dict[str, float]:
    """Return the figures of one case. Raises AssertionError, which begins with `what`."""
    figures: dict[str, float] = {"tensors": 0}
    moved: list[tuple[Named, Named, Named, Named]] = []
    eagerly, exactly = eager(leaves), exact({name: x.double() for name, x in leaves.items()})
    assert actual.keys() == exactly.keys() == eagerly.keys(), f"{what}: {sorted(actual)}, exactly {sorted(exactly)}"
    for name, mine in actual.items():
        other, truth = eagerly[name], exactly[name]
        assert mine.shape == truth.shape, f"{what}: {name} has shape {tuple(mine.shape)}, not {tuple(truth.shape)}"
        assert mine.dtype == other.dtype, f"{what}: {name} is {mine.dtype}, eager torch's {other.dtype}"
        kind = _judge_finite(mine, other, truth)
        if kind is None:
            error, reference, scale = _error(mine, truth), _error(other, truth), _scale(truth)
            kind = "within_the_rule"
            if error > FACTOR * reference + FLOOR * scale:
                kind = "within_a_unit"
                unit = torch.finfo(mine.dtype).eps * 2.0 ** math.floor(math.log2(scale)) if scale else 0.0
                if error > unit + FLOOR * scale:
                    moved = moved or _neighbours(leaves, eager, exact, generator)
                    kind = _excuse(name, error, truth, reference, scale, moved)
                if kind == "wrong" and terms is not None:
                    cancelling = terms().get(name, 0.0) * torch.finfo(mine.dtype).eps
                    kind = "ill_conditioned" if error <= cancelling else kind
        if kind in ("wrong", "not_finite"):
            error, position = _worst(mine, truth)
            values = tuple(float(x[position]) for x in (mine, other, truth))
            raise AssertionError(
                f"{what}: {name} {tuple(truth.shape)} {mine.dtype}: error {error:.3g} at {position}, eager"
                f" torch's worst {_error(other, truth):.3g}, largest value {_scale(truth):.3g}: got {values[0]:.9g},"
                f" eager {values[1]:.9g}, float64 {values[2]:.9g}"
            )
        figures["tensors"] += 1
        figures[kind] = figures.get(kind, 0) + 1
    return figures


def _judge_finite(mine: Tensor, other: Tensor, truth: Tensor) -> str | None:
    """Return why a tensor is not compared, or "not_finite"; None if NaN and infinities are where they should be."""
    expected = truth.to(mine.dtype)
    if not _same_kinds(other, expected):
        return "eager_overflows"
    return None if _same_kinds(mine, expected) else "not_finite"


def _same_kinds(x: Tensor, y: Tensor) -> bool:
    """Return whether NaN and infinities are equal."""
    if bool(x.isfinite().all()) and bool(y.isfinite().all()):
        return True
    same = (x.isfinite() & y.isfinite()) | (x.isnan() & y.isnan()) | (x == y)
    return bool(same.all())


def _worst(x: Tensor, truth: Tensor) -> tuple[float, tuple[int, ...]]:
    x = x.double()
    finite = x.isfinite() & truth.isfinite()
    same = (x == truth) | (x.isnan() & truth.isnan()) | (truth.to(x.dtype) == x)
    error = torch.where(same, 0.0, torch.where(finite, (x - truth).abs(), math.inf))
    # Beyond the range of the dtype an infinity is right; `_judge_finite` has compared them.
    if not error.numel():
        return 0.0, ()
    position = int(error.argmax())
    index = torch.unravel_index(torch.tensor(position), error.shape)
    return float(error.flatten()[position]), tuple(int(i) for i in index)


def _error(x: Tensor, truth: Tensor) -> float:
    """Return the worst error among finite elements."""
    if not x.numel():
        return 0.0
    error = (x.double() - truth).abs()
    return float(error.nan_to_num(nan=0.0, posinf=0.0).max())


def _scale(truth: Tensor) -> float:
    return float(truth.abs().nan_to_num(nan=0.0, posinf=0.0).max()) if truth.numel() else 0.0


def _neighbours(
    leaves: Named, eager: Compute, exact: Compute, generator: torch.Generator
) -> list[tuple[Named, Named, Named, Named]]:
    """Return eager and exact results in places around the inputs, and exact ones of inputs before their rounding."""
    places = []
    for _ in range(NEIGHBOURS):
        steps = {
            name: (torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1) * torch.finfo(x.dtype).eps
            for name, x in leaves.items()
        }
        rounded = {name: (x.double() * (1 + steps[name])).to(x.dtype) for name, x in leaves.items()}
        wide = {name: x.double() for name, x in rounded.items()}
        unrounded = {name: x.double() * (1 + steps[name] / 2) for name, x in leaves.items()}
        places.append((eager(rounded), exact(wide), exact(unrounded), unrounded))
    return places


def _excuse(
    name: str,
    error: float,
    truth: Tensor,
    reference: float,
    scale: float,
    places: list[tuple[Named, Named, Named, Named]],
) -> str:
    nearby = max(reference, *(_error(eagerly[name], exactly[name]) for eagerly, exactly, _, _ in places))
    if error <= FACTOR * nearby + FLOOR * scale:
        return "within_eager_nearby"
    if error <= max(_error(unrounded[name], truth) for _, _, unrounded, _ in places):
        return "ill_conditioned"
    return "below_1e-5" if error <= FACTOR * nearby + FLOOR else "wrong"
