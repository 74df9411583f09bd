"""Schemes of entity tags: detection and conversion.

In every scheme `O` is outside, and the letter before the hyphen of other tags is the position of a word in an entity:

- BIO (IOB2): `B-` at its first word, `I-` at the others;
- IOB1: `B-` only at the first word of an entity that follows another of its type, else `I-`;
- BIOES: also `E-` at its last word, and `S-` where it has one word; BILOU writes `L-` and `U-` for these, and counts as
  BIOES here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

Scheme = Literal["BIO", "IOB1", "BIOES"]
OUTSIDE = "O"
_ENTITY = re.compile(r"[BIESLU]-.+", re.DOTALL)


def is_entity_tag(tag: str) -> bool:
    """Return True for the tags of a scheme: `O`, or a position, a hyphen and a type."""
    return tag == OUTSIDE or _ENTITY.fullmatch(tag) is not None


def scheme_of(tags: Iterable[str | Sequence[str]]) -> Scheme | None:
    """Return the scheme of tags, given sentences of them or the set in use. None for tags that are not of entities,
    such as parts of speech.

    In IOB1 most entities that do not follow one of their type begin with `I-`, in BIO with `B-`; a set of tags without
    `B-` is IOB1.
    """
    items = list(tags)
    is_set = any(isinstance(item, str) for item in items)  # though a string is a sequence of strings too
    sentences: list[Sequence[str]] = [[str(item) for item in items]] if is_set else list(items)
    names = {tag for sentence in sentences for tag in sentence}
    if not names or not all(map(is_entity_tag, names)):
        return None
    positions = {tag[0] for tag in names if tag != OUTSIDE}
    if positions & set("ESLU"):
        return "BIOES"
    if "I" not in positions or (is_set and "B" in positions):
        return "BIO"
    starts = {"B": 0, "I": 0}
    for sentence in sentences:
        for before, tag in zip((OUTSIDE, *sentence), sentence):
            if tag != OUTSIDE and before[2:] != tag[2:]:
                starts[tag[0]] += 1
    return "IOB1" if is_set or starts["I"] > starts["B"] else "BIO"


def spans_of(tags: Sequence[str], scheme: Scheme) -> Iterator[tuple[int, int, str]]:
    """Yield the entities: first word, word after the last, type. Invalid tags are read as in conlleval: a word inside
    an entity that has not begun begins it."""
    begun, kind = 0, ""  # of the current entity; the type is empty outside
    for i, tag in enumerate(tags):
        # Tags of no scheme, which other programs may predict, are outside.
        position, type_ = (tag[0], tag[2:]) if tag[1:2] == "-" else (OUTSIDE, "")
        if kind and (type_ != kind or position in "BSU"):
            yield begun, i, kind
            kind = ""
        if type_ and not kind:
            begun, kind = i, type_
        if kind and scheme == "BIOES" and position in "ESLU":
            yield begun, i + 1, kind
            kind = ""
    if kind:
        yield begun, len(tags), kind


def convert(tags: Sequence[str], scheme: Scheme, target: Scheme) -> tuple[str, ...]:
    """Convert the tags of a sentence to a scheme; to their own scheme, correct invalid tags."""
    result, ended, before = [OUTSIDE] * len(tags), -1, ""
    for first, last, kind in spans_of(tags, scheme):
        result[first:last] = [f"I-{kind}"] * (last - first)
        if target != "IOB1" or (first == ended and kind == before):
            result[first] = f"B-{kind}"
        if target == "BIOES":
            result[last - 1] = f"E-{kind}" if last - first > 1 else f"S-{kind}"
        ended, before = last, kind
    return tuple(result)


def count_invalid(tags: Sequence[str], scheme: Scheme) -> int:
    """Return the number of tags of a sentence that are invalid in the scheme."""
    names = {"L": "E", "U": "S"} if scheme == "BIOES" else {}
    canonical = [tag if tag == OUTSIDE else names.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    return sum(tag != corrected for tag, corrected in zip(canonical, convert(tags, scheme, scheme)))
