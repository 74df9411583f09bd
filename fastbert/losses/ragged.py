"""Lists of different lengths, one after the other, and their padded form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.losses.checks import Shapes


def lengths_of(offsets: Tensor, rows: int, name: str = "offsets", what: str = "rows") -> list[int]:
    """Return the lengths of the lists that offsets, int64 (lists + 1,), divide rows into. Raises UserError for offsets
    that do not ascend from 0 to the number of rows. Offsets on a device other than the CPU cost a sync."""
    Shapes().check(name, offsets, "lists+1", "integer")
    lengths: list[int] = offsets.diff().tolist()
    if not len(offsets) or int(offsets[0]) != 0 or int(offsets[-1]) != rows or min(lengths, default=0) < 0:
        raise UserError(f"{name} must ascend from 0 to the {rows} {what}; give the begin of each list, and the end")
    return lengths


@dataclass(frozen=True, kw_only=True, eq=False)
class Lists:
    """Places of rows in a matrix with a row per list: `row` and `column` int64 (rows,), `shape` (lists, longest)."""

    row: Tensor
    column: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, offsets: Tensor, rows: Tensor) -> Self:
        """Return the places of rows (rows, ...) of any dtype, by offsets int64 (lists + 1,), on the device of the rows.
        Raises UserError for wrong offsets and for lists without rows."""
        lengths = lengths_of(offsets, len(rows))
        if 0 in lengths:
            raise UserError(f"list {lengths.index(0)} of offsets has no rows; leave out queries without candidates")
        counts = torch.tensor(lengths, dtype=torch.int64)
        index = torch.arange(len(lengths)).repeat_interleave(counts)
        column = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[index]
        shape = (len(lengths), max(lengths, default=0))
        return cls(row=index.to(rows.device), column=column.to(rows.device), shape=shape)

    def padded(self, values: Tensor, fill: float) -> Tensor:
        """Return values (rows,) of any dtype as (lists, longest), with `fill` behind the shorter lists."""
        matrix = values.new_full(self.shape, fill)
        return matrix.index_put((self.row, self.column), values)

    def packed(self, matrix: Tensor) -> Tensor:
        """Return the values (rows,) of a padded matrix (lists, longest) of any dtype."""
        return matrix[self.row, self.column]
