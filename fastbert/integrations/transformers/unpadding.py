"""Map the tokens of a padded batch to a packed one and back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fastbert.packing import PackedBatch, pad
from fastbert.packing import unpad as unpad_ids


@dataclass(frozen=True)
class Unpadding:
    """A packed batch and the way back to the padded (rows, columns) form in which it came."""

    batch: PackedBatch
    slots: Tensor | None
    """int64 (tokens,): the index of each token among rows * columns; None where nothing is padding."""
    shape: tuple[int, int]

    def pack(self, padded: Tensor) -> Tensor:
        """Return the values of tokens of (rows, columns, ...) or (1, columns, ...): (tokens, ...)."""
        flat = padded.expand(*self.shape, *padded.shape[2:]).flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)

    def restore(self, packed: Tensor) -> Tensor:
        """Return the values of tokens (tokens, ...) as (rows, columns, ...), with zeros at padding."""
        if self.slots is None:
            return packed.view(*self.shape, *packed.shape[1:])
        return pad(packed, self.slots, self.shape)


def unpad(ids: Tensor, mask: Tensor | None) -> Unpadding:
    """Remove padding from token ids int64 (rows, columns), by a `mask` (rows, columns) of any dtype that is nonzero at
    tokens. Positions are columns, segments 0."""
    rows, columns = ids.shape
    if mask is not None and not bool(mask.all()):
        batch, slots = unpad_ids(ids, mask.to(ids.device))
        return Unpadding(batch, slots, (rows, columns))
    batch = PackedBatch(
        input_ids=ids.reshape(-1).long(),
        cu_seqlens=torch.arange(rows + 1, dtype=torch.int32, device=ids.device) * columns,
        max_seqlen=columns,
        position_ids=torch.arange(columns, device=ids.device).repeat(rows),
        sequence_ids=torch.arange(rows, device=ids.device).repeat_interleave(columns),
    )
    return Unpadding(batch, None, (rows, columns))


def has_holes(mask: Tensor) -> bool:
    """Return whether a row of a mask (rows, columns) has padding between tokens."""
    tokens = mask.bool()
    starts = tokens[:, 0].long() + (tokens[:, 1:] & ~tokens[:, :-1]).sum(dim=1)
    return bool((starts > 1).any())


def with_ids(unpadding: Unpadding, positions: Tensor | None, segments: Tensor | None) -> PackedBatch:
    """Return the packed batch with given positions and segments, each (rows, columns) or one row or column of them."""
    fields = {"position_ids": positions, "token_type_ids": segments}
    changed = {
        name: unpadding.pack(ids.expand(unpadding.shape)).long() for name, ids in fields.items() if ids is not None
    }
    return replace(unpadding.batch, **changed) if changed else unpadding.batch  # type: ignore[arg-type]
