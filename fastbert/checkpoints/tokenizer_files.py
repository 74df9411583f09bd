"""Copy a tokenizer's files beside a converted model, and list a finished folder with its tokenizer's fingerprint."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Literal

from fastbert.checkpoints.manifest import check_fingerprint, replace_manifest
from fastbert.errors import UserError
from fastbert.models.vocabulary_extension import check_sizes
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.files import (
    ADDED_TOKENS_FILE,
    CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    VOCAB_FILE,
)

logger = logging.getLogger("fastbert")
Target = Literal["hf", "tensorflow"]
FILES = (VOCAB_FILE, TOKENIZER_FILE, CONFIG_FILE, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE)


def accept_folder(folder: Path) -> list[str]:
    """Write a manifest for a folder as it is, with its tokenizer's fingerprint; returns the files that it lists.

    Raises `UserError` for a folder that holds no file of a model or a tokenizer.
    """

    def fingerprint(names: list[str]) -> str | None:
        if not {VOCAB_FILE, TOKENIZER_FILE} & set(names):
            return None
        try:
            return WordPieceTokenizer.from_pretrained(folder, verify=False).fingerprint
        except UserError as error:
            logger.warning("%s: the manifest names no tokenizer (%s)", folder, error)
            return None

    return replace_manifest(folder, fingerprint)


def carry_tokenizer(given: Path | None, beside: Path, folder: Path, vocab_size: int, to: Target) -> None:
    """Copy a tokenizer after a look at it: from the folder or vocab.txt `given`, or from `beside` if there is one.

    A Hugging Face folder gets all its files, and a tokenizer_config.json where there was none: it says whether capitals
    matter. Beside a TensorFlow checkpoint lies vocab.txt alone. Raises `UserError` for a given vocabulary of another
    size than the model's (one that lay beside the weights is copied with a warning), and for damaged files.
    """
    source = given or beside
    if given is None and not any((beside / name).is_file() for name in (VOCAB_FILE, TOKENIZER_FILE)):
        return
    tokenizer = WordPieceTokenizer.from_pretrained(source)
    if given is not None:
        check_fingerprint(beside, tokenizer.fingerprint, f"--tokenizer {given}")
    try:
        check_sizes(vocab_size, len(tokenizer), "the model")
    except UserError as error:
        if given is not None:
            raise
        logger.warning("%s: %s", beside, error)
    complete = source.is_dir() and (source / CONFIG_FILE).is_file()
    if to == "hf" and complete:
        for name in FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        return
    tokenizer.save_pretrained(folder)
    if to == "tensorflow":
        for name in FILES[1:]:
            (folder / name).unlink(missing_ok=True)
        if not (folder / VOCAB_FILE).is_file():
            raise UserError(f"{source}: this tokenizer is no {VOCAB_FILE}; name another with --tokenizer")
