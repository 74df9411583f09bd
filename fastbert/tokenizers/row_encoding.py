"""Map between the tokens, words and characters of a row of a tokenizer's result."""

import operator
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.tokenizers.call import Inputs

_ALIGNED = (_C.Column.BEGINS, _C.Column.ENDS, _C.Column.WORDS)


class CharSpan(NamedTuple):
    """Characters `start` to `end` (exclusive) of a text."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """Tokens `start` to `end` (exclusive) of a row."""

    start: int
    end: int


class TokenNames(NamedTuple):
    """The token of each id, and the ids whose text varies, which `core` looks up."""

    names: Sequence[str]
    varying: frozenset[int]
    core: _C.Tokenizer | None


class RowTable:
    """The rows of one call without padding, column by column.

    Positions in the text (the columns BEGINS, ENDS and WORDS) are computed on first access by encoding the texts again,
    unless the call requested them.
    """

    def __init__(self, rows: _C.Rows, realign: Callable[[], _C.Rows] | None, names: TokenNames, inputs: Inputs) -> None:
        self._rows: _C.Rows | None = rows
        self._realign = realign
        self._names, self._inputs = names, inputs
        self.offsets: NDArray[np.int64] = rows.offsets()
        self.samples: NDArray[np.int64] = rows.samples()
        self.longest_main: int = rows.longest_main
        self.n_sequences: int = 2 if rows.pairs else 1
        self._columns: dict[str, np.ndarray] = {}
        self._strings: dict[int, dict[int, str]] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def column(self, column: _C.Column) -> np.ndarray:
        """Return a column, int32 (tokens,): row i has `offsets[i]` to `offsets[i + 1]`."""
        if column.name not in self._columns:
            assert self._rows is not None
            if column in _ALIGNED and self._realign is not None:
                self._rows, self._realign = self._realign(), None
            self._columns[column.name] = self._rows.column(column)
        return self._columns[column.name]

    def tokens(self, index: int) -> list[str]:
        """Return the tokens of one row: their names, or their text if it varies."""
        ids = self.row(_C.Column.IDS, index)
        tokens = [self._names.names[token_id] for token_id in ids]
        if not self._names.varying.isdisjoint(ids):
            for token, string in self._strings_in_text(index).items():
                tokens[token] = string
        return tokens

    def _strings_in_text(self, index: int) -> dict[int, str]:
        """Return the added tokens of a row as spelled in its texts, by their index in the row."""
        if index in self._strings or self._names.core is None:
            return self._strings.get(index, {})
        sequences = self.row(_C.Column.SEQUENCES, index)
        strings_by_token = self._strings[index] = {}
        assert self._rows is not None
        starts = self._rows.starts(index)
        for sequence in {0, 1} & set(sequences):
            first, count = sequences.index(sequence), sequences.count(sequence)
            strings = self._read_again(self._names.core, int(self.samples[index]), sequence)
            for token, string in strings.items():
                if starts[sequence] <= token < starts[sequence] + count:
                    strings_by_token[first + token - starts[sequence]] = string
        return strings_by_token

    def _read_again(self, core: _C.Tokenizer, sample: int, sequence: int) -> dict[int, str]:
        """Return the added tokens of a sequence as spelled in the text, by their index among all of its tokens."""
        strings: dict[int, str] = {}
        count = 0
        for text in self._inputs.texts_of(sample, sequence):
            strings |= {count + token: string for token, string in core.added_strings(text)}
            count += len(core.encode_ragged([text], None, 1)[0])
        return strings

    def padded(self, column: _C.Column, width: int, left: bool, filler: int, threads: int) -> np.ndarray:
        """Return a padded column, int64 (rows, width)."""
        if self._rows is not None:
            if column in _ALIGNED:
                self.column(column)
            return self._rows.padded(column, width, left, filler, threads)
        result = np.full((len(self), width), filler, dtype=np.int64)
        for row, (begin, end) in enumerate(zip(self.offsets.tolist(), self.offsets[1:].tolist())):
            columns = slice(width - (end - begin), width) if left else slice(0, end - begin)
            result[row, columns] = self.column(column)[begin:end]
        return result

    def name_of(self, token_id: int) -> str:
        """Return the token of an id."""
        return self._names.names[token_id]

    def row(self, column: _C.Column, index: int) -> list[int]:
        """Return the values of one row."""
        values: list[int] = self.column(column)[self.offsets[index] : self.offsets[index + 1]].tolist()
        return values

    def __getstate__(self) -> dict[str, Any]:
        for column in _C.Column.__members__.values():
            self.column(column)
        if self._names.varying:
            for index in range(len(self)):
                self._strings_in_text(index)
        return {**self.__dict__, "_rows": None, "_realign": None, "_names": self._names._replace(core=None)}


class RowEncoding:
    """A row with its padding: lists with one item per token, and mappings between tokens, words and characters.

    Like `tokenizers.Encoding`. Words and characters are counted from the start of each sequence; `sequence` is 0 for
    the first and 1 for the second sequence of a pair. What does not exist is None.
    """

    def __init__(self, table: RowTable, index: int, width: int, left: bool, pad_token_id: int) -> None:
        self._table, self._index, self._width, self._left = table, index, width, left
        size = int(table.offsets[index + 1] - table.offsets[index])
        missing = max(width - size, 0)
        self._before, self._after = (missing, 0) if left else (0, missing)
        self._pad_token_id = pad_token_id

    def _values(self, column: _C.Column, filler: int) -> list[int]:
        return [filler] * self._before + self._table.row(column, self._index) + [filler] * self._after

    def _indices(self, column: _C.Column) -> list[int | None]:
        return [None if value < 0 else value for value in self._values(column, -1)]

    def __len__(self) -> int:
        return max(int(self._table.offsets[self._index + 1] - self._table.offsets[self._index]), self._width)

    @property
    def ids(self) -> list[int]:
        """Return the ids of the tokens."""
        return self._values(_C.Column.IDS, self._pad_token_id)

    @property
    def tokens(self) -> list[str]:
        """Return the tokens as strings."""
        padding = self._table.name_of(self._pad_token_id)
        return [padding] * self._before + self._table.tokens(self._index) + [padding] * self._after

    @property
    def type_ids(self) -> list[int]:
        """Return 1 for the second sequence of a pair, else 0."""
        return self._values(_C.Column.TYPES, 0)

    @property
    def attention_mask(self) -> list[int]:
        """Return 0 for padding, else 1."""
        return self._values(_C.Column.ONES, 0)

    @property
    def special_tokens_mask(self) -> list[int]:
        """Return 1 for padding and for the special tokens around sequences, else 0."""
        return self._values(_C.Column.SPECIAL_MASK, 1)

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Return the first character and the end (exclusive) of each token; (0, 0) for tokens without text."""
        return list(zip(self._values(_C.Column.BEGINS, 0), self._values(_C.Column.ENDS, 0)))

    @property
    def word_ids(self) -> list[int | None]:
        """Return the word of each token."""
        return self._indices(_C.Column.WORDS)

    words = word_ids

    @property
    def sequence_ids(self) -> list[int | None]:
        """Return the sequence of each token."""
        return self._indices(_C.Column.SEQUENCES)

    @property
    def n_sequences(self) -> int:
        """Return 1, or 2 for a pair."""
        return self._table.n_sequences

    @property
    def overflowing(self) -> list["RowEncoding"]:
        """Return the further rows of the same text, for its first row if overflow was requested."""
        samples = self._table.samples
        if self._index > 0 and samples[self._index - 1] == samples[self._index]:
            return []
        end = int(np.searchsorted(samples, samples[self._index], side="right"))
        return [
            RowEncoding(self._table, row, self._width, self._left, self._pad_token_id)
            for row in range(self._index + 1, end)
        ]

    def _range(self, sequence: int) -> range:
        """Return the tokens of a sequence; all tokens for a sequence that rows lack, as in the reference."""
        sequences = self._values(_C.Column.SEQUENCES, -1)
        if sequence >= self.n_sequences:
            return range(len(sequences))
        if sequence not in sequences:
            return range(0)
        return range(sequences.index(sequence), len(sequences) - sequences[::-1].index(sequence))

    def token_to_sequence(self, token: int) -> int | None:
        """Return the sequence of a token."""
        return _item(self.sequence_ids, token)

    def token_to_word(self, token: int) -> int | None:
        """Return the word of a token."""
        return _item(self.word_ids, token)

    def token_to_chars(self, token: int) -> CharSpan | None:
        """Return the characters of a token."""
        return None if self.token_to_sequence(token) is None else CharSpan(*self.offsets[token])

    def word_to_tokens(self, word: int, sequence: int = 0) -> TokenSpan | None:
        """Return the first token of a word and the end (exclusive)."""
        word, words = operator.index(word), self.word_ids
        # Words ascend within a sequence; with two, the search ends in the first sequence that passes the word.
        in_reach = takewhile(lambda token: (words[token] or 0) <= word, self._range(sequence))
        tokens = [token for token in in_reach if words[token] == word]
        return TokenSpan(tokens[0], tokens[-1] + 1) if tokens else None

    def word_to_chars(self, word: int, sequence: int = 0) -> CharSpan | None:
        """Return the characters of a word."""
        tokens = self.word_to_tokens(word, sequence)
        if tokens is None:
            return None
        return CharSpan(self.offsets[tokens.start][0], self.offsets[tokens.end - 1][1])

    def char_to_token(self, char: int, sequence: int = 0) -> int | None:
        """Return the token of a character."""
        offsets = self.offsets
        return next((t for t in self._range(sequence) if offsets[t][0] <= char < offsets[t][1]), None)

    def char_to_word(self, char: int, sequence: int = 0) -> int | None:
        """Return the word of a character."""
        token = self.char_to_token(char, sequence)
        return None if token is None else self.token_to_word(token)

    def __repr__(self) -> str:
        return f"RowEncoding(tokens={self.tokens})"


def _item(values: Sequence[Any], index: int) -> Any:
    return values[index] if 0 <= index < len(values) else None
