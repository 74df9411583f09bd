"""The norm module: both kinds, with and without a bias."""

from typing import Any

import pytest
import torch

from fastbert.errors import UserError
from fastbert.models.norm import Norm, is_plain_norm
from fastbert.ops import reference


def test_norms_of_every_kind(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(5, 24)
    kinds: list[tuple[dict[str, Any], bool, str]] = [
        ({}, True, "24, eps=1e-05"),
        ({"bias": False}, False, "24, eps=1e-05, bias=False"),
        ({"kind": "rms_norm"}, False, "24, eps=1e-05, rms_norm"),
    ]
    for options, biased, description in kinds:
        norm = Norm(24, 1e-5, **options)
        assert set(norm.state_dict()) == ({"weight", "bias"} if biased else {"weight"})
        assert is_plain_norm(norm) == biased
        assert norm.extra_repr() == description
        torch.nn.init.normal_(norm.weight)
        weight = norm.weight.double()
        exact = (
            reference.rms_norm(x.double(), weight, 1e-5)
            if "kind" in options
            else reference.layer_norm(x.double(), weight, 0.0, 1e-5)
        )
        torch.testing.assert_close(norm(x), exact.float())
        norm(x).square().sum().backward()
        assert norm.weight.grad is not None
    with pytest.raises(UserError, match="kind='batch_norm' must be 'layer_norm' or 'rms_norm'"):
        Norm(24, 1e-5, kind="batch_norm")  # type: ignore[arg-type]
