"""Ids outside their tables, for every backend of the embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import is_debugging


def check_ids(ids: Sequence[Tensor], tables: Sequence[Tensor]) -> None:
    """Raise UserError for an id outside its table if FASTBERT_DEBUG=1 is set, which costs a host-device sync."""
    if not is_debugging():
        return
    for i, (table_ids, table) in enumerate(zip(ids, tables)):
        outside = ((table_ids < 0) | (table_ids >= table.shape[0])).nonzero()
        if len(outside):
            position = int(outside[0])
            refuse_id(int(table_ids[position]), position, i, tables)


def refuse_id(index: int, position: int, table: int, tables: Sequence[Tensor]) -> None:
    """Raise UserError for the id `index` at `position` of ids[table], which is outside that table."""
    names = ("token", "position", "segment") if len(tables) == 3 else tuple(f"table {i}'s" for i in range(len(tables)))
    rows = tables[table].shape[0]
    raise UserError(
        f"{names[table]} id {index} at ids[{table}][{position}] is not a row of tables[{table}], which has {rows} rows:"
        f" ids must be at least 0 and below {rows}"
    )
