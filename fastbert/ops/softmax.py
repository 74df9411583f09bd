"""Softmax over explicit attention scores, for users who need the probabilities."""

from __future__ import annotations

from torch import Tensor

from fastbert.ops import backend, reference
from fastbert.ops.dropout import attention_mask


def softmax(
    scores: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    dropout_p: float = 0.0,
    dropout_key: Tensor | None = None,
    dropout_site: int = 0,
) -> Tensor:
    """dropout(softmax(scale * scores)) over the keys: scores (sequences, heads, queries, keys).

    `mask` bool, True where a query may see a key, broadcasts to `scores`; a query that may see none gets zeros.
    Computed in fp32, returned in the dtype of `scores`. With `dropout_p`, `dropout_key` int64 (sequences,) decides what
    is dropped, as in `attention`.
    """
    return backend.select("softmax", scores.device)(scores, mask, scale, dropout_p, dropout_key, dropout_site)


def _softmax(
    scores: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    dropout_key: Tensor | None,
    dropout_site: int,
) -> Tensor:
    with backend.without_autocast(scores.device):
        probabilities = reference.attention_probabilities(scores * scale if scale != 1.0 else scores, mask)
        if dropout_p and dropout_key is not None:
            n, heads, queries, keys = scores.shape
            kept = attention_mask((n, heads, queries, keys), dropout_p, dropout_key, dropout_site, scores.dtype)
            probabilities = probabilities * kept
        return probabilities


backend.register("softmax", "eager", _softmax)
