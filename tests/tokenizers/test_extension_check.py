"""Tokenizers that were extended are recognised, others are not."""

from pathlib import Path

import pytest

from fastbert.tokenizers import WordPieceTokenizer, train_tokenizer
from fastbert.tokenizers.extension import extend_vocabulary
from fastbert.tokenizers.extension_check import find_extension
from fastbert.tokenizers.loading import load_tokenizer

SENTENCES = ["the cat sat on the mat near a hat"] * 30 + ["an otter ate naïve oats"] * 5
WORDS = {"wordpiece": ["matcat", "hatter"], "bpe": [" matcat", " naïvehat"], "unigram": ["▁matcat", "▁hatter"]}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize("kind", WORDS)
def test_an_extension_is_found_after_saving_and_loading(kind: str, tmp_path: Path) -> None:
    if kind != "wordpiece":
        pytest.importorskip("tokenizers")
    base = train_tokenizer(SENTENCES, kind, {"wordpiece": 60, "bpe": 280, "unigram": 40}[kind])
    extension = extend_vocabulary(base, WORDS[kind])
    assert len(extension.entries) == 2
    base.save_pretrained(tmp_path / "base")
    extension.tokenizer.save_pretrained(tmp_path / "extended")
    base, extended = load_tokenizer(tmp_path / "base"), load_tokenizer(tmp_path / "extended")
    found = find_extension(base, extended)
    assert found is not None
    assert (found.entries, found.base_size) == (extension.entries, len(base))
    same = find_extension(extended, extended)
    assert same is not None
    assert same.entries == ()
    assert find_extension(extended, base) is None


def test_other_tokenizers_are_none() -> None:
    tokens = [*SPECIAL, "[unused1]", "[unused2]", "a", "cat", "##s"]
    base = WordPieceTokenizer(tokens)
    for others, options, found in (
        ([*tokens, "cats"], {}, ["cats"]),
        ([*SPECIAL, "cats", *tokens[6:]], {}, ["cats"]),
        ([*SPECIAL, "cats", "acat", *tokens[7:], "acats"], {}, ["cats", "acat", "acats"]),
        ([*tokens, "cats"], {"do_lower_case": False}, None),  # different ids of "Cat"
        ([*tokens[:-1], "##z"], {}, None),
        ([*tokens[:-2], "##s", "cat"], {}, None),
        (tokens[:-1], {}, None),
        ([*tokens, "##es"], {}, None),  # a piece, not a word
        ([*tokens, "cat s"], {}, None),
        ([*SPECIAL, "[unused1]", "cats", *tokens[7:]], {}, None),  # not as `extend_vocabulary` fills placeholders
    ):
        extension = find_extension(base, WordPieceTokenizer(others, **options))
        assert (None if extension is None else [entry.word for entry in extension.entries]) == found, others
