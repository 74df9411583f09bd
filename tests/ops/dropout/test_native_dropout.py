"""The C++ generators of dropout masks at every dispatch level, against the oracle in Python."""

from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from fences import Fenced
from rowwise_kernels import LEVELS
from sweeps import sweep

from fastbert import _C
from fastbert.ops import reference
from fastbert.ops.dropout.arguments import TokenDropout, quantized, quantized_attention
from fastbert.ops.dropout.masks import attention_mask, token_mask

DTYPES = [torch.float32, torch.bfloat16]
WIDTHS = [1, 7, 8, 15, 16, 17, 31, 33, 64, 65, 127, 129, 255, 257, 384, 513, 768, 1000]


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every level that this processor has."""
    with cpu_kernels.running(request.param):
        yield request.param


def keys(count: int, seed: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(seed))


@sweep("dtype", DTYPES, ids=str)
@sweep("p", [1e-6, 0.1, 0.5, 1.0 - 1e-9])
def test_token_masks_equal_the_oracle(dtype: torch.dtype, p: float, seed: int) -> None:
    sequence, position, key = torch.tensor([0, 1, 1]), torch.tensor([511, 0, 2**31 - 1]), keys(2, seed)
    for width in WIDTHS:
        dropout = TokenDropout(p, key, sequence, position, 11 << 8 | 3)
        oracle = reference.token_dropout_mask(width, p, key, sequence, position, dropout.site)
        assert torch.equal(token_mask(dropout, width, dtype), oracle.to(dtype)), f"width {width}"


@sweep("dtype", DTYPES, ids=str)
@sweep("p", [1e-6, 0.1, 0.5, 1.0 - 1e-9])
def test_attention_masks_equal_the_oracle(dtype: torch.dtype, p: float, seed: int) -> None:
    key, site = keys(2, seed), 11 << 8 | 1
    # Rows are drawn four at a time, so counts that are no multiple of four end in part of a unit.
    for count, queries in zip(WIDTHS, [1, 2, 3, 4, 5, 6] * 3, strict=True):
        oracle = torch.stack(
            [reference.attention_dropout_mask(2, queries, count, p, sequence_key, site) for sequence_key in key]
        )
        mask = attention_mask((2, 2, queries, count), p, key, site, dtype)
        assert torch.equal(mask, oracle.to(dtype)), f"{queries} queries, {count} keys"


@sweep("behind", [True, False], ids=["behind", "before"])
@sweep("dtype", [torch.uint16, torch.uint32], ids=str)
def test_nothing_outside_is_touched(behind: bool, dtype: torch.dtype, seed: int) -> None:
    key, zeros = keys(1, seed).numpy(), torch.zeros(1, dtype=torch.int64).numpy()
    threshold, attention_threshold = quantized(0.3)[0], quantized_attention(0.3)[0]
    for width in WIDTHS:
        out = Fenced(torch.zeros((1, width), dtype=dtype), behind).tensor
        _C.token_dropout_mask(out.numpy(), key, zeros, zeros, 5, threshold, 7)
        assert set(out.flatten().tolist()) <= {0, 7}
        _C.attention_dropout_mask(out[None, None].numpy(), key, 5, attention_threshold, 7)
        assert set(out.flatten().tolist()) <= {0, 7}


def test_a_threshold_of_16_bits_is_refused() -> None:
    out, key = torch.zeros(1, 1, 1, 8, dtype=torch.int32).view(torch.uint32), keys(1, 0)
    with pytest.raises(ValueError, match="threshold of attention's dropout is above 255"):
        _C.attention_dropout_mask(out.numpy(), key.numpy(), 5, 256, 7)
