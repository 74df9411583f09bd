"""The C++ softmax of CPUs at every dispatch level: masks, rows without a key, and scores of any strides."""

import math
from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from rowwise_kernels import DTYPES, LEVELS, Draw, check
from sweeps import sweep

from fastbert import ops, use_backend


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every level that this processor has, without gradients."""
    with cpu_kernels.running(request.param), torch.no_grad():
        yield request.param


@sweep("dtype", DTYPES)
@sweep("keys", [1, 5, 16, 33, 200])
@sweep("form", ["none", "keys", "queries", "batch", "all", "one", "apart"])
def test_softmax_masks(dtype: torch.dtype, keys: int, form: str, seed: int) -> None:
    draw = Draw(seed)
    scores = draw.normal(3, 2, 5, keys, dtype=dtype)
    shapes = {"keys": (keys,), "queries": (5, 1), "batch": (3, 1, 1, keys), "all": (3, 2, 5, keys), "one": (1, 1, 1, 1)}
    mask = draw.normal(*shapes[form]) > -0.5 if form in shapes else None
    if form == "apart":
        mask = (draw.normal(keys, 5) > -0.5).t()
    both = {}
    for backend in ("native", "eager"):
        with use_backend(backend):  # type: ignore[arg-type]
            both[backend] = ops.softmax(scores, mask, scale=-1.5)
    with use_backend("eager"):
        exact = ops.softmax(scores.double(), mask, scale=-1.5)
    check(both["native"], both["eager"], exact, "softmax")


def test_softmax_of_rows_without_a_key_and_of_what_is_no_number(seed: int) -> None:
    scores = Draw(seed).normal(1, 1, 6, 37)
    scores[0, 0, 0] = -math.inf
    scores[0, 0, 1, 30] = math.nan
    scores[0, 0, 2, 36] = math.inf
    scores[0, 0, 3] = -1000.0 + scores[0, 0, 3]
    scores[0, 0, 4, 1:] = -math.inf
    mask = torch.ones(6, 37, dtype=torch.bool)
    mask[5] = False
    with use_backend("native"):
        y = ops.softmax(scores, mask)[0, 0]
    assert (y[[0, 5]] == 0.0).all()
    assert y[[1, 2]].isnan().all()
    torch.testing.assert_close(y[3], scores[0, 0, 3].softmax(-1))
    assert y[4].tolist() == [1.0] + [0.0] * 36


def test_softmax_of_scores_of_any_strides(seed: int) -> None:
    scores = Draw(seed).normal(3, 5, 2, 33)
    mask = scores.transpose(1, 2) > -1.0
    with use_backend("native"):
        for one in (
            scores.transpose(1, 2),
            scores.transpose(2, 3),
            scores[:, :, :, 1:30],
            scores[:1].expand(4, 5, 2, 33),
        ):
            assert torch.equal(ops.softmax(one), ops.softmax(one.contiguous()))
        turned = scores.transpose(1, 2)
        assert torch.equal(ops.softmax(turned, mask), ops.softmax(turned.contiguous(), mask.contiguous()))
