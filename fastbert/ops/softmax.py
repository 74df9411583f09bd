"""Softmax over explicit attention scores, for users who need the probabilities."""

from __future__ import annotations

from torch import Tensor

from fastbert.ops import backend, reference
from fastbert.ops.dropout import attention_mask


def softmax(
    scores: Tensor,
    *,
    scale: float = 1.0,
    causal: bool = False,
    dropout_p: float = 0.0,
    dropout_key: Tensor | None = None,
    dropout_site: int = 0,
) -> Tensor:
    """dropout(softmax(scale * scores)) over the keys: scores (sequences, heads, queries, keys).

    Computed in fp32, returned in the dtype of `scores`. A query that may see no key gets zeros. With `dropout_p`,
    `dropout_key` int64 (sequences,) decides what is dropped, as in `attention`.
    """
    return backend.select("softmax", scores.device)(scores, scale, causal, dropout_p, dropout_key, dropout_site)


def _softmax(
    scores: Tensor, scale: float, causal: bool, dropout_p: float, dropout_key: Tensor | None, dropout_site: int
) -> Tensor:
    with backend.without_autocast(scores.device):
        probabilities = reference.attention_probabilities(scores * scale, causal)
        if dropout_p and dropout_key is not None:
            n, heads, queries, keys = scores.shape
            shape = (n, heads, queries, keys)
            mask = attention_mask(shape, dropout_p, dropout_key, dropout_site, scores.dtype)
            probabilities = probabilities * mask
        return probabilities


backend.register("softmax", "eager", _softmax)
