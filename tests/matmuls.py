"""Helpers of the tests of native matmuls: the kernels they run, random matrices, and a comparison bit for bit."""

import cpu_kernels
import pytest
import torch
from torch import Tensor

BF16, FP32 = torch.bfloat16, torch.float32
DTYPES = [pytest.param(BF16, id="bf16"), pytest.param(FP32, id="fp32")]
ELEMENTS = [pytest.param("bf16", BF16, id="bf16"), pytest.param("fp32", FP32, id="fp32")]
LEVELS = [name for name in cpu_kernels.KERNELS if name != "avx512-vnni"]  # which is one of int8


def drawn(seed: int, *shape: int, dtype: torch.dtype = FP32, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Return whether two tensors, bf16 or fp32, are equal, NaN and the sign of zero too; neither may be None."""
    assert a is not None
    assert b is not None
    kind = torch.int16 if a.dtype == BF16 else torch.int32
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))
