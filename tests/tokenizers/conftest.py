"""The reference tokenizer, vocabularies and hostile text for the tokenizer's tests."""

import lzma
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import wordpiece_cases

from fastbert.tokenizers import WordPieceTokenizer


@pytest.fixture(scope="session")
def small_vocab() -> list[str]:
    """Words and pieces over several scripts, so that whole words, pieces and unknown words all occur."""
    return wordpiece_cases.small_vocabulary()


@pytest.fixture(scope="session")
def make_reference() -> Callable[..., Any]:
    """BertTokenizerFast over a list of tokens."""
    transformers = pytest.importorskip("transformers")

    def make(vocab: Sequence[str], **options: Any) -> Any:
        return transformers.BertTokenizerFast(vocab={token: index for index, token in enumerate(vocab)}, **options)

    return make


@pytest.fixture(scope="session")
def released_vocab(data_dir) -> Callable[[str], list[str]]:
    """The tokens of a released BERT vocabulary by the model's name."""

    def read(name: str) -> list[str]:
        text = lzma.decompress((data_dir / "vocab" / f"{name}-vocab.txt.xz").read_bytes()).decode()
        return text.removesuffix("\n").split("\n")

    return read


@pytest.fixture(scope="session")
def assert_same_ids() -> Callable[[Any, Any, Sequence[str]], None]:
    """Fails with the first text whose ids differ between our tokenizer and the reference."""

    def check(ours: Any, reference: Any, texts: Sequence[str]) -> None:
        ids, offsets = ours.encode_ragged(texts)
        expected = [row.ids for row in reference.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        flat = np.fromiter((index for row in expected for index in row), np.int32)
        bounds = np.cumsum([0, *map(len, expected)])
        if np.array_equal(ids, flat) and np.array_equal(offsets, bounds):
            return
        for text, row, begin, end in zip(texts, expected, offsets, offsets[1:]):
            assert ids[begin:end].tolist() == row, f"ids differ for {text!a}"

    return check


@pytest.fixture(scope="session")
def hostile_text() -> Callable[[random.Random], str]:
    """A generator of text that mixes everything in which tokenizers are known to differ."""
    return wordpiece_cases.hostile_text


@pytest.fixture(scope="session")
def draw_text() -> Callable[[random.Random], str]:
    """Text of every kind: words, several scripts, special tokens, hostile, blank, words about the length limit."""
    return wordpiece_cases.draw_text


@pytest.fixture(scope="session")
def make_ours() -> Callable[..., Any]:
    """Our tokenizer over a list of tokens."""
    return WordPieceTokenizer
