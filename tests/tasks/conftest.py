"""Released vocabularies for the tests of tasks."""

import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from fastbert import WordPieceTokenizer


@pytest.fixture(scope="session")
def released_tokenizer(data_dir: Path) -> Callable[[str], WordPieceTokenizer]:
    """The tokenizer of a released BERT by the model's name."""

    def read(name: str) -> WordPieceTokenizer:
        text = lzma.decompress((data_dir / "vocab" / f"{name}-vocab.txt.xz").read_bytes()).decode()
        return WordPieceTokenizer(text.removesuffix("\n").split("\n"))

    return read
