"""MaxSim with gradients, beside `fastbert.maxsim`, loops and finite differences."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from fastbert import losses
from fastbert.losses import late_interaction
from fastbert.retrieval.maxsim import maxsim

QUERIES, DOCUMENTS = [3, 0, 1, 9, 4], [5, 1, 0, 33, 2, 8, 0]


def texts(seed: int, sizes: list[int], width: int = 16, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(sum(sizes), width, generator=generator, dtype=dtype, requires_grad=True)
    return vectors, torch.tensor([0, *accumulate(sizes)])


def plain(queries: Tensor, query_sizes: list[int], documents: Tensor, document_sizes: list[int]) -> Tensor:
    """The scores by autograd's own operations."""
    rows = [
        torch.stack([(q @ d.T).amax(1).sum() if len(d) else q.new_tensor(0.0) for d in documents.split(document_sizes)])
        for q in queries.split(query_sizes)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("most_products", [1, 100, 1 << 22])
@pytest.mark.parametrize("is_padded", [False, True], ids=["split", "padded"])
def test_scores_and_gradients(seed: int, most_products: int, is_padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ragged texts, some without vectors, any number of products at a time, and both ways to find the maxima."""
    if is_padded:  # as on a GPU

        def largest(products: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
            values = products.new_full((len(lengths), products.shape[1]), float("-inf"))
            rows = torch.full(values.shape, -1, dtype=torch.int32)
            return late_interaction._largest_of_padded(products, lengths, values, rows)

        monkeypatch.setattr(late_interaction, "_largest", largest)
    (q, q_offsets), (d, d_offsets) = texts(seed, QUERIES), texts(seed + 1, DOCUMENTS)
    scores = losses.maxsim_scores(q, q_offsets, d, d_offsets, most_products=most_products)
    expected = maxsim(q.detach().split(QUERIES), d.detach().split(DOCUMENTS))
    torch.testing.assert_close(scores.detach(), expected)
    assert bool(expected.isinf().any())
    upstream = torch.randn(scores.shape, generator=torch.Generator().manual_seed(seed + 2))
    actual = torch.autograd.grad(scores, (q, d), upstream)
    wanted = torch.autograd.grad(plain(q, QUERIES, d, DOCUMENTS), (q, d), upstream)
    for one, other in zip(actual, wanted):
        torch.testing.assert_close(one, other)


def test_gradients_are_those_of_finite_differences(seed: int, threads: None) -> None:
    torch.set_num_threads(1)  # for thousands of small operations
    q, q_offsets = texts(seed, [2, 1], 3, torch.float64)
    d, d_offsets = texts(seed + 1, [2, 1, 3, 1], 3, torch.float64)
    assert torch.autograd.gradcheck(
        lambda q, d: losses.maxsim_scores(q, q_offsets, d, d_offsets, most_products=9), (q, d)
    )
    assert torch.autograd.gradcheck(lambda q, d: losses.maxsim_pairs(q, q_offsets, d, d_offsets), (q, d))


def test_of_equal_maxima_the_first_gets_the_gradient() -> None:
    d = torch.ones(3, 2, requires_grad=True)
    score = losses.maxsim_scores(torch.ones(1, 2), torch.tensor([0, 1]), d, torch.tensor([0, 3]))
    (gradient,) = torch.autograd.grad(score, d)
    assert gradient.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_pairs_are_the_scores_of_the_own_documents(seed: int) -> None:
    (q, q_offsets), (d, d_offsets) = texts(seed, [3, 1, 4]), texts(seed + 1, [5, 1, 33, 2, 8, 7])
    pairs = losses.maxsim_pairs(q, q_offsets, d, d_offsets)
    scores = losses.maxsim_scores(q, q_offsets, d, d_offsets)
    own = torch.stack([scores[i, 2 * i : 2 * i + 2] for i in range(3)])
    torch.testing.assert_close(pairs, own)
    upstream = torch.randn(3, 2, generator=torch.Generator().manual_seed(seed))
    for one, other in zip(torch.autograd.grad(pairs, (q, d), upstream), torch.autograd.grad(own, (q, d), upstream)):
        torch.testing.assert_close(one, other)


def test_half_precision(seed: int) -> None:
    (q, q_offsets), (d, d_offsets) = texts(seed, [3, 1]), texts(seed + 1, [5, 2])
    halves = [each.detach().bfloat16().requires_grad_() for each in (q, d)]
    scores = losses.maxsim_scores(halves[0], q_offsets, halves[1], d_offsets)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, maxsim([*halves[0].split([3, 1])], [*halves[1].split([5, 2])]))
    assert torch.autograd.grad(scores.sum(), halves)[1].dtype == torch.bfloat16


def test_memory_is_bounded_by_the_products_at_a_time(seed: int) -> None:
    """For backward the rows of the maxima are kept, not the products: one number per document and query token."""
    (q, q_offsets), (d, d_offsets) = texts(seed, [32] * 4), texts(seed + 1, [64] * 16)
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.numel() if tensor.dtype == torch.int32 else 0
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses.maxsim_scores(q, q_offsets, d, d_offsets, most_products=128 * 64 * 4)
    assert sum(saved.values()) == 16 * 128
    assert len(saved) == 2 + 4  # the vectors, and four blocks of documents


def test_nothing_to_score(seed: int) -> None:
    q, offsets = texts(seed, [3, 4])
    nothing = torch.zeros(0, 16), torch.tensor([0])
    assert losses.maxsim_scores(q, offsets, *nothing).shape == (2, 0)
    assert losses.maxsim_scores(*nothing, q, offsets).shape == (0, 2)
