"""`fastbert.search.rows`: the native scan beside NumPy, on every path, width and number of threads."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from collections.abc import Iterator

import cpu_kernels
import numpy as np
import pytest
import torch
from sweeps import sweep

from fastbert.errors import UserError
from fastbert.ops.native.matmul import quantize_rows
from fastbert.search.rows import best_rows

SHAPES = [
    pytest.param(1, 1, 1, 1, id="one"),
    pytest.param(2, 70, 1, 3, id="narrow"),
    pytest.param(5, 1000, 33, 10, id="odd-width"),
    pytest.param(3, 129, 384, 200, id="k-above-rows"),
    pytest.param(9, 3000, 100, 7, id="queries-in-groups"),
    pytest.param(4, 130, 1000, 5, id="small-blocks"),
]


@pytest.fixture(params=["portable", "avx2", "avx512", "avx512-vnni"])
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu_kernels.running(request.param):
        yield request.param


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def best_of(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k largest scores per row and their columns, equal ones by column."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


def sums_of_16(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return dot products in fp32 as csrc/cpu/search/search.h defines them: 16 sums, added in pairs."""
    pad = ((0, 0), (0, -rows.shape[1] % 16))
    rows, queries = np.pad(rows.astype(np.float32), pad), np.pad(queries, pad)
    sums = np.zeros((len(queries), len(rows), 16), np.float32)
    for first in range(0, rows.shape[1], 16):
        sums += queries[:, None, first : first + 16] * rows[None, :, first : first + 16]
    for half in (8, 4, 2, 1):
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0]


@sweep(("count", "rows", "width", "k"), SHAPES)
def test_int8_has_the_bits_of_exact_sums(kernel: str, threads: int, count: int, rows: int, width: int, k: int) -> None:
    rng = np.random.default_rng(width)
    queries = torch.from_numpy(rng.standard_normal((count, width), np.float32))
    stored = rng.integers(-128, 128, (rows, width)).astype(np.int8)
    scales = rng.random(rows, np.float32)
    integers, query_scales = quantize_rows(queries)
    sums = integers.numpy().astype(np.int64) @ stored.astype(np.int64).T
    expected = best_of(sums.astype(np.float32) * scales * query_scales.numpy()[:, None], k)
    scores, indices = best_rows(queries, stored, k, scales=scales)
    assert np.array_equal(indices.numpy(), expected[1])
    assert np.array_equal(scores.numpy(), expected[0])


@sweep("dtype", [np.float16, np.float32])
@sweep(("count", "rows", "width", "k"), SHAPES)
def test_floats_have_the_bits_of_sums_of_16(
    kernel: str, threads: int, dtype: type, count: int, rows: int, width: int, k: int
) -> None:
    rng = np.random.default_rng(width)
    queries = rng.standard_normal((count, width), np.float32)
    stored = (rng.standard_normal((rows, width)) * 1e-6 ** rng.random((rows, 1))).astype(dtype)  # some are subnormal
    expected = best_of(sums_of_16(queries, stored), k)
    scores, indices = best_rows(torch.from_numpy(queries), stored, k)
    assert np.array_equal(indices.numpy(), expected[1])
    assert np.array_equal(scores.numpy(), expected[0])


@sweep("dtype", [np.int8, np.float16, np.float32])
def test_equal_scores_are_ordered_by_index(kernel: str, threads: int, dtype: type) -> None:
    """Over many chunks, which threads take in any order."""
    rows = np.ones((40_000, 96), dtype)
    rows[20_000] = 2
    scales = np.ones(len(rows), np.float32) if dtype is np.int8 else None
    _, indices = best_rows(torch.ones(3, 96), rows, 50, scales=scales)
    assert indices.tolist() == [[20_000, *range(49)]] * 3


def test_extreme_integers_do_not_saturate(kernel: str) -> None:
    rows = np.full((3, 65_536), -128, np.int8)
    rows[1] = 127
    scores, indices = best_rows(torch.full((1, 65_536), -1.0), rows, 3, scales=np.ones(3, np.float32))
    exact = np.float32(127 * 128 * 65_536) * np.float32(1 / 127)
    assert indices.tolist() == [[0, 2, 1]]
    assert scores[0, 0].item() == pytest.approx(exact, rel=1e-6)
    assert scores[0, 2].item() == pytest.approx(-np.float32(127 * 127 * 65_536) / 127, rel=1e-6)


@sweep("value", [float("nan"), float("inf"), float("-inf")])
@sweep("dtype", [np.float16, np.float32])
def test_names_the_first_row_that_is_not_finite(kernel: str, dtype: type, value: float) -> None:
    rows = np.ones((5000, 40), dtype)
    rows[[3777, 4900], 39] = value
    with pytest.raises(UserError, match=r"rows\[3777\] has a score that is not finite"):
        best_rows(torch.ones(5, 40), rows, 2)


def test_names_the_row_with_a_scale_that_is_not_finite(kernel: str) -> None:
    scales = np.ones(500, np.float32)
    scales[123] = np.nan
    with pytest.raises(UserError, match=r"rows\[123\] has a score that is not finite"):
        best_rows(torch.ones(1, 8), np.ones((500, 8), np.int8), 2, scales=scales)


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect is called as on Linux")
def test_reads_nothing_behind_the_rows(kernel: str) -> None:
    """The page behind the rows may not be read: a read there would end the process."""
    page = mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, 2 * page), np.int8)
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(memory.ctypes.data + page), page, 0)
    for width, dtype in itertools.product((1, 33, 63, 64), (np.int8, np.float16, np.float32)):
        size = width * np.dtype(dtype).itemsize
        count = page // size
        rows = memory[page - count * size : page].view(dtype).reshape(count, width)
        scales = np.ones(count, np.float32) if dtype is np.int8 else None
        scores, _ = best_rows(torch.ones(5, width), rows, 1, scales=scales)
        assert scores.tolist() == [[0.0]] * 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"rows": np.ones((5, 3), np.float32)}, "queries are 4 numbers wide and vectors 3", id="width"),
        pytest.param({"rows": torch.ones(5, 4)}, "rows must be an array .* not Tensor", id="tensor"),
        pytest.param({"queries": np.ones((2, 4), np.float32)}, "queries must be a tensor .* not ndarray", id="array"),
        pytest.param({"rows": np.ones((5, 4))}, "rows has dtype float64", id="dtype"),
        pytest.param({"rows": np.ones((5, 8), np.float32)[:, ::2]}, "rows must be contiguous", id="strides"),
        pytest.param({"rows": np.ones((5, 4), np.int8)}, "int8 rows need scales", id="no-scales"),
        pytest.param({"scales": np.ones(5, np.float32)}, "scales belong to int8 rows", id="scales"),
        pytest.param({"k": 0}, "k=0 must be a whole number", id="k"),
    ],
)
def test_refuses(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"queries": torch.ones(2, 4), "rows": np.ones((5, 4), np.float32), "k": 1, **change}
    with pytest.raises(UserError, match=message):
        best_rows(**arguments)  # type: ignore[arg-type]
