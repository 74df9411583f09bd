"""Read the text formats of word2vec and GloVe, which is untrusted input, and write word2vec's.

word2vec's begins with a line of two numbers, words and width; GloVe's has no header. Both have a line per word: the
word and its numbers, separated by spaces. A word may contain spaces: the numbers are the last fields.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastbert.data.text_lines import line_blocks
from fastbert.errors import CorpusError, UserError, require_whole
from fastbert.io.atomic_write import atomic_write, refuse_present
from fastbert.io.untrusted_input import shown

SUFFIXES = (".txt", ".vec")
"""Of the files that are written; files of any name are read."""
MAX_WIDTH = 1 << 14
_BLOCK_BYTES = 1 << 20
_OTHER_SPACE = re.compile("[\t-\r]")
_ROWS = 4096  # written at once
_OTHER_KIND = (
    "is not a text file of word vectors (word2vec's binary format must be converted to text); name a file with one word"
    " and its numbers per line"
)


def read_vectors(
    path: Path, *, limit: int | None = None, progress: Callable[[int], None] | None = None
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """Return the words of a file, and their vectors, fp32 (words, width); at most the first `limit` words.

    `progress` is called with the position in the file, in bytes. Raises `UserError`, with the line, for a file of
    another kind, an empty one, a wrong number of words or numbers, a number that is not finite, and a word that occurs
    twice.
    """
    require_whole("limit", limit, 1, optional=True)
    reader = _Reader(path)
    try:
        for lines in line_blocks(path, _BLOCK_BYTES, cut=False, report=progress):
            if reader.add(lines, limit):
                break
    except CorpusError as error:
        if reader.line or "UTF-8" not in str(error):
            raise UserError(str(error)) from None
        raise UserError(f"{path}: {_OTHER_KIND}") from None  # the first block already
    return reader.result(limit)


class _Reader:
    """Collect words and vectors from blocks of lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0  # lines read
        self.header: int | None = None
        """Number of words in the header, None without one."""
        self.width = 0
        self.rows: dict[str, int] = {}  # by word
        self.lines: list[int] = []  # the line of each row
        self.blocks: list[NDArray[np.float32]] = []

    def add(self, lines: list[str], limit: int | None) -> bool:
        """Read a block of lines; return True if there are `limit` words."""
        if not self.line:
            lines = self._begin(lines)
        numbered = [(self.line + number, line.rstrip(" ")) for number, line in enumerate(lines, 1)]
        self.line += len(lines)
        numbered = [(number, line) for number, line in numbered if line]
        if limit is not None:
            numbered = numbered[: limit - len(self.rows)]
        if numbered:
            texts = []
            for number, line in numbered:
                word, text = self._split(number, line)
                if word in self.rows:
                    first = self.lines[self.rows[word]]
                    raise UserError(
                        f"{self.path}, line {number}: the word {shown(word)} occurs twice, first in line {first};"
                        " remove one of them"
                    )
                self.rows[word] = len(self.lines)
                self.lines.append(number)
                texts.append(text)
            self.blocks.append(self._numbers(texts, [number for number, _ in numbered]))
        return limit is not None and len(self.rows) >= limit

    def _begin(self, lines: list[str]) -> list[str]:
        """Read the header, or the width from the first vector; return the lines of vectors."""
        if any("\0" in line for line in lines):
            raise UserError(f"{self.path}: {_OTHER_KIND}")
        fields = lines[0].split() if lines else []
        if len(fields) == 2 and all(field.isascii() and field.isdigit() and len(field) < 19 for field in fields):
            self.header, self.width = int(fields[0]), int(fields[1])
            self.line, lines = 1, lines[1:]
        else:
            fields = lines[0].rstrip(" ").split(" ") if lines else []
            # A word may contain spaces; the numbers are those at the end.
            self.width = next(
                (count for count, field in enumerate(reversed(fields)) if not _is_number(field)), len(fields) - 1
            )
            if self.width < 1 and lines:
                raise UserError(f"{self.path}: {_OTHER_KIND}; line 1 is {shown(lines[0][:60])}")
        if self.width > MAX_WIDTH or (lines and self.width < 1):
            raise UserError(
                f"{self.path}, line 1: vectors of {self.width:,} numbers; they must have from 1 to {MAX_WIDTH:,}"
            )
        return lines

    def _split(self, number: int, line: str) -> tuple[str, str]:
        """Return the word and the numbers of a line as text."""
        if line.count(" ") == self.width:
            word, _, text = line.partition(" ")
        else:
            word, *fields = line.rsplit(" ", self.width)
            if len(fields) < self.width or not all(map(_is_number, fields)) or _is_number(word.rpartition(" ")[2]):
                count = len(line.split(" ")) - 1
                source = "line 1 announces" if self.header is not None else "the first line has"
                raise UserError(
                    f"{self.path}, line {number}: {count:,} fields after the word, and {source} {self.width:,}; is the"
                    " line damaged?"
                )
            text = " ".join(fields)
        if not word:
            raise UserError(f"{self.path}, line {number}: begins with a space; a word must come first")
        return word, text

    def _numbers(self, texts: Sequence[str], lines: Sequence[int]) -> NDArray[np.float32]:
        """Return the numbers of some lines, fp32 (lines, width)."""
        together = " ".join(texts)
        # To NumPy, tabs separate numbers, too: those of a line could pass for another's.
        array = None if _OTHER_SPACE.search(together) else _parse(together)
        if array is None or array.size != len(texts) * self.width:
            array = np.concatenate([self._row(text, line) for text, line in zip(texts, lines, strict=True)])
        array = array.reshape(len(texts), self.width)
        finite = np.isfinite(array).all(axis=1)
        if not finite.all():
            wrong = int(finite.argmin())
            value = array[wrong][~np.isfinite(array[wrong])][0]
            raise UserError(f"{self.path}, line {lines[wrong]}: holds {value}, and numbers must be finite in fp32")
        return array

    def _row(self, text: str, line: int) -> NDArray[np.float32]:
        """Return the numbers of one line, fp32 (width,)."""
        wrong = next((field for field in text.split(" ") if not _is_number(field)), None)
        row = _parse(text) if wrong is None else None
        if row is None or row.size != self.width:
            raise UserError(f"{self.path}, line {line}: {shown(text if wrong is None else wrong)} is not a number")
        return row

    def result(self, limit: int | None) -> tuple[tuple[str, ...], NDArray[np.float32]]:
        """Return the words and the array of the file, which has been read to its end or to the limit."""
        if not self.rows:
            what = "has a header and no word vectors" if self.line else "is empty"
            raise UserError(f"{self.path}: {what}; name a file with one word and its numbers per line")
        expected = self.header if limit is None or self.header is None else min(limit, self.header)
        if expected is not None and expected != len(self.rows):
            raise UserError(
                f"{self.path}, line 1: announces {self.header:,} words, and the file has {len(self.rows):,}; is it"
                " truncated?"
            )
        return tuple(self.rows), np.concatenate(self.blocks)


def _parse(text: str) -> NDArray[np.float32] | None:
    """Return the numbers of a text, separated by spaces; None if it holds anything else."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of what it does not read
        try:
            return np.fromstring(text, dtype=np.float32, sep=" ")
        except (ValueError, DeprecationWarning, RuntimeWarning):
            return None


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field  # Python's own notation


def write_vectors(path: Path, words: Sequence[str], array: NDArray[np.float32], *, overwrite: bool = False) -> None:
    """Write words and their vectors, fp32 (words, width), in word2vec's text format, atomically.

    Numbers have nine digits, which determine every bit. Raises `UserError` for a file that exists, unless `overwrite`,
    for a word that is empty or contains white space, and for an array of another shape.
    """
    refuse_present(path, overwrite)
    if array.ndim != 2 or len(array) != len(words):
        raise UserError(f"an array of shape {array.shape} cannot hold vectors of {len(words):,} words")
    for word in words:
        if word.split() != [word]:
            raise UserError(f"{path}: the word {word!r} is empty or contains white space, which the format cannot hold")
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{len(words)} {array.shape[1]}\n")
        file.writelines(_lines(words, array))


def _lines(words: Sequence[str], array: NDArray[np.float32]) -> Iterator[str]:
    pattern = "%s" + " %.9g" * array.shape[1] + "\n"
    named = iter(words)
    for first in range(0, len(array), _ROWS):
        rows = array[first : first + _ROWS].tolist()
        for word, row in zip(islice(named, len(rows)), rows, strict=True):
            yield pattern % (word, *row)
