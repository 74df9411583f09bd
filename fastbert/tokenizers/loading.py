"""Load whichever tokenizer a folder holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastbert.checkpoints.manifest import TOKENIZER, verify_path
from fastbert.io.collector import collector_paused
from fastbert.io.untrusted_input import read_json_file
from fastbert.tokenizers.byte_level import ByteLevelBPETokenizer
from fastbert.tokenizers.pipeline_files import read_pipeline
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.unigram import UnigramTokenizer
from fastbert.tokenizers.wordpiece import WordPieceTokenizer
from fastbert.tokenizers.words import WordTokenizer


def load_tokenizer(path: str | os.PathLike[str], **options: Any) -> Tokenizer:
    """Return the tokenizer of a model's folder, of a tokenizer.json or of a vocab.txt, of the class that it describes.

    `options` are those of the class's `from_pretrained`, and override those of the files.

    Raises:
        UserError: the files are missing, damaged, or describe a tokenizer that fastbert does not have.

    Example:
        >>> import fastbert
        >>> tokenizer = fastbert.load_tokenizer("runs/mine/model")
        >>> type(tokenizer).__name__, tokenizer("a short one.")["input_ids"]
        ('WordPieceTokenizer', [2, 5, 6, 7, 8, 3])
    """
    path = Path(path)
    if path.is_dir() and _model_type(path) == "elmo":
        return WordTokenizer.from_pretrained(path, **options)
    verify_path(path, TOKENIZER, verify=options.pop("verify", True))
    with collector_paused():
        content = read_pipeline(path)
        if content is None:
            return WordPieceTokenizer.from_pretrained(path, verify=False, **options)
        kind = ByteLevelBPETokenizer if content.kind == "BPE" else UnigramTokenizer
        return kind.from_content(content, path, **options)


def _model_type(folder: Path) -> object:
    config = folder / "config.json"
    values = read_json_file(config) if config.is_file() else {}
    return values.get("model_type") if isinstance(values, dict) else None
