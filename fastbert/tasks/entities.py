"""Entities of tagged sentences: IOB1, BIO (IOB2) and BIOES, invalid sequences read as CoNLL's conlleval script does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

_PREFIXES = "OBIES"
_OUT, _BEGIN, _IN, _END, _SINGLE = range(5)
# conlleval's rules between a tag and the next: the entity before ends, and one starts, whatever their types.
_ENDS_BEFORE = np.zeros((5, 5), dtype=bool)
_ENDS_BEFORE[[_BEGIN, _IN]] = np.isin(np.arange(5), (_BEGIN, _SINGLE, _OUT))
_ENDS_BEFORE[[_END, _SINGLE]] = True
_STARTS_AT = np.zeros((5, 5), dtype=bool)
_STARTS_AT[:, [_BEGIN, _SINGLE]] = True
_STARTS_AT[np.ix_([_OUT, _END, _SINGLE], [_IN, _END])] = True


class Scheme:
    """What the tags of a set mean for entities. Each is O, or B, I, E or S, with its type behind a hyphen or without a
    type, which is then `_`; a set with another tag is none of entities: parts of speech, say."""

    def __init__(self, labels: Sequence[str]) -> None:
        parts = [(label[:1], label[2:] or "_") for label in labels]
        of_chunks = [label[:1] in tuple("BIES") and label[1:2] in ("", "-") for label in labels]
        self.is_chunks = any(of_chunks) and all(label == "O" or fits for label, fits in zip(labels, of_chunks))
        if self.is_chunks:
            self._types = sorted({kind for prefix, kind in parts if prefix != "O"})
            # Behind all labels: the end of a sentence, which is outside.
            self._prefix = np.array([_PREFIXES.index(prefix) for prefix, _ in parts] + [_OUT])
            numbers = [-1 if prefix == "O" else self._types.index(kind) for prefix, kind in parts]
            self._type = np.array([*numbers, -1])

    def chunks(self, classes: np.ndarray, sentences: np.ndarray) -> list[list[tuple[str, int, int]]]:
        """For each sentence the entities: type, first word and the one behind the last, counted through all sentences.

        classes: int64 (words,), the labels' numbers. sentences: int64, where each sentence begins and the last ends.
        """
        if not self.is_chunks:
            return [[] for _ in range(len(sentences) - 1)]
        # Each sentence is followed by a place of its own that is outside, and the first one also has one before it.
        word = np.arange(len(classes)) + 1 + np.repeat(np.arange(len(sentences) - 1), np.diff(sentences))
        spaced = np.full(len(classes) + len(sentences), len(self._prefix) - 1)
        spaced[word] = classes
        prefix, kind = self._prefix[spaced], self._type[spaced]
        changes = kind[1:] != kind[:-1]
        inside = prefix != _OUT
        starts = inside[1:] & (_STARTS_AT[prefix[:-1], prefix[1:]] | changes)
        ends = inside[:-1] & (_ENDS_BEFORE[prefix[:-1], prefix[1:]] | changes)
        begin = np.flatnonzero(starts) + 1
        end = np.flatnonzero(ends) + 1
        # A start always follows an end or what is outside, so they come in pairs.
        number = np.searchsorted(word, begin)
        last = number + (end - begin)
        names = [self._types[index] for index in kind[begin].tolist()]
        found = list(zip(names, number.tolist(), last.tolist(), strict=True))
        limits = np.searchsorted(number, sentences).tolist()
        return [found[a:b] for a, b in pairwise(limits)]
