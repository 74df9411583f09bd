"""MaxSim beside a plain loop."""

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from fastbert import maxsim
from fastbert.errors import UserError
from fastbert.retrieval.ragged import TokenVectors


def texts(seed: int, sizes: list[int], width: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, width, generator=generator) for size in sizes]


def packed(vectors: list[Tensor]) -> TokenVectors:
    offsets = torch.tensor([0, *accumulate(map(len, vectors))])
    whole = torch.cat(vectors)
    return TokenVectors(vectors=whole, offsets=offsets, token_ids=torch.zeros(len(whole), dtype=torch.int32))


def plain(queries: list[Tensor], documents: list[Tensor]) -> Tensor:
    rows = []
    for query in queries:
        scores = []
        for document in documents:
            score = 0.0
            for vector in query.double():
                score += max((float(vector @ other) for other in document.double()), default=float("-inf"))
            scores.append(score)
        rows.append(scores)
    return torch.tensor(rows)


@pytest.mark.parametrize("most_products", [1, 100, 1 << 22])
def test_scores_are_those_of_a_loop(seed: int, most_products: int) -> None:
    """Ragged texts, one without vectors on either side, and any number of products at a time."""
    queries, documents = texts(seed, [3, 0, 1, 9, 4]), texts(seed + 1, [5, 1, 0, 33, 2, 8, 0])
    expected = plain(queries, documents)
    assert bool(expected.isinf().any())
    scores = maxsim(packed(queries), packed(documents), most_products=most_products)
    torch.testing.assert_close(scores, expected)
    torch.testing.assert_close(maxsim(queries, documents, most_products=most_products), expected)
    half = maxsim([query.bfloat16() for query in queries], documents)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, plain([query.bfloat16().float() for query in queries], documents))


def test_nothing_to_score(seed: int) -> None:
    queries = texts(seed, [3, 4])
    assert maxsim(queries, []).shape == (2, 0)
    assert maxsim([], queries).shape == (0, 2)


def test_what_is_refused(seed: int) -> None:
    wide, narrow = texts(seed, [3, 4]), texts(seed, [3], width=8)
    broken = TokenVectors(vectors=wide[0], offsets=torch.tensor([0, 2]), token_ids=torch.zeros(3, dtype=torch.int32))
    for message, call in {
        "queries are 16 numbers wide and documents 8": lambda: maxsim(wide, narrow),
        r"documents\[1\] is 8 numbers wide, not 16": lambda: maxsim(wide, [*wide[:1], *narrow]),
        r"queries\[0\] must be a tensor of floats \(tokens, width\), not \(3, 4, 16\)": lambda: maxsim(
            [torch.zeros(3, 4, 16)], wide
        ),
        "queries: offsets must ascend from 0 to the 3 tokens": lambda: maxsim(broken, wide),
    }.items():
        with pytest.raises(UserError, match=message):
            call()
