"""Similarities and distances of vectors: of all pairs, and of the pairs of a row each."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.losses.checks import Shapes, in_working_precision, matmul, require_choice

Similarity = Literal["cosine", "dot", "euclidean"]
Distance = Literal["cosine", "euclidean", "manhattan"]
SIMILARITIES = ("cosine", "dot", "euclidean")
DISTANCES = ("cosine", "euclidean", "manhattan")


def similarity(a: Tensor, b: Tensor, kind: Similarity = "cosine") -> Tensor:
    """Compute the similarity of each vector of a with each of b: fp32 (n, m).

    `a` (n, d) and `b` (m, d) of any floating dtype, computed in fp32, or in float64 if one of them is float64. `kind`:
    "cosine"; "dot", the dot product; "euclidean", the negative distance, from a matmul in float64, since one in fp32
    would cancel for near vectors. A vector of zeros has the cosine 0. Raises UserError for wrong shapes.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> queries, documents = torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.6, 0.8]])
        >>> losses.similarity(queries, documents)
        tensor([[1.0000, 0.0000, 0.6000],
                [0.0000, 0.0000, 0.8000]])
        >>> losses.similarity(queries, documents, "dot").shape
        torch.Size([2, 3])
    """
    shapes = Shapes()
    shapes.check("a", a, "n d")
    shapes.check("b", b, "m d")
    require_choice("kind", kind, SIMILARITIES)
    a, b = in_working_precision(a, b)
    if kind == "euclidean":
        return -_distances(a.double(), b.double()).to(a.dtype)
    if kind == "cosine":
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    return matmul(a, b.T)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the Euclidean distances of all pairs, float64 (n, d) and (m, d) -> (n, m); those of 0 have no gradient."""
    squares = a.square().sum(dim=1)[:, None] + b.square().sum(dim=1) - 2 * matmul(a, b.T)
    is_positive = squares > 0
    return torch.where(is_positive, torch.where(is_positive, squares, 1.0).sqrt(), 0.0)


def pairwise_similarity(a: Tensor, b: Tensor, kind: Similarity = "cosine") -> Tensor:
    """Compute the similarity of each vector of a with the one of b in the same row: fp32 (n,).

    `a` and `b` (n, d) of any floating dtype; kinds and precision are those of `similarity`. Raises UserError for wrong
    shapes.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> losses.pairwise_similarity(torch.eye(2), torch.tensor([[2.0, 0.0], [0.6, 0.8]]))
        tensor([1.0000, 0.8000])
    """
    shapes = Shapes()
    shapes.check("a", a, "n d")
    shapes.check("b", b, "n d")
    require_choice("kind", kind, SIMILARITIES)
    a, b = in_working_precision(a, b)
    if kind == "euclidean":
        return -torch.linalg.vector_norm(a - b, dim=-1)
    if kind == "cosine":
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    return (a * b).sum(dim=-1)


def pairwise_distance(a: Tensor, b: Tensor, kind: Distance) -> Tensor:
    """Compute the distance of each vector of a from the one of b in the same row, (n, d) of any floating dtype: fp32
    (n,). The cosine distance is 1 - cosine. Raises UserError for an unknown kind."""
    require_choice("distance", kind, DISTANCES)
    if kind == "manhattan":
        a, b = in_working_precision(a, b)
        return (a - b).abs().sum(dim=-1)
    if kind == "euclidean":
        return -pairwise_similarity(a, b, "euclidean")
    return 1 - pairwise_similarity(a, b, "cosine")


def pairwise_angle(a: Tensor, b: Tensor) -> Tensor:
    """Compute AnglE's similarity of each vector of a with the one of b in the same row, (n, d) of any floating dtype:
    fp32 (n,).

    The halves of a vector of length 1 are the real and the imaginary parts of d / 2 complex numbers; the similarity is
    |sum of the real and imaginary parts of a conj(b)|, as in the reference code of Li and Li 2024.
    """
    a, b = in_working_precision(a, b)
    if a.shape[1] % 2:
        a, b = F.pad(a, (0, 1)), F.pad(b, (0, 1))
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    a_real, a_imaginary = a.chunk(2, dim=1)
    b_real, b_imaginary = b.chunk(2, dim=1)
    cosines = (a * b).sum(dim=1)
    sines = (a_imaginary * b_real - a_real * b_imaginary).sum(dim=1)
    return (cosines + sines).abs()
