"""Read text as documents of sentences in C++ (csrc/corpus), by the rules of `sentences` and the layouts of `layouts`.

The rules are handed over once per process: the word lists, and the properties of characters as Python's `str` has them,
so that csrc/corpus and the Python reference agree whatever the version of Unicode.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.data import sentences
from fastbert.data.layouts import CJK, MAX_DOCUMENT_CHARS, TextFormat

_CODE_POINTS = 0x110000
# From here on there is no letter, digit or white space.
_ASSIGNED = 0x40000


def sentence_reader(
    layout: TextFormat,
    *,
    one_document: bool = False,
    max_paragraph_chars: int,
    max_document_chars: int = MAX_DOCUMENT_CHARS,
    repeats: _C.Repeats | None = None,
) -> _C.SentenceReader:
    """Return a reader of lines; its documents are those of `layouts.documents_of_lines`.

    With `repeats`, which several readers in turn may share, documents and lines that were read before are dropped.
    """
    return _C.SentenceReader(sentence_rules(), layout, one_document, max_paragraph_chars, max_document_chars, repeats)


@cache
def sentence_rules() -> _C.SentenceRules:
    """Return the rules of `sentences.split_sentences`, for C++."""
    return _C.SentenceRules(
        _properties(),
        titles=set(sentences._TITLES),
        before_number=set(sentences._BEFORE_NUMBER),
        ordinary=set(sentences._WORDS_TOO),
        abbreviations=set(sentences._ABBREVIATIONS),
        starters=set(sentences._STARTERS),
    )


def _properties() -> NDArray[np.uint16]:
    """Return the properties of each code point, uint16 (0x110000,): bits of `_C.CharacterProperty`."""
    bit = _C.CharacterProperty
    points = [chr(point) for point in range(_ASSIGNED)]
    table = np.zeros(_CODE_POINTS, np.uint16)

    def mark(properties: _C.CharacterProperty, holds: Callable[[str], bool]) -> None:
        table[:_ASSIGNED] |= np.fromiter(map(holds, points), bool, _ASSIGNED) * np.uint16(int(properties))

    mark(bit.SPACE, str.isspace)
    mark(bit.LOWER, str.islower)
    mark(bit.UPPER, str.isupper)
    mark(bit.ALPHA, str.isalpha)
    mark(bit.DIGIT, str.isdigit)
    for letters in re.finditer(r"[^\W\d_]+", "".join(points)):
        table[letters.start() : letters.end()] |= np.uint16(int(bit.LETTER))
    for characters, properties in (
        (sentences._STOPS, [bit.STOP]),
        (sentences._CJK_STOPS, [bit.CJK_STOP, bit.CONTINUING]),
        (sentences._CJK_CONTINUING, [bit.CONTINUING]),
        (sentences.CLOSERS, [bit.CLOSER]),
        (sentences.OPENERS + sentences._DASHES, [bit.OPENER]),
        (sentences._WORD_BREAKS, [bit.WORD_BREAK]),
        (sentences._WORD_ENDS, [bit.WORD_END]),
    ):
        for point in set(map(ord, characters)):
            for each in properties:
                table[point] |= np.uint16(int(each))
    is_space = (table & np.uint16(int(bit.SPACE))) != 0
    table[is_space] |= np.uint16(int(bit.WORD_BREAK))
    for match in CJK.finditer("".join(points[:0x10000])):
        table[match.start()] |= np.uint16(int(bit.CJK))
    return table
