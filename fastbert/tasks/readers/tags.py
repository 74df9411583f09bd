"""Schemes of entity tags: which one tags follow, and from one to another.

In every scheme `O` is outside, and what precedes the hyphen of other tags says where in an entity a word stands:

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
    """Return whether a tag is one of a scheme: `O`, or a place, a hyphen and a type."""
    return tag == OUTSIDE or _ENTITY.fullmatch(tag) is not None


def scheme_of(tags: Iterable[str | Sequence[str]]) -> Scheme | None:
    """The scheme of tags: of sentences of them, or of the set that is in use. None for tags that name no entities, such
    as parts of speech.

    IOB1 and BIO differ in what entities mostly begin with, `I-` or `B-`, where one of their type does not stand before;
    of a set of tags, it is IOB1 that has no `B-`.
    """
    items = list(tags)
    is_set = any(isinstance(item, str) for item in items)  # though a string is a sequence of strings too
    sentences: list[Sequence[str]] = [[str(item) for item in items]] if is_set else list(items)
    found = {tag for sentence in sentences for tag in sentence}
    if not found or not all(map(is_entity_tag, found)):
        return None
    places = {tag[0] for tag in found if tag != OUTSIDE}
    if places & set("ESLU"):
        return "BIOES"
    if "I" not in places or (is_set and "B" in places):
        return "BIO"
    starts = {"B": 0, "I": 0}
    for sentence in sentences:
        for before, tag in zip((OUTSIDE, *sentence), sentence):
            if tag != OUTSIDE and before[2:] != tag[2:]:
                starts[tag[0]] += 1
    return "IOB1" if is_set or starts["I"] > starts["B"] else "BIO"


def spans_of(tags: Sequence[str], scheme: Scheme) -> Iterator[tuple[int, int, str]]:
    """The entities: first word, word after the last, type. What a scheme does not allow is read as conlleval reads it:
    a word inside an entity that has not begun begins it."""
    begun, kind = 0, ""  # of the entity that goes on, whose type is empty outside
    for i, tag in enumerate(tags):
        # What is no tag of a scheme, as others may predict it, is outside.
        place, own = (tag[0], tag[2:]) if tag[1:2] == "-" else (OUTSIDE, "")
        if kind and (own != kind or place in "BSU"):
            yield begun, i, kind
            kind = ""
        if own and not kind:
            begun, kind = i, own
        if kind and scheme == "BIOES" and place in "ESLU":
            yield begun, i + 1, kind
            kind = ""
    if kind:
        yield begun, len(tags), kind


def to_bio(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """The tags of a sentence in BIO."""
    return convert(tags, scheme, "BIO")


def convert(tags: Sequence[str], scheme: Scheme, wanted: Scheme) -> tuple[str, ...]:
    """The tags of a sentence in another scheme, or what is wrong with them mended in the same."""
    result, ended, before = [OUTSIDE] * len(tags), -1, ""
    for first, last, kind in spans_of(tags, scheme):
        result[first:last] = [f"I-{kind}"] * (last - first)
        if wanted != "IOB1" or (first == ended and kind == before):
            result[first] = f"B-{kind}"
        if wanted == "BIOES":
            result[last - 1] = f"E-{kind}" if last - first > 1 else f"S-{kind}"
        ended, before = last, kind
    return tuple(result)


def count_invalid(tags: Sequence[str], scheme: Scheme) -> int:
    """The tags of a sentence that the scheme does not allow where they stand."""
    names = {"L": "E", "U": "S"} if scheme == "BIOES" else {}
    canonical = [tag if tag == OUTSIDE else names.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    return sum(given != mended for given, mended in zip(canonical, convert(tags, scheme, scheme)))
