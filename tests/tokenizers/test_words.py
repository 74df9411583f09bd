"""Vocabularies of whole words, and the tokenizer that keeps the characters of words that the vocabulary lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.training import SPECIAL_TOKENS
from fastbert.tokenizers.word_table import WORD_TABLE, WordTable
from fastbert.tokenizers.words import WordTokenizer

TOKENS = [*SPECIAL_TOKENS, "a", "b", "word", "."]
OPTIONS = {"do_lower_case": False, "split_special_tokens": True}


def test_any_word_keeps_its_spelling() -> None:
    tokenizer = WordTokenizer(TOKENS, **OPTIONS)
    texts = ["a zorp word.", "", "Zorp [CLS]", "naïve\u200d日本 " + "x" * 120]
    ids, offsets = tokenizer.encode_ragged(texts, True)
    words = [tokenizer.convert_ids_to_tokens(row.tolist()) for row in np.split(ids, offsets[1:-1])]
    assert words[:3] == [
        ["[CLS]", "a", "zorp", "word", ".", "[SEP]"],
        ["[CLS]", "[SEP]"],
        ["[CLS]", "Zorp", "[", "CLS", "]", "[SEP]"],
    ]
    assert words[3][2:5] == ["日", "本", "x" * 120]
    ids, begins, ends, _, offsets = tokenizer.encode_aligned_ragged(texts)
    texts_of = np.repeat(np.arange(4), np.diff(offsets)).tolist()
    spelled = [texts[t][b:e] for t, b, e in zip(texts_of, begins.tolist(), ends.tolist(), strict=True)]
    assert tokenizer.convert_ids_to_tokens(ids.tolist())[:7] == spelled[:7]
    # The same word has the same number everywhere; others have others.
    again = WordTokenizer([*SPECIAL_TOKENS, "zorp"], **OPTIONS).encode_ragged(["zorp a"])[0]
    assert again.tolist() == [ids[1], ids[0]]
    assert tokenizer.convert_ids_to_tokens(int(again[0])) == "zorp"
    assert len(WORD_TABLE) > max(ids)


def test_texts_and_pairs_are_cut_as_by_the_tokenizer_of_the_vocabulary() -> None:
    plain, words = WordPieceTokenizer(TOKENS, **OPTIONS), WordTokenizer(TOKENS, **OPTIONS)
    sizes = [(n, m) for n in range(6) for m in range(6)]
    texts, pairs = ["a " * n for n, _ in sizes], ["b " * m for _, m in sizes]
    for length in (None, 3, 4, 5, 6, 7, 8, 20):
        for second in (None, pairs):
            expected, actual = plain.pack(texts, second, length), words.pack(texts, second, length)
            rows = [t.convert_ids_to_tokens(b.input_ids.tolist()) for t, b in ((plain, expected), (words, actual))]
            assert rows[0] == rows[1]
            for name in ("cu_seqlens", "token_type_ids", "max_seqlen"):
                assert np.array_equal(getattr(expected, name), getattr(actual, name)), (name, length)
        if length is not None:
            a, b = (
                plain.encode_ragged(texts, True, max_length=length),
                words.encode_ragged(texts, True, max_length=length),
            )
            assert np.array_equal(a[1], b[1])
            assert plain.convert_ids_to_tokens(a[0].tolist()) == words.convert_ids_to_tokens(b[0].tolist())


def test_folders_of_elmo_have_it_and_wrong_vocabularies_are_refused(tmp_path: Path) -> None:
    WordPieceTokenizer(TOKENS, **OPTIONS).save_pretrained(tmp_path)
    assert type(load_tokenizer(tmp_path)) is WordPieceTokenizer
    (tmp_path / "config.json").write_text('{"model_type": "elmo"}')
    assert type(load_tokenizer(tmp_path)) is WordTokenizer
    with pytest.raises(UserError, match=r"must begin with \[PAD\], \[UNK\]"):
        WordTokenizer(["a", *SPECIAL_TOKENS], **OPTIONS)
    with pytest.raises(UserError, match="holds '##b', a piece of a word"):
        WordTokenizer([*SPECIAL_TOKENS, "##b"], **OPTIONS)
    tokenizer = WordTokenizer(TOKENS, **OPTIONS)
    for call in (
        lambda: tokenizer.pack([]),
        lambda: tokenizer.pack(["a"], max_length=1),
        lambda: tokenizer.encode_ragged(["a"], True, max_length=1),
    ):
        with pytest.raises(ValueError, match=r"empty|no room"):
            call()
    with pytest.raises(TypeError):
        tokenizer.pack("a")


def test_a_full_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    table = WordTable()
    monkeypatch.setattr("fastbert.tokenizers.word_table.MOST_WORDS", 6)
    assert table.ids(["a", "[CLS]", "a"]).tolist() == [5, 2, 5]
    with pytest.raises(UserError, match="more than 6 different words"):
        table.ids(["a", "b"])
    assert table.words([5, 1]) == ["a", "[UNK]"]
