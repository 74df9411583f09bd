"""Labels of left-to-right language models: the token after each token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def next_tokens(input_ids: NDArray[np.int64], cu_seqlens: NDArray[np.int32]) -> dict[str, NDArray[np.int64]]:
    """Return the labels of packed sequences, int64, under the names of `PackedBatch`: `masked_positions` (labels,), the
    indices of all tokens but the last of each sequence, and `labels` (labels,), the tokens after them.

    Args:
        input_ids: int64 (tokens,).
        cu_seqlens: int32 (sequences + 1,), the offsets of the sequences, which may be empty.
    """
    is_last = np.zeros(len(input_ids), bool)
    is_last[cu_seqlens[1:][np.diff(cu_seqlens) > 0] - 1] = True
    positions = np.flatnonzero(~is_last)
    return {"masked_positions": positions, "labels": input_ids[positions + 1]}
