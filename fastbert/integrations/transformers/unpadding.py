"""Where the tokens of a padded input lie in the packed one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fastbert.packing import PackedBatch, pad, unpad


@dataclass(frozen=True)
class Layout:
    """A packed batch and the way back to the padded (rows, columns) form in which it came."""

    batch: PackedBatch
    slots: Tensor | None
    """int64 (tokens,): the place of each token among rows * columns; None where nothing is padding."""
    shape: tuple[int, int]

    def pack(self, padded: Tensor) -> Tensor:
        """Values of every place (rows, columns, ...) or one row of them (1, columns, ...) -> those of tokens."""
        flat = padded.expand(*self.shape, *padded.shape[2:]).flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)

    def restore(self, packed: Tensor) -> Tensor:
        """Values of tokens (tokens, ...) -> of every place (rows, columns, ...), zeros where there is padding."""
        if self.slots is None:
            return packed.view(*self.shape, *packed.shape[1:])
        return pad(packed, self.slots, self.shape)


def lay_out(ids: Tensor, mask: Tensor | None) -> Layout:
    """The layout of token ids int64 (rows, columns), of which those count that `mask` (rows, columns), of any dtype,
    says are there. Positions are columns, segments 0."""
    rows, columns = ids.shape
    if mask is not None and not bool(mask.all()):
        batch, slots = unpad(ids, mask.to(ids.device))
        return Layout(batch, slots, (rows, columns))
    steps = torch.arange(rows + 1, dtype=torch.int32, device=ids.device)
    positions = torch.arange(columns, device=ids.device).repeat(rows)
    batch = PackedBatch(
        input_ids=ids.reshape(-1).long(),
        cu_seqlens=steps * columns,
        max_seqlen=columns,
        position_ids=positions,
        sequence_ids=torch.arange(rows, device=ids.device).repeat_interleave(columns),
    )
    return Layout(batch, None, (rows, columns))


def with_ids(layout: Layout, positions: Tensor | None, segments: Tensor | None) -> PackedBatch:
    """The packed batch with positions and segments of its own, each (rows, columns) or one row or column of them."""
    changed = {}
    for name, ids in (("position_ids", positions), ("token_type_ids", segments)):
        if ids is not None:
            changed[name] = layout.pack(ids.expand(layout.shape)).long()
    return replace(layout.batch, **changed) if changed else layout.batch  # type: ignore[arg-type]
