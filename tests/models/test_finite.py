"""Non-finite outputs are refused, and the message names what caused them."""

import pytest
import torch
from torch import nn

from fastbert.errors import UserError
from fastbert.models.finite import check_finite, first_non_finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_the_first_bad_tensor_is_named(value: float) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert first_non_finite(model) is None
    with torch.no_grad():
        model[2].bias[1] = value
        assert first_non_finite(model) == "2.bias"
        model[0].weight[2, 1] = value
    assert first_non_finite(model) == "0.weight"
    bad = nn.BatchNorm1d(4)
    bad.running_var[0] = value
    assert first_non_finite(bad) == "running_var"


def test_rows_are_blamed_only_if_the_weights_are_finite() -> None:
    model = nn.Linear(3, 4)
    outputs = torch.zeros(5, 4)
    check_finite(model, outputs, str)
    check_finite(model, torch.zeros(0, 4), str)
    outputs[3, 1] = torch.nan
    with pytest.raises(UserError, match=r"text 3: the model's output is NaN"):
        check_finite(model, outputs, lambda row: f"text {row}")
    with torch.no_grad():
        model.weight[0, 0] = torch.inf
    with pytest.raises(UserError, match=r"^weight: this weight of the model holds NaN"):
        check_finite(model, outputs, str)
