"""Ids that are no rows of their tables, for every backend of the embeddings."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from fastbert.errors import UserError


def check_ids(ids: Sequence[Tensor], tables: Sequence[Tensor]) -> None:
    """Under FASTBERT_DEBUG=1, refuse ids that are no rows of their tables; waits for the device."""
    if torch.compiler.is_compiling() or os.environ.get("FASTBERT_DEBUG", "0") in ("", "0"):
        return
    for i, (one, table) in enumerate(zip(ids, tables)):
        bad = ((one < 0) | (one >= table.shape[0])).nonzero()
        if len(bad):
            place = int(bad[0])
            refuse_id(int(one[place]), place, i, tables)


def refuse_id(wrong: int, place: int, table: int, tables: Sequence[Tensor]) -> None:
    """Raise the UserError of an id that is no row of its table."""
    names = ("token", "position", "segment") if len(tables) == 3 else tuple(f"table {i}'s" for i in range(len(tables)))
    rows = tables[table].shape[0]
    raise UserError(
        f"{names[table]} id {wrong} at ids[{table}][{place}] is no row of tables[{table}], which has {rows} rows:"
        f" ids must be at least 0 and below {rows}"
    )
