"""`fastbert.search.exact`: the largest dot products, ties, exclusions and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fastbert.errors import UserError
from fastbert.search import exact
from fastbert.search.exact import largest, top_k


def reference(queries: torch.Tensor, vectors: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices of the k largest products in fp64, equal ones by index."""
    scores = queries.double() @ vectors.double().T
    return torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :k]


@pytest.mark.parametrize(
    ("count", "rows", "width", "k", "block_rows"),
    [
        pytest.param(1, 1, 1, 1, 16, id="one"),
        pytest.param(5, 1000, 33, 10, 64, id="blocks"),
        pytest.param(3, 129, 384, 200, 128, id="k-above-rows"),
        pytest.param(7, 50, 17, 50, 7, id="all-of-them"),
        pytest.param(0, 50, 17, 5, 7, id="no-query"),
    ],
)
def test_equals_a_full_sort(count: int, rows: int, width: int, k: int, block_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    # Whole numbers: sums are exact in any order, and many are equal.
    queries = torch.randint(-3, 4, (count, width), generator=generator).float()
    vectors = torch.randint(-3, 4, (rows, width), generator=generator).float()
    scores, indices = top_k(queries, vectors, k, block_rows=block_rows)
    expected = reference(queries, vectors, k)
    assert torch.equal(indices, expected)
    assert torch.equal(scores, (queries @ vectors.T).gather(1, expected))
    assert scores.dtype == torch.float32
    assert indices.dtype == torch.int64


def test_scores_have_the_same_bits_in_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    queries, vectors = torch.randn(9, 100, generator=generator), torch.randn(700, 100, generator=generator)
    whole = top_k(queries, vectors, 20)
    monkeypatch.setattr(exact, "MOST_SCORES", 100)
    parts = top_k(queries, vectors, 20, block_rows=37)
    assert torch.equal(whole[0], parts[0])
    assert torch.equal(whole[1], parts[1])


def test_equal_scores_are_ordered_by_index() -> None:
    scores, indices = top_k(torch.ones(2, 4), torch.ones(500, 4), 7, block_rows=100)
    assert indices.tolist() == [list(range(7))] * 2
    assert scores.unique().tolist() == [4.0]
    values, columns = largest(torch.tensor([[1.0, 2.0, 1.0, 3.0, 1.0, 1.0]]), 4)
    assert columns.tolist() == [[3, 1, 0, 2]]
    assert values.tolist() == [[3.0, 2.0, 1.0, 1.0]]


def test_memory_mapped_fp16(tmp_path: Path) -> None:
    vectors = np.random.default_rng(2).standard_normal((300, 40)).astype(np.float16)
    np.save(tmp_path / "vectors.npy", vectors)
    queries = torch.randn(3, 40, generator=torch.Generator().manual_seed(2))
    mapped = top_k(queries, np.load(tmp_path / "vectors.npy", mmap_mode="r"), 9, block_rows=64)
    in_memory = top_k(queries, torch.from_numpy(vectors).float(), 9)
    assert torch.equal(mapped[0], in_memory[0])
    assert torch.equal(mapped[1], in_memory[1])


def test_excluded_vectors_are_not_returned() -> None:
    generator = torch.Generator().manual_seed(3)
    queries, vectors = torch.randn(4, 8, generator=generator), torch.randn(30, 8, generator=generator)
    excluded = [reference(queries, vectors, 3)[0].tolist(), [], [5, 5, 29], range(28)]
    scores, indices = top_k(queries, vectors, 6, excluded=excluded, block_rows=7)
    for row, missing in enumerate(excluded):
        expected = [index for index in reference(queries, vectors, 30)[row].tolist() if index not in missing][:6]
        assert indices[row].tolist() == expected + [-1] * (6 - len(expected))
    assert scores[3, 2:].tolist() == [float("-inf")] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"vectors": torch.ones(5, 3)}, r"queries are 4 numbers wide and vectors 3", id="width"),
        pytest.param({"queries": torch.ones(4)}, r"queries has shape \(4,\)", id="shape"),
        pytest.param({"queries": torch.ones(2, 4).half()}, r"queries has dtype torch.float16", id="dtype"),
        pytest.param({"vectors": np.ones((5, 4))}, r"vectors has dtype float64", id="array-dtype"),
        pytest.param({"vectors": [[1.0] * 4]}, r"vectors must be a tensor or an array", id="list"),
        pytest.param({"k": 0}, r"k=0", id="k"),
        pytest.param({"excluded": [[1]]}, r"excluded has 1 lists for 2 queries", id="lists"),
        pytest.param({"excluded": [[], [5]]}, r"excluded\[1\] holds 5, and there are 5 vectors", id="index"),
    ],
)
def test_refuses(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"queries": torch.ones(2, 4), "vectors": torch.ones(5, 4), "k": 1, **change}
    with pytest.raises(UserError, match=message):
        top_k(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_names_the_vector_that_is_not_finite(value: float) -> None:
    vectors = torch.ones(50, 4)
    vectors[37, 2] = value
    with pytest.raises(UserError, match=r"vectors\[37\] holds a NaN or an infinity"):
        top_k(torch.ones(1, 4), vectors, 1, block_rows=10)
    with pytest.raises(UserError, match=r"queries\[37\] holds a NaN or an infinity"):
        top_k(vectors, torch.ones(2, 4), 1)


def test_refuses_products_that_overflow() -> None:
    vectors = torch.ones(3, 4)
    vectors[1] = 3e38
    with pytest.raises(UserError, match=r"queries\[0\] and vectors\[1\] overflows"):
        top_k(torch.full((1, 4), 2.0), vectors, 1)
