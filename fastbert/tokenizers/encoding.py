"""The result of a tokenizer's call: model inputs as lists, arrays or tensors, created on first access.

`pad_rows` pads rows that are model inputs already, as collators do.
"""

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from fastbert import _C
from fastbert.tokenizers import call
from fastbert.tokenizers.decoding import plain_ids
from fastbert.tokenizers.row_encoding import CharSpan, RowEncoding, RowTable, TokenSpan

T = TypeVar("T")
# The columns of model inputs, and their padding values; None: the id of the padding token.
_COLUMNS = {
    "input_ids": (_C.Column.IDS, None),
    "token_type_ids": (_C.Column.TYPES, 0),
    "attention_mask": (_C.Column.ONES, 0),
    "special_tokens_mask": (_C.Column.SPECIAL_MASK, 1),
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The form of converted rows: padded to `width` (0: not padded), as lists or tensors, one text or a batch."""

    width: int
    left: bool
    pad_token_id: int
    tensors: str | None
    single: bool
    threads: int


class Encoding(UserDict[str, Any]):
    """Model inputs by key or attribute, like transformers' `BatchEncoding`; unpacks with `**`.

    `input_ids`, `token_type_ids`, `attention_mask` and `special_tokens_mask` are lists of integers per row, or int64
    (rows, length); `offset_mapping` lists of pairs, or int64 (rows, length, 2); `length` and
    `overflow_to_sample_mapping` a list, or int64 (rows,). Of a single text they are lists without an axis of rows,
    unless `return_tensors` or `return_overflowing_tokens` is set.

    It is a `UserDict` like `BatchEncoding`: pipelines move the values of dictionaries and of `UserDict`s to the device.

    Values are created on first access, so unused values cost nothing. An integer index returns the `RowEncoding` of a
    row. Methods with a batch index may be called without it for the first row: `word_to_tokens(3)` is
    `word_to_tokens(0, 3)`.

    Example:
        >>> import fastbert
        >>> tokenizer = fastbert.load_tokenizer("runs/mine/model")
        >>> encoding = tokenizer(["a short one.", "one"], padding=True, return_tensors="pt")
        >>> type(encoding).__name__, sorted(encoding)
        ('Encoding', ['attention_mask', 'input_ids', 'token_type_ids'])
        >>> encoding.input_ids.shape
        torch.Size([2, 6])
        >>> encoding[0].tokens, encoding.char_to_token(0, 2)
        (['[CLS]', 'a', 'short', 'one', '.', '[SEP]'], 2)
    """

    def __init__(
        self, values: Mapping[str, Any] | None = None, table: RowTable | None = None, layout: Layout | None = None
    ) -> None:
        self._values: dict[str, Any] = dict(values or {})
        self._table, self._layout = table, layout
        self._last_row: tuple[int, RowEncoding] | None = None

    # Values

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            value = self._values[key]
            if isinstance(value, partial):  # created on first access
                value = self._values[key] = value()
            return value
        if isinstance(key, slice):
            rows = self.encodings
            return {name: self[name][key] for name in self._values} if rows is None else rows[key]
        return self._row(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __getattr__(self, name: str) -> Any:
        # Reached before __init__ when an instance is unpickled.
        values = self.__dict__.get("_values", {})
        if name in values:
            return self[name]
        raise AttributeError(f"no {name!r}; there are {', '.join(values)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    @property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        """Return all values by key."""
        return {key: self[key] for key in self._values}

    def copy(self) -> "Encoding":
        """Return a shallow copy: the same values and rows, with independent keys."""
        return Encoding(self._values, self._table, self._layout)

    __copy__ = copy

    def __repr__(self) -> str:
        return repr(self.data)

    def __getstate__(self) -> dict[str, Any]:
        return {"_values": self.data, "_table": self._table, "_layout": self._layout, "_last_row": None}

    def to(self, device: Any, *, non_blocking: bool = False) -> "Encoding":
        """Move every tensor to `device`; return the same object."""
        for key, value in self.data.items():
            if hasattr(value, "to"):
                self._values[key] = value.to(device, non_blocking=non_blocking)
        return self

    def convert_to_tensors(self, tensor_type: str | None = None, prepend_batch_axis: bool = False) -> "Encoding":
        """Convert lists to int64 arrays ("np") or tensors ("pt"); return the same object.

        Raises ValueError for rows of different lengths.
        """
        tensor_type = call.checked_tensors(tensor_type)
        for key, value in self.data.items():
            if tensor_type is None or hasattr(value, "shape"):
                continue
            try:
                array = np.asarray([value] if prepend_batch_axis else value)
                array = array.astype(np.int64) if array.dtype.kind in "bui" else array
            except ValueError:
                raise ValueError(
                    f"{key}: rows of different lengths cannot become a tensor; add padding=True (and truncation=True)"
                ) from None
            self._values[key] = as_tensor(array, tensor_type)
        return self

    # Rows

    @property
    def is_fast(self) -> bool:
        """Return whether rows have positions in the text."""
        return self._table is not None

    @property
    def encodings(self) -> list[RowEncoding] | None:
        """Return the rows; None without them, as after `pad`."""
        return None if self._table is None else [self._row(index) for index in range(len(self._table))]

    @property
    def n_sequences(self) -> int | None:
        """Return 1, or 2 for pairs."""
        return self._row(0).n_sequences if self._table is not None and len(self._table) else None

    def _row(self, index: int) -> RowEncoding:
        if self._table is None or self._layout is None:
            raise KeyError(f"{index!r}: these values have no texts, so there are only keys: {[*self]}")
        if not -len(self._table) <= index < len(self._table):
            raise IndexError(f"row {index} of {len(self._table)}")
        index %= len(self._table)
        # The last row is cached, so that its lists are created once for several calls.
        if self._last_row is None or self._last_row[0] != index:
            layout = self._layout
            row = RowEncoding(self._table, index, layout.width, layout.left, layout.pad_token_id)
            self._last_row = (index, row)
        return self._last_row[1]

    def tokens(self, batch_index: int = 0) -> list[str]:
        """Return the tokens of a row as strings."""
        return self._row(batch_index).tokens

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return the word of each token of a row; None for special tokens around sequences and for padding."""
        return self._row(batch_index).word_ids

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """Return the sequence (0 or 1) of each token of a row; None for special tokens around sequences and padding."""
        return self._row(batch_index).sequence_ids

    def _locate(self, batch_or_index: int, index: int | None) -> tuple[RowEncoding, int]:
        return (self._row(0), batch_or_index) if index is None else (self._row(batch_or_index), index)

    def _of_token(self, get: Callable[[RowEncoding, int], T], batch_or_token: int, token: int | None) -> T:
        row, token = self._locate(batch_or_token, token)
        return get(row, token + len(row) if token < 0 else token)

    def _of_part(self, get: Callable[[RowEncoding, int, int], T], batch_or_part: int, part: int | None, at: int) -> T:
        return get(*self._locate(batch_or_part, part), at)

    def token_to_sequence(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Return the sequence (0 or 1) of a token."""
        return self._of_token(RowEncoding.token_to_sequence, batch_or_token_index, token_index)

    def token_to_word(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """Return the word of a token."""
        return self._of_token(RowEncoding.token_to_word, batch_or_token_index, token_index)

    def token_to_chars(self, batch_or_token_index: int, token_index: int | None = None) -> CharSpan | None:
        """Return the characters of a token."""
        return self._of_token(RowEncoding.token_to_chars, batch_or_token_index, token_index)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """Return the tokens of a word."""
        return self._of_part(RowEncoding.word_to_tokens, batch_or_word_index, word_index, sequence_index)

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """Return the characters of a word."""
        return self._of_part(RowEncoding.word_to_chars, batch_or_word_index, word_index, sequence_index)

    def char_to_token(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """Return the token of a character."""
        return self._of_part(RowEncoding.char_to_token, batch_or_char_index, char_index, sequence_index)

    def char_to_word(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """Return the word of a character."""
        return self._of_part(RowEncoding.char_to_word, batch_or_char_index, char_index, sequence_index)


def as_tensor(array: np.ndarray, tensors: str) -> Any:
    """Return the array for "np", a tensor over the same memory for "pt"."""
    if tensors == "np":
        return array
    import torch

    return torch.from_numpy(array)


def make_encoding(table: RowTable, layout: Layout, names: list[str]) -> Encoding:
    """Return the values `names` of a table's rows, as keys of model inputs."""
    return Encoding({name: partial(_value, table, layout, name) for name in names}, table, layout)


def _value(table: RowTable, layout: Layout, name: str) -> Any:
    sizes = np.diff(table.offsets)
    if name == "overflow_to_sample_mapping":
        flat = table.samples
    elif name == "length":
        flat = np.maximum(sizes, layout.width)
    else:
        return _token_values(table, layout, name, sizes)
    return as_tensor(flat, layout.tensors) if layout.tensors else flat.tolist()


def _token_values(table: RowTable, layout: Layout, name: str, sizes: np.ndarray) -> Any:
    """Return values with one item per token: padded arrays, or lists, in which longer rows are not padded."""
    fits = bool((sizes <= layout.width).all())
    if name == "offset_mapping":
        columns = [(_C.Column.BEGINS, 0), (_C.Column.ENDS, 0)]
    else:
        column, filler = _COLUMNS[name]
        columns = [(column, layout.pad_token_id if filler is None else filler)]
    if layout.tensors and (fits or (sizes == sizes[:1]).all()):
        width = int(sizes.max(initial=layout.width))
        arrays = [table.padded(column, width, layout.left, filler, layout.threads) for column, filler in columns]
        # For rows without tokens the reference has no pairs.
        array = arrays[0] if len(arrays) == 1 or width == 0 else np.stack(arrays, axis=-1)
        return as_tensor(array, layout.tensors)
    if fits and layout.width:
        values = [
            table.padded(column, layout.width, layout.left, filler, layout.threads).tolist()
            for column, filler in columns
        ]
    else:
        values = [_ragged_lists(table, layout, column, filler) for column, filler in columns]
    rows = values[0] if len(values) == 1 else [list(zip(*pair)) for pair in zip(*values)]
    if layout.tensors:
        ragged = np.empty(len(rows), dtype=object)
        ragged[:] = [np.asarray(row, dtype=np.int64) for row in rows]
        return ragged
    return rows[0] if layout.single else rows


def _ragged_lists(table: RowTable, layout: Layout, column: _C.Column, filler: int) -> list[list[int]]:
    flat = table.column(column).tolist()
    rows = []
    for begin, end in pairwise(table.offsets.tolist()):
        padding = [filler] * (layout.width - (end - begin))
        rows.append(padding + flat[begin:end] if layout.left else flat[begin:end] + padding)
    return rows


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
    call.checked_side(side, "padding_side")
    values = _by_key(rows)
    tensors = call.checked_tensors(return_tensors) or _tensors_of(rows)
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
    strategy = call.choice(padding, call.PADDINGS, "padding")
    width = max(sizes, default=0) if strategy == "longest" else call.checked_max_length(max_length) or 0
    multiple = call.checked_count(pad_to_multiple_of, "pad_to_multiple_of", 1) or 1
    width = -(-width // multiple) * multiple
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


def _by_key(rows: Any) -> dict[str, Any]:
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
