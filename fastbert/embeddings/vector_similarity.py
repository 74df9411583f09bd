"""Similarities of vectors of texts, by the names of sentence-transformers; higher is always more similar."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fastbert.errors import UserError
from fastbert.losses.similarities import Similarity, pairwise_similarity, similarity


def as_rows(first: ArrayLike | Tensor, second: ArrayLike | Tensor) -> tuple[Tensor, Tensor]:
    """Return two arrays or tensors of any dtype as tensors of two dimensions, (n, d) and (m, d) on the device of the
    first; integers become fp32. Raises UserError for other shapes."""
    a, b = _rows(first, "embeddings1"), _rows(second, "embeddings2")
    return a, b.to(a.device)


def _rows(vectors: Any, name: str) -> Tensor:
    try:
        rows = vectors if isinstance(vectors, Tensor) else torch.from_numpy(np.array(vectors))
    except (TypeError, ValueError):
        raise UserError(f"{name} must be vectors of numbers, one row per text, not {type(vectors).__name__}") from None
    rows = rows if rows.is_floating_point() else rows.float()
    if rows.dim() not in (1, 2):
        raise UserError(f"{name} has the shape {tuple(rows.shape)}; give vectors as rows, (texts, dimensions)")
    return rows[None] if rows.dim() == 1 else rows


def score(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """Return the similarity of each row of a (n, d) with each of b (m, d), of floating dtypes: fp32 (n, m).

    Raises UserError for different widths.
    """
    if kind != "manhattan":
        return similarity(a, b, cast(Similarity, kind)).float()
    _check_widths(a, b)
    return -torch.cdist(a.float(), b.float(), p=1.0)


def pairwise_score(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """Return the similarity of each row of a (n, d) with the same row of b (n, d), of floating dtypes: fp32 (n,).

    Raises UserError for different shapes.
    """
    if kind != "manhattan":
        return pairwise_similarity(a, b, cast(Similarity, kind)).float()
    if len(a) != len(b):
        raise UserError(f"embeddings1 has {len(a)} rows and embeddings2 {len(b)}; give as many")
    _check_widths(a, b)
    return -(a.float() - b.float()).abs().sum(dim=-1)


def _check_widths(a: Tensor, b: Tensor) -> None:
    if a.shape[1] != b.shape[1]:
        raise UserError(
            f"embeddings1 has {a.shape[1]} dimensions and embeddings2 {b.shape[1]}; give those of one model"
        )
