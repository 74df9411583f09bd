"""Numbers for words of any vocabulary, by which batches of ids carry words that models read by their characters.

The table is the process's own: a number means the same word to every tokenizer and model in it, and nothing outside.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fastbert.errors import UserError
from fastbert.tokenizers.training import SPECIAL_TOKENS

MOST_WORDS = 1 << 28


class WordTable:
    """Words in the order in which they were first added, after BERT's special tokens; threads may share it."""

    def __init__(self) -> None:
        self._words = list(SPECIAL_TOKENS)
        self._ids = {word: index for index, word in enumerate(self._words)}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._words)

    def ids(self, words: Sequence[str]) -> NDArray[np.int32]:
        """Return the number of each word, int32 (words,); new words are added. Raises `UserError` for a full table."""
        with self._lock:
            for word in words:
                if word not in self._ids:
                    if len(self._words) >= MOST_WORDS:
                        raise UserError(
                            f"more than {MOST_WORDS:,} different words were read in one process; start another"
                        )
                    self._ids[word] = len(self._words)
                    self._words.append(word)
            return np.fromiter((self._ids[word] for word in words), np.int32, len(words))

    def words(self, ids: Iterable[int]) -> list[str]:
        """Return the words of some numbers. Raises IndexError for a number that has none."""
        return [self._words[index] for index in ids]


WORD_TABLE = WordTable()
