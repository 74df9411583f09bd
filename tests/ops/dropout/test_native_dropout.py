"""The C++ generators of dropout masks at every dispatch level, against the oracle in Python."""

from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from fences import Fenced
from rowwise_kernels import LEVELS

from fastbert import _C
from fastbert.ops import reference
from fastbert.ops.dropout.arguments import TokenDropout, quantized
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 1.0 - 1e-9])
def test_token_masks_equal_the_oracle(dtype: torch.dtype, p: float, seed: int) -> None:
    sequence, position, key = torch.tensor([0, 1, 1]), torch.tensor([511, 0, 2**31 - 1]), keys(2, seed)
    for width in WIDTHS:
        dropout = TokenDropout(p, key, sequence, position, 11 << 8 | 3)
        oracle = reference.token_dropout_mask(width, p, key, sequence, position, dropout.site)
        assert torch.equal(token_mask(dropout, width, dtype), oracle.to(dtype)), f"width {width}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_masks_equal_the_oracle(dtype: torch.dtype, seed: int) -> None:
    key = keys(2, seed)
    for count in WIDTHS:
        oracle = torch.stack(
            [reference.attention_dropout_mask(2, 3, count, 0.25, sequence_key, 9) for sequence_key in key]
        )
        assert torch.equal(attention_mask((2, 2, 3, count), 0.25, key, 9, dtype), oracle.to(dtype)), f"{count} keys"


@pytest.mark.parametrize("behind", [True, False], ids=["behind", "before"])
@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32], ids=str)
def test_nothing_outside_is_touched(behind: bool, dtype: torch.dtype, seed: int) -> None:
    key, zeros = keys(1, seed).numpy(), torch.zeros(1, dtype=torch.int64).numpy()
    threshold, _ = quantized(0.3)
    for width in WIDTHS:
        out = Fenced(torch.zeros((1, width), dtype=dtype), behind).tensor
        _C.token_dropout_mask(out.numpy(), key, zeros, zeros, 5, threshold, 7)
        assert set(out.flatten().tolist()) <= {0, 7}
        _C.attention_dropout_mask(out[None, None].numpy(), key, 5, threshold, 7)
        assert set(out.flatten().tolist()) <= {0, 7}
