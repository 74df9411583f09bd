"""Pad rows that are already model inputs, as collators do."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastbert.tokenizers.call import PADDINGS, checked_max_length, checked_side, checked_tensors
from fastbert.tokenizers.decoding import plain_ids
from fastbert.tokenizers.encoding import Encoding


def pad_rows(
    rows: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    fillers: dict[str, int],
    padding: bool | str,
    max_length: int | None,
    pad_to_multiple_of: int | None,
    side: str,
    with_mask: bool,
    return_tensors: str | None,
) -> Encoding:
    """Pad the keys in `fillers` with their values to one length; other keys are not changed."""
    checked_side(side, "padding_side")
    values = _columns(rows)
    tensors = checked_tensors(return_tensors) or _tensors_of(rows)
    if "input_ids" not in values:
        raise ValueError(f"rows to pad need 'input_ids'; there are only {', '.join(values) or 'no keys'}")
    if not values["input_ids"]:
        return Encoding(values)
    single = not isinstance(values["input_ids"][0], list)
    if single:
        values = {key: [value] for key, value in values.items()}
    sizes = [len(row) for row in values["input_ids"]]
    if with_mask and "attention_mask" not in values:
        values["attention_mask"] = [[1] * size for size in sizes]
    strategy = PADDINGS.get(padding) if isinstance(padding, bool | str) else None
    if strategy is None:
        raise ValueError(f"padding={padding!r} must be one of {', '.join(map(repr, PADDINGS))}")
    width = max(sizes, default=0) if strategy == "longest" else checked_max_length(max_length) or 0
    if pad_to_multiple_of is not None:
        if pad_to_multiple_of < 1:
            raise ValueError(f"pad_to_multiple_of={pad_to_multiple_of} must be at least 1")
        width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
    if strategy != "do_not_pad":
        for key, filler in fillers.items():
            if key in values:
                values[key] = [_filled(row, width, filler, side) for row in values[key]]
    result = Encoding({key: value[0] for key, value in values.items()} if single else values)
    return result.convert_to_tensors(tensors)


def _tensors_of(rows: Any) -> str | None:
    """Return the type of the rows' values, the default type of the result."""
    first = rows.get("input_ids") if isinstance(rows, Mapping) else rows[0].get("input_ids") if rows else None
    first = first[0] if isinstance(first, list | tuple) and first else first
    return None if not hasattr(first, "dtype") else "pt" if hasattr(first, "detach") else "np"


def _columns(rows: Any) -> dict[str, Any]:
    """Return the values by key as plain lists."""
    if isinstance(rows, Mapping):
        return {key: plain_ids(value) for key, value in rows.items()}
    if not all(isinstance(row, Mapping) for row in rows):
        raise TypeError("rows to pad must be a mapping, or a list of mappings such as the tokenizer returns")
    keys = rows[0].keys() if rows else ()
    for index, row in enumerate(rows):
        if missing := [key for key in keys if key not in row]:
            raise ValueError(f"row {index} has no {missing[0]!r}, which the first row has; give all rows the same keys")
    return {key: [plain_ids(row[key]) for row in rows] for key in keys}


def _filled(row: list[int], width: int, filler: int, side: str) -> list[int]:
    missing = [filler] * (width - len(row))
    return missing + row if side == "left" else row + missing
