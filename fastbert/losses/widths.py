"""Matryoshka: any loss of vectors, on their first numbers too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError, require_whole
from fastbert.losses.checks import in_working_precision, require_number


def matryoshka(
    loss: Callable[..., Tensor],
    vectors: Sequence[Tensor],
    widths: Sequence[int],
    weights: Sequence[float] | None = None,
    *,
    normalize: bool = False,
) -> Tensor:
    """Compute a loss on the first numbers of vectors, for several widths: an fp32 scalar.

    sum over w of weight_w loss(*[v[..., :w] for v in vectors]) (Kusupati et al. 2022). `vectors`: tensors (..., width)
    of any floating dtype, in the order of the loss's arguments; its other arguments are bound beforehand, as by
    `functools.partial`. `weights`: one per width, default 1. `normalize` divides the shortened vectors by their length,
    which sentence-transformers' MatryoshkaLoss always does and losses of cosines do themselves.

    Raises UserError for widths that the vectors do not have, that are given twice, and for wrong weights.

    Example:
        >>> import torch
        >>> from fastbert import losses
        >>> queries, documents = torch.randn(2, 4, 64).unbind()
        >>> losses.matryoshka(losses.info_nce, [queries, documents], widths=[64, 32, 16]).shape
        torch.Size([])
    """
    if not widths or not vectors:
        raise UserError(f"{len(widths)} widths and {len(vectors)} vectors: give at least one of each")
    weights = [1.0] * len(widths) if weights is None else weights
    if len(weights) != len(widths):
        raise UserError(f"{len(weights)} weights for {len(widths)} widths: give one weight per width")
    if len(set(widths)) < len(widths):
        raise UserError(f"widths={list(widths)} names a width twice; give it a larger weight instead")
    for weight in weights:
        require_number("weight", weight, least=0)
    shortest = min(vector.shape[-1] for vector in vectors)
    total: Tensor | None = None
    for width, weight in zip(widths, weights):
        require_whole("width", width, 1)
        if width > shortest:
            raise UserError(f"width={width} is larger than the vectors' {shortest} numbers; give at most {shortest}")
        shortened = [vector[..., :width] for vector in vectors]
        if normalize:
            shortened = [F.normalize(vector, dim=-1) for vector in in_working_precision(*shortened)]
        term = loss(*shortened) * weight
        total = term if total is None else total + term
    assert total is not None
    return total
