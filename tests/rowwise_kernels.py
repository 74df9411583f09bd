"""Helpers of the tests of row-wise CPU kernels: levels to run, random tensors, the tolerance for few elements."""

from typing import Any

import cpu_kernels
import pytest
import torch
from accuracy import assert_as_accurate
from torch import Tensor

DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
# No row-wise kernel depends on more than the level.
LEVELS = [name for name in cpu_kernels.HERE if name not in ("avx512-vnni", "avx512-bf16")]


class Draw:
    """Random tensors of one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(dtype)

    def ids(self, rows: int, tokens: int) -> Tensor:
        return torch.randint(0, rows, (tokens,), generator=self.generator)


def wide(tensors: list[Any]) -> list[Any]:
    return [x.double() if x.is_floating_point() else x for x in tensors]


def check(actual: Tensor, eager: Tensor, exact: Tensor, what: str) -> None:
    # Among few elements the errors of eager torch can all be small by luck: then two units of the last place are fine.
    few = exact.numel() < 2000
    assert_as_accurate(actual, eager, exact, what, floor=max(1e-5, 2 * torch.finfo(actual.dtype).eps) if few else 1e-5)


def apart(x: Tensor) -> Tensor:
    wider = torch.full((x.shape[0], x.shape[1] + 5), torch.nan, dtype=x.dtype)
    wider[:, 2:-3] = x
    return wider[:, 2:-3]
