"""Dropout of token vectors as the launchers receive it, and as kernels do."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class DropoutInputs(NamedTuple):
    """Keys int64 (sequences,), and int64 or int32 (tokens,) each token's sequence and its position there.

    An element is kept where its 16-bit draw is at least `threshold`, and then multiplied by `keep_scale`; `site` is the
    last word of the draw's counter.
    """

    key: Tensor
    sequence_ids: Tensor
    offsets: Tensor
    threshold: int
    keep_scale: float
    site: int


def kernel_arguments(
    dropout: DropoutInputs | None,
) -> tuple[tuple[Tensor | None, ...], int, tuple[float, int, int]]:
    """Return the pointers key, sequence and offset; the number of sequences; and keep_scale, threshold and site."""
    if dropout is None:
        return (None, None, None), 0, (1.0, 0, 0)
    tensors = tuple(x.contiguous() for x in (dropout.key, dropout.sequence_ids, dropout.offsets))
    return tensors, dropout.key.shape[0], (dropout.keep_scale, dropout.threshold, dropout.site)
