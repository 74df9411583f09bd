"""The model inputs of pseudo-log-likelihoods: one copy of a text per token, with that token masked.

A text of n tokens needs n copies of it, special tokens included. Copies that are equal are one: those of equal texts,
and the copies of a minimal pair that mask the one token in which its sentences differ. Only those: every other copy
contains the difference, which bidirectional attention spreads to all tokens. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fastbert.scoring.tokenized_texts import ScoreMode, TokenizedTexts
from fastbert.tasks.row_template import RowTemplate
from fastbert.tasks.rows import bounds, runs


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedCopies:
    """The distinct copies of some texts, int64 arrays: copy c is text `texts[c]` with [MASK] at the tokens
    `positions[c]` up to `ends[c]`, and predicts the first of them. `of_token` (tokens,) is the copy that predicts each
    token of the texts."""

    source: TokenizedTexts
    template: RowTemplate
    texts: np.ndarray
    positions: np.ndarray
    ends: np.ndarray
    of_token: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each copy, special ones included."""
        return self.source.sizes[self.texts] + self.template.added

    def rows(self, copies: np.ndarray, mask_id: int) -> CopyRows:
        """Return the tokens of the copies of these numbers, in this order."""
        texts, positions = self.texts[copies], self.positions[copies]
        sizes = self.source.sizes[texts]
        offsets = bounds(sizes + self.template.added)
        ids = np.empty(offsets[-1], np.int64)
        self.template.write(ids, offsets)
        begins = offsets[:-1] + len(self.template.before)
        ids[runs(begins, sizes)] = self.source.ids[runs(self.source.offsets[texts], sizes)]
        masked = begins + positions
        ids[runs(masked, self.ends[copies] - positions)] = mask_id
        return CopyRows(ids=ids, offsets=offsets, masked=masked)


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyRows:
    """Copies as rows of tokens, int64: `ids` (tokens,), `offsets` (copies + 1,), and the index of the masked token that
    each copy predicts, `masked` (copies,)."""

    ids: np.ndarray
    offsets: np.ndarray
    masked: np.ndarray


def masked_copies(texts: TokenizedTexts, template: RowTemplate, mode: ScoreMode = "original") -> MaskedCopies:
    """Return the distinct copies of texts, between the special tokens of a template.

    `original` masks one token per copy (Salazar et al. 2020, section 2.1). `within-word` also masks the later tokens of
    its word, whose spelling would give it away (Kauf and Ivanova 2023, "PLL-word-l2r").
    """
    mask_ends = np.arange(1, len(texts.ids) + 1) if mode == "original" else _word_ends(texts)
    numbers: dict[bytes, int] = {}
    of_token = np.empty(len(texts.ids), np.int64)
    firsts: list[int] = []  # tokens of the first texts that have each copy
    hidden = np.full(1, -1, np.int32).tobytes()  # no token's id
    offsets, ends = texts.offsets.tolist(), mask_ends.tolist()
    for first, last in pairwise(offsets):
        row = texts.ids[first:last].tobytes()
        for token in range(first, last):
            begin, count = 4 * (token - first), ends[token] - token
            # The position too: with several masks the copies of one word differ in it alone.
            key = b"".join((row[:begin], hidden * count, row[begin + 4 * count :], begin.to_bytes(4, "little")))
            number = numbers.setdefault(key, len(firsts))
            if number == len(firsts):
                firsts.append(token)
            of_token[token] = number
    tokens = np.array(firsts, np.int64)
    text_numbers = np.searchsorted(texts.offsets, tokens, side="right") - 1
    begins = texts.offsets[text_numbers]
    return MaskedCopies(
        source=texts,
        template=template,
        texts=text_numbers,
        positions=tokens - begins,
        ends=mask_ends[tokens] - begins,
        of_token=of_token,
    )


def _word_ends(texts: TokenizedTexts) -> np.ndarray:
    """Return the end of each token's word, as an index of all texts' tokens, int64 (tokens,)."""
    count = len(texts.ids)
    numbers = np.repeat(np.arange(len(texts)), texts.sizes)
    begins_word = np.ones(count, bool)
    begins_word[1:] = (np.diff(texts.words) != 0) | (np.diff(numbers) != 0)
    starts = np.append(np.flatnonzero(begins_word), count)
    return starts[np.cumsum(begins_word)] if count else np.zeros(0, np.int64)
