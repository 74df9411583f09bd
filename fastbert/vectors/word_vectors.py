"""Words and their static vectors: look words up, find neighbours, complete analogies, read and write files."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fastbert.errors import UserError, require_whole
from fastbert.vectors.files import read_vectors, write_vectors

Fallback = Literal["zero", "mean"]
_SUGGESTIONS = 3
_SIMILAR = 0.7  # difflib's ratio of a suggestion
_LONGER = 2  # characters by which a suggestion may be longer or shorter


class Neighbour(NamedTuple):
    """A word, and the cosine between its vector and that of a query."""

    word: str
    cosine: float


class UnknownWordError(UserError, KeyError):
    """A word has no vector: the message names similar words that have one."""


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words with one vector each: `words` in the order of their rows in `array`, fp32 (words, size).

    `vectors["word"]` is a row, `"word" in vectors` tells whether there is one, `len(vectors)` counts the words. Raises
    `UserError` if words and rows differ in number, a word occurs twice, or a vector is not finite.
    """

    words: tuple[str, ...]
    array: NDArray[np.float32]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "array", np.ascontiguousarray(self.array, dtype=np.float32))
        if self.array.ndim != 2 or len(self.array) != len(self.words) or not self.array.size:
            raise UserError(
                f"{len(self.words):,} words cannot have an array of shape {self.array.shape}; it must be (words, size)"
            )
        if len(self.index) != len(self.words):
            double = next(word for row, word in enumerate(self.words) if self.index[word] != row)
            raise UserError(f"the word {double!r} occurs twice; keep one of its vectors")
        if not np.isfinite(self.array).all():
            row = int(np.isfinite(self.array).all(axis=1).argmin())
            raise UserError(f"the vector of {self.words[row]!r} is not finite")

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, limit: int | None = None, progress: Callable[[int], None] | None = None
    ) -> Self:
        """Read a text file of word2vec, or one of GloVe, which has no header; also .gz and .xz of these.

        `limit` is the number of words to read, from the first on: files begin with the most frequent ones. `progress`
        is called with the position in the file, in bytes. Raises `UserError` for another kind of file, and for wrong
        lines, by their number.
        """
        return cls(*read_vectors(Path(path), limit=limit, progress=progress))

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write word2vec's text format, atomically; `load` reads the same bits. Raises `UserError` if the file exists
        and `overwrite` is False, and for words that contain white space."""
        write_vectors(Path(path), self.words, self.array, overwrite=overwrite)

    @property
    def size(self) -> int:
        """Return the width of a vector."""
        return int(self.array.shape[1])

    @cached_property
    def index(self) -> dict[str, int]:
        """Return the row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def unit(self) -> NDArray[np.float32]:
        """Return the vectors scaled to unit length, fp32 (words, size); a zero vector stays zero."""
        norms = np.linalg.norm(self.array.astype(np.float64), axis=1, keepdims=True)
        return (self.array / np.where(norms > 0, norms, 1.0)).astype(np.float32)

    @cached_property
    def mean(self) -> NDArray[np.float32]:
        """Return the mean of all vectors, fp32 (size,)."""
        return self.array.mean(axis=0, dtype=np.float64).astype(np.float32)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        """Return the vector of a word, fp32 (size,). Raises `UnknownWordError`, a `KeyError`."""
        return self.array[self._row(word)]

    def rows(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each word, or of its lower-cased form, int64 (words,); -1 for words without a vector."""
        index = self.index
        return np.array([index.get(word, index.get(word.lower(), -1)) for word in words], dtype=np.int64)

    def lookup(self, words: Sequence[str], *, unknown: Fallback = "zero") -> NDArray[np.float32]:
        """Return the vectors of `rows(words)`, fp32 (words, size); words without one have zeros, or the mean of all
        vectors. Raises `UserError` for another value of `unknown`."""
        if unknown not in ("zero", "mean"):
            raise UserError(f"unknown={unknown!r} must be zero or mean")
        rows = self.rows(words)
        vectors = self.array[rows]
        vectors[rows < 0] = self.mean if unknown == "mean" else 0.0
        return vectors

    def similarity(self, word: str, other: str) -> float:
        """Return the cosine between two words. Raises `UnknownWordError`."""
        return float(self.unit[self._row(word)] @ self.unit[self._row(other)])

    def neighbours(self, query: str | NDArray[np.float32], count: int = 10) -> list[Neighbour]:
        """Return the `count` words nearest to a word, itself left out, or to a vector, floating (size,), by cosine.

        Raises `UnknownWordError` for a word without a vector, and `UserError` for a vector of another shape.
        """
        if isinstance(query, str):
            row = self._row(query)
            return self._nearest(self.unit[row], count, (row,))
        if np.shape(query) != (self.size,):
            raise UserError(f"a query of shape {np.shape(query)} must be a word, or a vector of shape ({self.size},)")
        vector = np.asarray(query, dtype=np.float64)
        return self._nearest(vector / (np.linalg.norm(vector) or 1.0), count, ())

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[Neighbour]:
        """Return the words that are to `c` as `b` is to `a`: those nearest to b - a + c, unit vectors, by cosine.

        This is 3CosAdd of Mikolov et al. 2013 (Linguistic Regularities in Continuous Space Word Representations); the
        three words themselves are left out. Raises `UnknownWordError`.
        """
        rows = [self._row(word) for word in (a, b, c)]
        first, second, third = self.unit[rows].astype(np.float64)
        query = second - first + third
        return self._nearest(query / (np.linalg.norm(query) or 1.0), count, rows)

    def _nearest(self, unit: NDArray[np.floating], count: int, without: Sequence[int]) -> list[Neighbour]:
        """Return the `count` words with the highest cosine to a unit vector; of equals, the first in the file."""
        require_whole("count", count, 1)
        cosines = self.unit @ unit.astype(np.float32)
        cosines[list(without)] = -np.inf
        count = min(count, len(self) - len(set(without)))
        if count < len(self):
            least = np.partition(cosines, -count)[-count] if count else np.inf
            best = np.flatnonzero(cosines >= least)
        else:
            best = np.arange(len(self))
        order = best[np.argsort(-cosines[best], kind="stable")][:count]
        return [Neighbour(self.words[row], float(cosines[row])) for row in order]

    def _row(self, word: str) -> int:
        row = self.index.get(word)
        if row is None:
            raise UnknownWordError(f"the word {word!r} has no vector{self._suggestion(word)}")
        return row

    def _suggestion(self, word: str) -> str:
        """Return words that may be meant: other capitals first, then similar spellings, the more frequent first."""
        folded = word.casefold()
        close = [known for known in self.words if known.casefold() == folded][:_SUGGESTIONS]
        if not close:
            similar = [known for known in self.words if abs(len(known) - len(word)) <= _LONGER]
            close = difflib.get_close_matches(word, similar, n=_SUGGESTIONS, cutoff=_SIMILAR)
        return f"; did you mean {', '.join(map(repr, close))}?" if close else f"; the file has {len(self):,} words"
