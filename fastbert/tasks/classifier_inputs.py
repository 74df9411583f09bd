"""Texts and pairs of texts that a classifier is called with, checked as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from fastbert.errors import UserError
from fastbert.io.columns import items_of, position, wrong_item

TextItem: TypeAlias = str | tuple[str, str]
Pair: TypeAlias = tuple[str, str | None]
"""A text, and the second text of its pair or None."""
FORM = "a string, or a tuple of two"


def texts_and_pairs(
    items: Iterable[Any], texts: object, pairs: object, *, paired: bool | None, name: str = "texts"
) -> Iterator[Pair]:
    """Yield each text with the second text of its pair, None for single texts.

    `items` are those of `texts`, the argument of a caller that is called `name`; `pairs` are second texts. `paired`
    says on what the model was trained, None if it is unknown. Raises UserError for an item of another form, by its
    index, for single texts among pairs, and for what the model was not trained on.
    """
    read = _tuples(items, texts, name) if pairs is None else _columns(items, texts, pairs)
    first: bool | None = None
    for index, (text, pair) in enumerate(read):
        is_pair = pair is not None
        if paired not in (None, is_pair):
            cure = "give single texts" if is_pair else "give tuples of two texts, or the second ones as pairs="
            kinds = ("a pair", "single texts") if is_pair else ("a single text", "pairs")
            raise UserError(f"{name}[{index}] is {kinds[0]}, and the model was trained on {kinds[1]}: {cure}")
        first = is_pair if first is None else first
        if is_pair != first:
            raise UserError(
                f"{name}[{index}] is {'' if is_pair else 'not '}a pair, unlike {name}[0]: give one kind in a call"
            )
        yield text, pair


def _tuples(items: Iterable[Any], texts: object, name: str) -> Iterator[Pair]:
    known = items if isinstance(items, list) else ()
    for index, item in enumerate(items):
        if isinstance(item, str):
            yield item, None
        elif _is_pair(item):
            yield item[0], item[1]
        else:
            raise wrong_item(item, position(texts, index, name), known, FORM)


def _is_pair(item: object) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and all(isinstance(text, str) for text in item)


def _columns(items: Iterable[Any], texts: object, pairs: object) -> Iterator[Pair]:
    seconds = items_of(pairs, "pairs")
    if isinstance(items, Sequence) and isinstance(seconds, Sequence) and len(items) != len(seconds):
        raise UserError(f"texts has {len(items)} items and pairs {len(seconds)}: give as many")
    for index, (text, pair) in enumerate(_together(items, seconds)):
        for value, values, name in ((text, texts, "texts"), (pair, pairs, "pairs")):
            if not isinstance(value, str):
                raise wrong_item(value, position(values, index, name))
        yield text, pair


def _together(items: Iterable[Any], seconds: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    pairs = zip(items, seconds, strict=True)
    while True:
        try:
            yield next(pairs)
        except StopIteration:
            return
        except ValueError:  # of zip, whose inputs are generators
            raise UserError("texts and pairs have different numbers of items: give as many") from None
