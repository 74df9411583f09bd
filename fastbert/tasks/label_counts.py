"""Refuse labels that are texts: a wrong column gives nearly as many different labels as there are examples."""

from __future__ import annotations

from collections.abc import Collection

from fastbert.errors import UserError

MANY, SHARE = 50, 0.8  # different labels, and their share of all, above which they may be texts
LENGTH = 16  # mean number of characters of texts; the names of classes with one example each are shorter
SHOWN = 40  # characters of a label in the error


def refuse_texts(path: str, labels: Collection[str], total: int, unit: str) -> None:
    """Raise UserError if most of the `total` labels of a training set differ from each other and are long."""
    if len(labels) <= MANY or len(labels) <= SHARE * total or sum(map(len, labels)) < LENGTH * len(labels):
        return
    longest = max(labels, key=len)
    shown = longest if len(longest) <= SHOWN else f"{longest[: SHOWN - 1]}…"
    raise UserError(
        f"{path}: {len(labels):,} different labels for {total:,} {unit}, {shown!r} among them, are no classes; name the"
        " column of the labels with --label-column, or choose another --task"
    )
