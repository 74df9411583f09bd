"""Load whichever tokenizer a folder holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastbert.io.untrusted_input import read_json_file
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.wordpiece import WordPieceTokenizer
from fastbert.tokenizers.words import WordTokenizer


def load_tokenizer(path: str | os.PathLike[str], **options: Any) -> Tokenizer:
    """Return the tokenizer of a model's folder, of a tokenizer.json or of a vocab.txt, of the class that it describes.

    `options` are those of the class's `from_pretrained`, and override those of the files.

    Raises:
        UserError: the files are missing, damaged, or describe a tokenizer that fastbert does not have.
    """
    path = Path(path)
    return _kind_of(path).from_pretrained(path, **options)


def _kind_of(path: Path) -> type[WordPieceTokenizer]:
    config = path / "config.json"
    values = read_json_file(config) if config.is_file() else {}
    if isinstance(values, dict) and values.get("model_type") == "elmo":
        return WordTokenizer
    return WordPieceTokenizer
