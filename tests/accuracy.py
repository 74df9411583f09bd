"""The tolerance rule of all numeric tests: compared with float64, at most twice as wrong as eager torch, plus 1e-5.

The 1e-5 is of the largest value where that is above 1: the rounding of long sums grows with them, and eager torch's own
error in the same place is a matter of luck.
"""

import math
from collections.abc import Mapping

import torch

FACTOR = 2.0
FLOOR = 1e-5
# The share of a model's whole gradient below which that of a parameter counts as a sum that cancels: FLOOR times it is
# one rounding of the whole gradient in fp32.
CANCELLED = 1e-2


def worst_error(values: torch.Tensor, exact: torch.Tensor) -> tuple[float, tuple[int, ...]]:
    """The largest difference of `values` from `exact`, and its place; a NaN or another infinity counts as inf."""
    if exact.numel() == 0:
        return 0.0, ()
    values, exact = values.detach().double().cpu(), exact.detach().double().cpu()
    same = (values == exact) | (values.isnan() & exact.isnan())
    error = torch.where(same, 0.0, (values - exact).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    position = int(error.argmax())
    return float(error.flatten()[position]), tuple(
        int(index) for index in torch.unravel_index(torch.tensor(position), error.shape)
    )


def assert_as_accurate(
    actual: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    what: str = "result",
    *,
    factor: float = FACTOR,
    floor: float = FLOOR,
) -> None:
    """Fail unless the worst error of `actual` is at most `factor` times that of `eager`, plus `floor` of the scale.

    `exact` is the same computation in float64, `eager` eager torch's in the dtype of `actual`. NaNs and infinities must
    stand exactly where `exact` has them.
    """
    assert exact.dtype == torch.float64, f"{what}: exact must be computed in float64, it is {exact.dtype}"
    assert actual.dtype == eager.dtype, f"{what}: has dtype {actual.dtype}, eager torch gives {eager.dtype}"
    assert actual.shape == exact.shape == eager.shape, (
        f"{what}: has shape {tuple(actual.shape)}, eager torch {tuple(eager.shape)}, float64 {tuple(exact.shape)}"
    )
    reference, _ = worst_error(eager, exact)
    assert math.isfinite(reference), f"{what}: eager torch itself has a NaN or an infinity that float64 does not have"
    error, position = worst_error(actual, exact)
    finite = exact.detach()[exact.detach().isfinite()]
    floor *= max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    bound = factor * reference + floor
    if not error <= bound:
        wrong = int(((actual.detach().double().cpu() - exact.detach().cpu()).abs() <= bound).logical_not().sum())
        raise AssertionError(
            f"{what}: worst error {error:.3g} at {position} is over {bound:.3g} = {factor:g} x eager's {reference:.3g}"
            f" + {floor:g} ({actual.dtype}, {wrong} of {exact.numel()} elements);"
            f" got {float(actual[position]):.9g}, eager {float(eager[position]):.9g},"
            f" float64 {float(exact[position]):.9g}"
        )


def assert_gradients_as_accurate(
    actual: Mapping[str, torch.Tensor], eager: Mapping[str, torch.Tensor], exact: Mapping[str, torch.Tensor]
) -> None:
    """Fail unless the gradients of all parameters, by name, are as accurate as eager torch's, element and norm.

    The worst element follows `assert_as_accurate`. The norm-wise relative error of a parameter,
    ||g - exact|| / ||exact||, is at most twice eager's, plus 1e-5: it includes a loss of precision that all elements
    share, even where they are small. For sums that cancel, such as the gradient of the keys' bias, which is 0 but for
    rounding, the 1e-5 is of a hundredth of the whole gradient's norm: a rounding or two of the upstream gradient decide
    their error, so that eager's is larger on one seed and ours on the next.
    """
    assert actual.keys() == eager.keys() == exact.keys()
    norms = {name: float(grad.norm()) for name, grad in exact.items()}
    least = CANCELLED * math.hypot(*norms.values())
    for name, truth in exact.items():
        assert_as_accurate(actual[name], eager[name], truth, name)
        error, reference = (float((grads[name].double() - truth).norm()) for grads in (actual, eager))
        bound = FACTOR * reference + FLOOR * max(norms[name], least)
        assert error <= bound, (
            f"{name}: the norm of the error, {error:.3g}, is over {bound:.3g} = {FACTOR:g} x eager's {reference:.3g}"
            f" + {FLOOR:g} x {max(norms[name], least):.3g}; the gradient's norm is {norms[name]:.3g}"
        )
