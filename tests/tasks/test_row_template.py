"""Rows with the special tokens of any tokenizer: none, several, or different ones for pairs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from embedding import VOCABULARY, random_texts

from fastbert import WordPieceTokenizer
from fastbert.embeddings.pooling import counted_tokens, packed
from fastbert.embeddings.rows import Truncation, read_rows
from fastbert.errors import UserError
from fastbert.scoring.masked_copies import masked_copies
from fastbert.scoring.tokenized_texts import tokenize
from fastbert.tasks.examples import Dataset, QuestionExample, TaggedExample
from fastbert.tasks.row_template import PairTemplate, RowTemplate, both_ends, first_token
from fastbert.tasks.span.task import SpanAnswers, SpanSettings
from fastbert.tasks.tagging.task import Tagging, TaggingSettings

MASK = 4
TEMPLATES = [
    pytest.param([], [], id="none"),
    pytest.param([], [3], id="behind"),
    pytest.param([2, 1], [3], id="two-before"),
    pytest.param([2], [3, 3], id="two-behind"),
]
every_template = pytest.mark.parametrize(("before", "behind"), TEMPLATES)


class WrappedTokenizer(WordPieceTokenizer):
    """A tokenizer with other special tokens: `before A behind` and `before A behind behind B behind`, all of type 0."""

    def wrapped(self, before: list[int], behind: list[int]) -> WrappedTokenizer:
        self._before, self._behind = before, behind
        return self

    @property
    def prefix_ids(self) -> list[int]:
        return self._before

    @property
    def suffix_ids(self) -> list[int]:
        return self._behind

    def build_inputs_with_special_tokens(self, ids: Sequence[int], pair_ids: Sequence[int] | None = None) -> list[int]:
        row = [*self._before, *ids, *self._behind]
        return row if pair_ids is None else [*row, *self._behind, *pair_ids, *self._behind]

    def create_token_type_ids_from_sequences(
        self, ids: Sequence[int], pair_ids: Sequence[int] | None = None
    ) -> list[int]:
        return [0] * len(self.build_inputs_with_special_tokens(ids, pair_ids))

    def encode_ragged(self, texts: Sequence[str], add_special_tokens: bool = False, **options: Any) -> Any:
        if not add_special_tokens:
            return super().encode_ragged(texts, **options)
        limit = options.pop("max_length", None)
        ids, offsets = super().encode_ragged(texts, **options)
        most = None if limit is None else limit - len(self._before) - len(self._behind)
        rows = [[*self._before, *ids[a:b][:most].tolist(), *self._behind] for a, b in pairwise(offsets)]
        return np.array([x for row in rows for x in row], np.int32), np.cumsum([0, *map(len, rows)])


def tokenizer(before: list[int], behind: list[int]) -> WrappedTokenizer:
    return WrappedTokenizer(VOCABULARY, model_max_length=None).wrapped(before, behind)


def plain(text: str) -> list[int]:
    return tokenizer([], []).encode_ragged([text])[0].tolist()


@every_template
@pytest.mark.parametrize(("long", "left"), [("truncate", False), ("truncate", True), ("windows", False)])
def test_rows_of_texts(before: list[int], behind: list[int], long: str, left: bool, seed: int) -> None:
    texts = [text or "a" for text in random_texts(seed, 12, most=40)]
    room = 9
    truncation = Truncation(max_length=room + len(before) + len(behind), long=long, left=left)
    rows = read_rows(tokenizer(before, behind), texts, truncation)
    every = np.arange(len(rows.texts))
    actual = [row.input_ids.tolist() for row in (packed(rows, every[i : i + 1]) for i in every)]
    assert packed(rows, every).input_ids.tolist() == [token for row in actual for token in row]
    tokens, offsets = counted_tokens(rows, every)
    starts = np.cumsum([0, *map(len, actual)])
    counted = np.arange(starts[-1]) if tokens is None else tokens.numpy()
    for number, text in enumerate(texts):
        ids, parts = plain(text), [row for row, of in zip(actual, rows.texts) if of == number]
        assert all(row[: len(before)] == before for row in parts)
        assert all(row[len(row) - len(behind) :] == behind for row in parts)
        inner = [row[len(before) : len(row) - len(behind)] for row in parts]
        if long == "truncate":
            assert inner == [ids[-room:] if left else ids[:room]]
        whole = np.concatenate([ids_of(counted, offsets, starts, actual, row) for row in every[rows.texts == number]])
        kept = inner[0] if long == "truncate" else ids
        assert whole.tolist() == [*before, *kept, *behind], "each token counts once, special ones too"
    with pytest.raises(UserError, match=r"texts\[1\] has no tokens") if not before + behind else nullcontext():
        read_rows(tokenizer(before, behind), ["a", ""], truncation)


def ids_of(counted: np.ndarray, offsets: Any, starts: np.ndarray, actual: list[list[int]], row: int) -> np.ndarray:
    """The tokens of a row that count."""
    return np.array(actual[row])[counted[offsets[row] : offsets[row + 1]] - starts[row]]


@every_template
def test_rows_of_tasks(before: list[int], behind: list[int]) -> None:
    wrapped = tokenizer(before, behind)
    words, tags = ("ab", "c", "def", "g", "hi", "j"), ("O", "B-X", "O", "O", "B-X", "O")
    sentences = Dataset("t", (TaggedExample(id="1", location="t", words=words, tags=tags, document=0),))
    task = Tagging(TaggingSettings(max_length=4 + len(before) + len(behind)), ("B-X", "O"))
    rows = task.encode(sentences, wrapped, labelled=True)
    tagged = []
    for row in range(len(rows)):
        ids = rows.input_ids[rows.offsets[row] : rows.offsets[row + 1]].tolist()
        assert ids[: len(before)] == before
        assert ids[len(ids) - len(behind) :] == behind
        of_row = slice(rows.word_offsets[row], rows.word_offsets[row + 1])
        tagged += [(words[word], ids[at]) for word, at in zip(rows.words[of_row], rows.positions[of_row])]
    assert tagged == [(word, plain(word)[0]) for word in words]

    example = QuestionExample(id="q", location="t", question="a b", context="c d e f g h", answers=())
    settings = SpanSettings(max_length=6 + len(before) + 3 * len(behind), stride=1)
    answers = SpanAnswers(settings).encode(Dataset("t", (example,)), wrapped, labelled=False)
    contexts = []
    for row in range(len(answers)):
        span = slice(answers.offsets[row], answers.offsets[row + 1])
        inside = answers.begins[span] >= 0
        ids = answers.input_ids[span]
        contexts.append(ids[inside].tolist())
        assert ids.tolist() == [*before, *plain("a b"), *behind, *behind, *contexts[-1], *behind]
        assert not answers.token_type_ids[span].any()
    assert contexts == [plain("c d e f"), plain("f g h")]


@every_template
def test_rows_of_scores(before: list[int], behind: list[int]) -> None:
    wrapped = tokenizer(before, behind)
    copies = masked_copies(tokenize(wrapped, ["a b", "c"]), RowTemplate.of(wrapped))
    rows = copies.rows(np.arange(3), MASK)
    a, b = plain("a b")
    expected = [[*before, *row, *behind] for row in ([MASK, b], [a, MASK], [MASK])]
    assert rows.ids.tolist() == [token for row in expected for token in row]
    assert (rows.ids[rows.masked] == MASK).all()
    assert np.diff(rows.offsets).tolist() == copies.lengths.tolist() == list(map(len, expected))


def test_begin_and_end_of_texts() -> None:
    assert both_ends(tokenizer([2], [3])) == (2, 3)
    assert first_token(tokenizer([2, 1], [])) == 2
    with pytest.raises(UserError, match="0 tokens before and 1 behind a text"):
        both_ends(tokenizer([], [3]))
    with pytest.raises(UserError, match="no token for the beginning of texts"):
        first_token(tokenizer([], [3]))
    pairs = PairTemplate.of(tokenizer([2], [3]))
    assert [part.tolist() for part in (pairs.before, pairs.between, pairs.behind)] == [[2], [3, 3], [3]]
    bert = PairTemplate.of(WordPieceTokenizer(VOCABULARY))
    assert [np.atleast_1d(part).tolist() for part in bert.types] == [[0], [0], [0], [1], [1]]
