"""Arguments that are refused, with the message that names the value and the cure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sweeps import sweep

from fastbert import losses
from fastbert.errors import UserError

X = torch.zeros(4, 8)
Y = torch.zeros(4)
OFFSETS = torch.tensor([0, 2, 4])
NAN = float("nan")

REFUSED: dict[str, Callable[[], Any]] = {
    "anchors has shape (4,); give a tensor (n, d)": lambda: losses.info_nce(Y, X),
    "candidates has shape (4, 7); give a tensor (m, d) with d=8 as in anchors": lambda: losses.info_nce(X, X[:, 1:]),
    "candidates is of type list; give a tensor (m, d)": lambda: losses.info_nce(X, [1.0]),  # type: ignore[arg-type]
    "anchors has dtype torch.int64; give a tensor of a dtype that is floating": lambda: losses.info_nce(X.long(), X),
    "temperature=0 must be a finite number above 0": lambda: losses.info_nce(X, X, temperature=0),
    "temperature=nan must be a finite number above 0": lambda: losses.info_nce(X, X, temperature=NAN),
    "items=0 must be a finite number above 0": lambda: losses.info_nce(X, X, items=0),
    "items=True must be a finite number above 0": lambda: losses.info_nce(X, X, items=True),
    "kind='l2' must be 'cosine', 'dot' or 'euclidean'": lambda: losses.info_nce(X, X, similarity="l2"),  # type: ignore[arg-type]
    "3 candidates for 4 anchors: give `positives`": lambda: losses.info_nce(X, X[1:]),
    "positives[1] is 4; it must be between 0 and 3": lambda: losses.info_nce(X, X, torch.tensor([0, 4, 1, 2])),
    "positives has shape (3,); give a tensor (n,) with n=4": lambda: losses.info_nce(X, X, torch.arange(3)),
    "positives has dtype torch.float32; give a tensor of a dtype that is integer": lambda: losses.info_nce(X, X, Y),
    "excluded has dtype torch.float32; give a tensor of a dtype that is bool": lambda: losses.info_nce(
        X, X, excluded=torch.zeros(4, 4)
    ),
    "candidate_keys has dtype torch.float32": lambda: losses.duplicate_mask(OFFSETS, Y),
    "texts[1] is of type int; give strings": lambda: losses.text_keys(["a", 1]),  # type: ignore[list-item]
    "scores[2] is nan; it must be finite": lambda: losses.cosent(Y, torch.tensor([0, 1, NAN, 0])),
    "scale=inf must be a finite number above 0": lambda: losses.cosent(Y, Y, scale=float("inf")),
    "scores has shape (3,); give a tensor (n,) with n=4 as in a": lambda: losses.angle(X, X, Y[1:]),
    "scores[0] is inf; it must be finite": lambda: losses.cosine_regression(Y, Y + float("inf")),
    "margin=-1 must be a finite number of at least 0": lambda: losses.triplet(X, X, X, margin=-1),
    "distance='dot' must be 'cosine', 'euclidean' or 'manhattan'": lambda: losses.triplet(X, X, X, distance="dot"),  # type: ignore[arg-type]
    "labels[0] is 2.0; it must be between 0 and 1": lambda: losses.contrastive(X, X, Y + 2),
    "labels of online_contrastive must be 0 or 1": lambda: losses.online_contrastive(X, X, Y + 0.5),
    "teacher_negatives has shape (4, 7); give a tensor (n, k) with k=8": lambda: losses.margin_mse(Y, X, Y, X[:, 1:]),
    "negative_scores has shape (4, 0); give at least 1 scores per query": lambda: losses.margin_mse(
        Y, X[:, :0], Y, X[:, :0]
    ),
    "scores has shape (4, 1); give at least 2 scores per query": lambda: losses.kl_distillation(X[:, :1], X[:, :1]),
    "teacher_temperature=-1 must be": lambda: losses.kl_distillation(X, X, teacher_temperature=-1),
    "width=9 is larger than the vectors' 8 numbers": lambda: losses.matryoshka(losses.info_nce, [X, X], [4, 9]),
    "1 weights for 2 widths": lambda: losses.matryoshka(losses.info_nce, [X, X], [4, 8], [1]),
    "names a width twice": lambda: losses.matryoshka(losses.info_nce, [X, X], [4, 4]),
    "width=0 must be a whole number": lambda: losses.matryoshka(losses.info_nce, [X, X], [0]),
    "weight=nan must be a finite number": lambda: losses.matryoshka(losses.info_nce, [X, X], [4], [NAN]),
    "0 widths and 2 vectors": lambda: losses.matryoshka(losses.info_nce, [X, X], []),
    "threshold=-1 must be a whole number": lambda: losses.flops(X, threshold=-1),
    "query_weight=-1 must be a finite number of at least 0": lambda: losses.splade(Y[0], X, X, -1, 0),
    "loss=(4,) must be a scalar tensor": lambda: losses.splade(Y, X, X, 1, 0),
    "documents has shape (4, 7); give a tensor (m, vocab) with vocab=8": lambda: losses.splade(Y[0], X, X[:, 1:], 1, 0),
    "positive_weight=0 must be": lambda: losses.binary_cross_entropy(Y, Y, positive_weight=0),
    "labels[0] is -1.0; it must be between 0 and 1": lambda: losses.binary_cross_entropy(Y, Y - 1),
    "labels[0] is -1.0; it must be at least 0": lambda: losses.list_cross_entropy(Y, Y - 1, OFFSETS),
    "offsets must ascend from 0 to the 4 rows": lambda: losses.list_cross_entropy(Y, Y, OFFSETS[:2]),
    "offsets must ascend from 0 to the 4": lambda: losses.lambda_rank(Y, Y, torch.tensor([0, 3, 1, 4])),
    "list 1 of offsets has no rows": lambda: losses.lambda_rank(Y, Y, torch.tensor([0, 2, 2, 4])),
    "labels[0] is 101.0; it must be between 0 and 100": lambda: losses.lambda_rank(Y, Y + 101, OFFSETS),
    "k=0 must be a whole number": lambda: losses.lambda_rank(Y, Y, OFFSETS, k=0),
    "query_offsets must ascend from 0 to the 4 vectors of queries": lambda: losses.maxsim_scores(
        X, OFFSETS[1:], X, OFFSETS
    ),
    "document_offsets has shape (1, 3); give a tensor (lists+1,)": lambda: losses.maxsim_scores(
        X, OFFSETS, X, OFFSETS[None]
    ),
    "most_products=0 must be": lambda: losses.maxsim_scores(X, OFFSETS, X, OFFSETS, most_products=0),
    "3 documents for 2 queries; give each query the same number": lambda: losses.maxsim_pairs(
        X, OFFSETS, X, torch.tensor([0, 1, 2, 4])
    ),
}


@sweep("message", REFUSED)
def test_the_message_names_value_and_cure(message: str) -> None:
    with pytest.raises(UserError) as error:
        REFUSED[message]()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_every_function_is_tried() -> None:
    """All public losses but the similarities, whose checks `info_nce` shares, refuse something here."""
    names = {name for call in REFUSED.values() for name in call.__code__.co_names}
    assert set(losses.__all__) - names <= {"similarity", "pairwise_similarity", "info_nce_from_scores", "l1"}
