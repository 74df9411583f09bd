"""Words as characters: the bytes of their UTF-8 between a begin and an end, at most 50 in all (Peters et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.models.elmo.config import MOST_CHARACTERS

# Ids 0 to 255 are bytes.
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(256, 261)
ALPHABET = 261
MOST_BYTES = MOST_CHARACTERS - 2


@dataclass(frozen=True, eq=False)
class Characters:
    """The characters of some words: word i has `ids[offsets[i] : offsets[i + 1]]`.

    `ids` int16 (characters,), `offsets` int64 (words + 1,), on one device.
    """

    ids: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def to(self, device: torch.device) -> Characters:
        """Return the characters on a device."""
        return Characters(self.ids.to(device), self.offsets.to(device))


def read_characters(words: Sequence[str], *, begin: str | None = None, end: str | None = None) -> Characters:
    """Return the characters of words: begin of word, at most 48 bytes of UTF-8, end of word.

    The words `begin` and `end`, special tokens of a vocabulary, are one character each, between begin and end of word.
    Raises `UserError` for a word that is not a string or that is empty, by its index.
    """
    encoded = []
    for index, word in enumerate(words):
        if not isinstance(word, str):
            raise UserError(f"words[{index}] must be a string, not {type(word).__name__}")
        if not word:
            raise UserError(f"words[{index}] is empty, and a word has one character at least; leave it out")
        # A lone surrogate is not UTF-8; it is read as "?".
        encoded.append(word.encode("utf-8", "replace")[:MOST_BYTES])
    special = {word: mark for word, mark in ((begin, SENTENCE_BEGIN), (end, SENTENCE_END)) if word is not None}
    replaced = {index: special[word] for index, word in enumerate(words) if word in special} if special else {}
    for index in replaced:
        encoded[index] = b"?"
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    offsets = np.concatenate(([0], np.cumsum(sizes + 2)))
    ids = np.empty(offsets[-1], np.int16)
    inside = np.ones(len(ids), bool)
    ids[offsets[:-1]], ids[offsets[1:] - 1] = WORD_BEGIN, WORD_END
    inside[offsets[:-1]] = inside[offsets[1:] - 1] = False
    ids[inside] = np.frombuffer(b"".join(encoded), np.uint8)
    for index, mark in replaced.items():
        ids[offsets[index] + 1] = mark
    return Characters(torch.from_numpy(ids), torch.from_numpy(offsets))


def sentence_marks() -> Characters:
    """Return the characters of the words with which a sentence begins and ends."""
    marks = [[WORD_BEGIN, mark, WORD_END] for mark in (SENTENCE_BEGIN, SENTENCE_END)]
    return Characters(torch.tensor(marks, dtype=torch.int16).flatten(), torch.tensor([0, 3, 6]))


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of characters over which words are convolved, without those that repeat the padding.

    A word of n characters padded to 50 has 50 windows; those that start behind its end hold padding alone and are
    equal, so one stands for all. Words are sorted by their number of windows.
    """

    characters: Tensor
    """int64 (windows, width): ids, `PADDING` behind the end of a word."""
    words: Tensor
    """int64 (words,): the word of each place in the sorted order."""
    groups: list[tuple[int, int]]
    """Numbers of consecutive words with the same number of windows, and that number."""
    starts: Tensor
    """int64 (windows,): the character at which each window starts."""
    longest: int
    """The largest number of windows of a word."""


def windows_of(characters: Characters, words: Tensor, width: int) -> Windows:
    """Return the windows of `words`, int64 (words,), indices into `characters`, `width` characters each."""
    begins = characters.offsets.index_select(0, words)
    lengths = characters.offsets.index_select(0, words + 1) - begins
    counts, order = (lengths + 1).clamp(max=MOST_CHARACTERS).sort(stable=True)
    begins, lengths = begins[order], lengths[order]
    ends = counts.cumsum(0)
    # Read on the host: on a GPU the only host-device sync of a step.
    sizes, repeats = counts.unique_consecutive(return_counts=True)
    groups = list(zip(repeats.tolist(), sizes.tolist(), strict=True))
    total = sum(count * size for count, size in groups)
    word = torch.arange(len(words), device=words.device).repeat_interleave(counts, output_size=total)
    starts = torch.arange(total, device=words.device) - (ends - counts)[word]
    places = starts.unsqueeze(1) + torch.arange(width, device=words.device)
    inside = places < lengths[word].unsqueeze(1)
    flat = (begins[word].unsqueeze(1) + places).clamp_(max=max(len(characters.ids) - 1, 0))
    ids = characters.ids[flat].long().masked_fill_(~inside, PADDING)
    return Windows(ids, order, groups, starts, groups[-1][1] if groups else 0)
