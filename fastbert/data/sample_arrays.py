"""The samples of a batch as NumPy arrays: those that the collator returns, concatenated and as a `PackedBatch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fastbert.packing import PackedBatch

SampleArrays = dict[str, NDArray[Any]]
"""The fields of a `PackedBatch` by name, with its shapes and dtypes, and with `next_sentence_label` in any case."""


def packed(arrays: SampleArrays, *, with_label: bool) -> PackedBatch:
    """Return the arrays of samples as a batch, without the labels of pairs unless `with_label` is set."""
    import torch

    from fastbert.packing import PackedBatch

    fields: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    fields["max_seqlen"] = int(np.diff(arrays["cu_seqlens"]).max(initial=0))
    if not with_label:
        del fields["next_sentence_label"]
    return PackedBatch(**fields)


def concatenated(batches: Sequence[SampleArrays]) -> SampleArrays:
    """Return the arrays of one batch, from those of several, at least one."""
    if len(batches) == 1:
        return batches[0]
    shifted = []
    rows = tokens = 0
    for i, batch in enumerate(batches):
        shifted.append(
            batch
            | {
                "sequence_ids": batch["sequence_ids"] + rows,
                "masked_positions": batch["masked_positions"] + tokens,
                "cu_seqlens": batch["cu_seqlens"][min(i, 1) :] + np.int32(tokens),
            }
        )
        rows += len(batch["dropout_key"])
        tokens += len(batch["input_ids"])
    return {name: np.concatenate([batch[name] for batch in shifted]) for name in batches[0]}
