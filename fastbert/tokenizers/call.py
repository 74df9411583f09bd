"""Validate the arguments of a tokenizer's call, with the rules and defaults of transformers."""

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from fastbert import _C
from fastbert.io.log import logger
from fastbert.tokenizers import files

TRUNCATIONS: dict[bool | str | None, _C.TruncationStrategy] = {
    False: _C.TruncationStrategy.NONE,
    None: _C.TruncationStrategy.NONE,
    "do_not_truncate": _C.TruncationStrategy.NONE,
    True: _C.TruncationStrategy.LONGEST_FIRST,
    "longest_first": _C.TruncationStrategy.LONGEST_FIRST,
    "only_first": _C.TruncationStrategy.ONLY_FIRST,
    "only_second": _C.TruncationStrategy.ONLY_SECOND,
}
PADDINGS: dict[bool | str, str] = {
    False: "do_not_pad",
    "do_not_pad": "do_not_pad",
    True: "longest",
    "longest": "longest",
    "max_length": "max_length",
}
TENSORS = (None, "np", "pt")
SIDES = ("right", "left")

_NO_LIMIT = 2**40  # more than the tokens of any row
_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Inputs:
    """Texts, and second texts of pairs. If split into words, text i has the words bounds[i] to bounds[i + 1]."""

    texts: Sequence[str]
    pairs: Sequence[str] | None
    text_bounds: np.ndarray | None
    pair_bounds: np.ndarray | None
    single: bool

    def texts_of(self, sample: int, sequence: int) -> Sequence[str]:
        """Return the text of a sample (`sequence=1`: its second text), or its words."""
        texts, bounds = (self.texts, self.text_bounds) if sequence == 0 else (self.pairs or (), self.pair_bounds)
        return texts[sample : sample + 1] if bounds is None else texts[int(bounds[sample]) : int(bounds[sample + 1])]


def read_inputs(text: Any, text_pair: Any, is_split_into_words: bool) -> Inputs:
    """Distinguish a single text from a batch, and pairs from single texts, as transformers does."""
    if is_split_into_words:
        return _read_words(text, text_pair)
    if isinstance(text, str):
        if not isinstance(text_pair, str | None):
            raise TypeError(f"text is one string, so text_pair must be one too, not {type(text_pair).__name__}")
        # A single text with an empty second text is not a pair; in a batch it is.
        return Inputs([text], [text_pair] if text_pair else None, None, None, True)
    texts = _sequence(text, "text")
    if text_pair is None and texts and all(isinstance(item, tuple | list) for item in texts):
        texts, text_pair = _unzip(texts, "text")
    if isinstance(text_pair, str):
        raise TypeError("text is a batch, so text_pair must be a list of as many strings, not one string")
    pairs = None if text_pair is None else _sequence(text_pair, "text_pair")
    _check_same_length(texts, pairs)
    return Inputs(texts, pairs, None, None, False)


def _read_words(text: Any, text_pair: Any) -> Inputs:
    texts = _sequence(text, "text")
    batch = bool(texts) and isinstance(texts[0], tuple | list)
    if not batch:
        texts, text_pair = [texts], [text_pair] if text_pair else None
    elif text_pair is None and all(item and isinstance(item[0], tuple | list) for item in texts):
        texts, text_pair = _unzip(texts, "text")
    pairs = None if text_pair is None else _sequence(text_pair, "text_pair")
    _check_same_length(texts, pairs)
    words, bounds = _flatten(texts, "text")
    if pairs is None:
        return Inputs(words, None, bounds, None, not batch)
    pair_words, pair_bounds = _flatten(pairs, "text_pair")
    return Inputs(words, pair_words, bounds, pair_bounds, not batch)


def _sequence(value: Any, name: str) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if hasattr(value, "tolist") and not isinstance(value, str):  # an array or a column of a table
        return _sequence(value.tolist(), name)
    cure = "; decode it first, e.g. text.decode('utf-8')" if isinstance(value, bytes) else ""
    expected = "a list of words" if isinstance(value, str) else "a string or a sequence of strings"
    raise TypeError(f"{name} must be {expected}, not {type(value).__name__}{cure}")


def _unzip(items: Sequence[Any], name: str) -> tuple[list[Any], list[Any]]:
    for index, item in enumerate(items):
        if len(item) != 2:
            raise TypeError(
                f"{name}[{index}] has {len(item)} items; a pair has 2 (words of a text need is_split_into_words=True)"
            )
    return [item[0] for item in items], [item[1] for item in items]


def _check_same_length(texts: Sequence[Any], pairs: Sequence[Any] | None) -> None:
    if pairs is not None and len(pairs) != len(texts):
        raise ValueError(f"text has {len(texts)} items but text_pair {len(pairs)}; each text needs its pair")


def _flatten(texts: Sequence[Any], name: str) -> tuple[list[str], np.ndarray]:
    for index, words in enumerate(texts):
        if not isinstance(words, list | tuple):
            raise TypeError(
                f"{name}[{index}] must be a list of words (is_split_into_words), not {type(words).__name__}"
            )
    bounds = np.fromiter(accumulate(map(len, texts), initial=0), np.int64, len(texts) + 1)
    return [word for words in texts for word in words], bounds


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Truncation and padding of rows."""

    truncation: _C.TruncationOptions
    padding: str
    max_length: int | None
    multiple: int | None

    def width(self, longest: int) -> int:
        """Return the padded length of rows whose longest has `longest` tokens; 0 without padding."""
        if self.padding == "do_not_pad":
            return 0
        width = longest if self.padding == "longest" else self.max_length or 0
        return width if not self.multiple else -(-width // self.multiple) * self.multiple


def read_lengths(
    *,
    padding: bool | str,
    truncation: bool | str | None,
    max_length: int | None,
    stride: int,
    pad_to_multiple_of: int | None,
    left: bool,
    overflow: bool,
    model_max_length: int | None,
    added: int,
    added_to_single: int = 0,
) -> Lengths:
    """Validate truncation and padding; `added` is the number of special tokens in a row, and `added_to_single` in a row
    with one sequence."""
    max_length = checked_max_length(max_length)
    if max_length is not None and max_length > _NO_LIMIT:
        max_length = model_max_length = None
    if model_max_length is not None and model_max_length > _NO_LIMIT:
        model_max_length = None
    multiple = checked_count(pad_to_multiple_of, "pad_to_multiple_of", 1)
    stride = checked_count(stride, "stride", 0) or 0
    if max_length is not None and truncation is None and padding is False:
        truncation = "longest_first"
    truncate = choice(truncation, TRUNCATIONS, "truncation")
    strategy = choice(padding, PADDINGS, "padding")
    length = model_max_length if max_length is None else max_length
    if length is None:
        truncate = _C.TruncationStrategy.NONE
        strategy = "do_not_pad" if strategy == "max_length" else strategy
    if truncate != _C.TruncationStrategy.NONE:
        assert length is not None
        check_room(length, added)
        cure = "use a smaller stride or a larger max_length"
        if added and stride and stride >= length - added:
            raise ValueError(
                f"stride={stride} must be below the {length - added} tokens that max_length={length} leaves beside the"
                f" {added} special tokens; {cure}"
            )
        # The reference always subtracts the special tokens of a single sequence here.
        most = max(0, length - added_to_single)
        if stride > most:
            raise ValueError(
                f"stride={stride} must be at most {most} at max_length={length}, also without special tokens; {cure}"
            )
        if multiple and strategy != "do_not_pad" and length % multiple:
            raise ValueError(
                f"max_length={length} must be a multiple of pad_to_multiple_of={multiple} to truncate and pad"
            )
    options = _C.TruncationOptions(truncate, length or 0, stride, left, overflow)
    return Lengths(truncation=options, padding=strategy, max_length=length, multiple=multiple)


def check_room(max_length: int, added: int) -> None:
    """Raise ValueError if there is no room for the special tokens."""
    if max_length < added:
        raise ValueError(f"max_length={max_length} has no room for the {added} special tokens; use a larger one")


def checked_max_length(max_length: int | None) -> int | None:
    """Validate a length of rows; transformers' very large number for "no limit" is accepted."""
    if max_length is None:
        return None
    max_length = operator.index(max_length)
    if max_length < 0:
        raise ValueError(f"max_length={max_length} must be at least 0")
    return max_length


def checked_model_max_length(length: int | float | None) -> int:
    """Validate a length; None (no limit) becomes transformers' very large number, which compares with other lengths."""
    if length is None or length > files.UNLIMITED_LENGTH:
        return files.NO_LIMIT
    if length != int(length) or length < 1:
        raise ValueError(f"model_max_length={length} must be a whole number of at least 1 (None for no limit)")
    return int(length)


def checked_count(value: int | None, name: str, least: int) -> int | None:
    """Validate a number that may be left out."""
    if value is None:
        return None
    value = operator.index(value)
    if not least <= value <= _LARGEST:
        raise ValueError(f"{name}={value} must be at least {least}, and at most {_LARGEST}")
    return value


def choice(value: Any, choices: dict[Any, Any], name: str) -> Any:
    """Return what an argument stands for, a key of `choices`."""
    value = getattr(value, "value", value)  # transformers has enums with the same values
    if not isinstance(value, bool | str | None) or value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")
    return choices[value]


def checked_side(side: str, name: str) -> str:
    """Validate a side: "right" or "left"."""
    if side not in SIDES:
        raise ValueError(f"{name}={side!r} must be 'right' or 'left'")
    return side


def checked_tensors(tensors: Any) -> str | None:
    """Validate a tensor type: None, "np" or "pt"."""
    tensors = getattr(tensors, "value", tensors)
    if tensors not in TENSORS:
        raise ValueError(f"return_tensors={tensors!r} must be None, 'np' or 'pt'")
    return tensors


def checked_threads(threads: int | None) -> int:
    """Validate a number of threads; None: the CPUs that this process may use."""
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if operator.index(threads) < 1:
        raise ValueError(f"threads={threads} must be at least 1")
    return min(operator.index(threads), 1024)


def check_tensor_rows(table: Any, width: int, padding: str) -> None:
    """Raise ValueError for rows of different lengths, which cannot become a tensor (numpy: an object array)."""
    sizes = np.maximum(np.diff(table.offsets), width)
    if (sizes == sizes[:1]).all():
        return
    if padding == "do_not_pad":
        raise ValueError("rows of different lengths cannot become a tensor; add padding=True (and truncation=True)")
    raise ValueError(f"a row has {sizes.max()} tokens, over the {width} of the padding; add truncation=True")


_warned = False


def warn_of_length(longest: int, model_max_length: int | None) -> None:
    """Warn once per process that a row is longer than the model supports."""
    global _warned
    if model_max_length is not None and longest > model_max_length and not _warned:
        _warned = True
        logger.warning(
            "a text has %d tokens, more than model_max_length=%d; truncate it with truncation=True",
            longest,
            model_max_length,
        )
