"""GELU with a bias against the oracle, with random upstream gradients."""

import torch
from oracle_checks import DTYPES, SHAPES, check
from sweeps import sweep
from torch.nn import functional as F

from fastbert import ops
from fastbert.ops import reference


@sweep(("rows", "width"), SHAPES)
@sweep("dtype", DTYPES)
@sweep("approximate", ["none", "tanh"])
def test_bias_gelu(rows: int, width: int, dtype: torch.dtype, approximate: str, seed: int) -> None:
    torch.manual_seed(seed)
    tensors = [torch.randn(rows, width) * 2, torch.randn(width)]
    check(
        lambda x, b: ops.bias_gelu(x, b, approximate),
        lambda x, b: F.gelu(x + b, approximate=approximate),
        lambda x, b: reference.gelu(x + b, approximate),
        tensors,
        dtype,
        seed,
    )
