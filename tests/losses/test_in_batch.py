"""Candidates, positives and false negatives of InfoNCE."""

from __future__ import annotations

from math import log

import pytest
import torch
from torch import Tensor

from fastbert import losses


def scores(seed: int, n: int = 4, m: int = 7) -> Tensor:
    return torch.randn(n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def left_out(rows: Tensor, positives: list[int], excluded: Tensor) -> float:
    """The loss of each row of scores without the excluded columns, by a loop."""
    total = 0.0
    for i, row in enumerate(rows):
        columns = [j for j in range(len(row)) if j == positives[i] or not excluded[i, j]]
        total -= float(row[positives[i]] - row[columns].logsumexp(0))
    return total / len(rows)


def test_positives_anywhere_and_excluded_candidates(seed: int) -> None:
    matrix, positives = scores(seed), [6, 0, 3, 0]
    excluded = torch.rand(4, 7, generator=torch.Generator().manual_seed(seed)) < 0.4
    excluded[0, 6] = True  # an anchor's own positive counts all the same
    loss = losses.info_nce_from_scores(matrix, torch.tensor(positives), excluded=excluded)
    assert float(loss) == pytest.approx(left_out(matrix, positives, excluded))


def test_excluded_candidates_get_no_gradient(seed: int) -> None:
    matrix = scores(seed).requires_grad_()
    excluded = torch.zeros(4, 7, dtype=torch.bool)
    excluded[2, 5] = excluded[2, 2] = True
    loss = losses.info_nce_from_scores(matrix, excluded=excluded)
    (gradient,) = torch.autograd.grad(loss, matrix)
    assert (gradient == 0).nonzero().tolist() == [[2, 5]]


def test_the_reverse_direction_leaves_out_the_same_pairs(seed: int) -> None:
    """Anchors 1 and 3 share a positive; anchor 0 is excluded from the positive of anchor 2."""
    matrix, positives = scores(seed), [6, 0, 3, 0]
    excluded = torch.zeros(4, 7, dtype=torch.bool)
    excluded[0, 3] = True
    loss = losses.info_nce_from_scores(matrix, torch.tensor(positives), excluded=excluded, symmetric=True)
    reverse = torch.zeros(4, 4, dtype=torch.bool)
    reverse[1, 3] = reverse[3, 1] = reverse[2, 0] = True
    backward = left_out(matrix[:, positives].T, [0, 1, 2, 3], reverse)
    assert float(loss) == pytest.approx((left_out(matrix, positives, excluded) + backward) / 2)


def test_directions_of_anchors_of_two_ranks(seed: int) -> None:
    """Each rank has its rows of both directions, whose parts sum to the loss of all."""
    a, p = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(seed))
    total = torch.zeros(())
    for rows in (torch.arange(2), torch.arange(2, 6)):
        forward = losses.info_nce(a[rows], p, rows, items=6)
        total += (forward + losses.info_nce(p[rows], a, rows, items=6)) / 2
    torch.testing.assert_close(total, losses.info_nce(a, p, symmetric=True))


def test_a_batch_of_one() -> None:
    a, p = torch.randn(2, 1, 8, requires_grad=True)
    loss = losses.info_nce(a, p, symmetric=True)
    assert float(loss.detach()) == 0
    assert not torch.autograd.grad(loss, a)[0].any()


def plain_mask(anchors: list[int], candidates: list[int], positives: list[int], texts: list[int]) -> list[list[bool]]:
    mask = []
    for i, anchor in enumerate(anchors):
        good = {candidates[positives[k]] for k, other in enumerate(anchors) if other == anchor} | set(texts[i : i + 1])
        mask.append([key in good and j != positives[i] for j, key in enumerate(candidates)])
    return mask


def test_duplicates_are_those_of_a_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for n, m in ((1, 1), (5, 5), (6, 17), (30, 60)):
        anchors, texts = torch.randint(-n, n, (2, n), generator=generator)
        candidates = torch.randint(-n, n, (m,), generator=generator)
        positives = torch.randint(m, (n,), generator=generator)
        mask, count = losses.duplicate_mask(anchors, candidates, positives, anchor_text_keys=texts)
        lists = [each.tolist() for each in (anchors, candidates, positives, texts)]
        assert mask.tolist() == plain_mask(*lists)
        assert count == int(mask.sum())
        lists[-1] = []
        assert losses.duplicate_mask(anchors, candidates, positives)[0].tolist() == plain_mask(*lists)


def test_duplicate_texts_by_their_hashes() -> None:
    """Two questions with one answer, a question asked twice, and a candidate that is a question."""
    questions = ["who", "which one", "who"]
    answers = ["A", "A", "B", "who", "C"]
    keys = losses.text_keys(questions)
    assert keys.dtype == torch.int64
    assert keys[0] == keys[2]
    assert keys[0] != keys[1]
    mask, count = losses.duplicate_mask(keys, losses.text_keys(answers), anchor_text_keys=keys)
    assert mask.int().tolist() == [[0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [1, 1, 0, 1, 0]]
    assert count == 7
    loss = losses.info_nce_from_scores(torch.zeros(3, 5), excluded=mask)
    assert float(loss) == pytest.approx((log(2) + log(4) + log(2)) / 3)


def test_keys_are_the_same_everywhere() -> None:
    """Not so Python's `hash`, which differs in every process; a lone surrogate is a text too."""
    keys = losses.text_keys(["", "ein Wörterbuch", "\ud800"])
    assert keys.tolist() == [-5426141060434712860, -7280516260834088980, 7497787021708494914]
