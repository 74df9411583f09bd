"""Copy a tokenizer beside a converted model, and write a folder's manifest with its tokenizer's fingerprint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from fastbert.checkpoints.manifest import VOCABULARY_FILES, check_fingerprint, replace_manifest
from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.models.vocabulary_extension import check_sizes
from fastbert.tokenizers.files import (
    ADDED_TOKENS_FILE,
    CONFIG_FILE,
    SPECIAL_TOKENS_FILE,
    VOCAB_FILE,
)
from fastbert.tokenizers.loading import load_tokenizer

Target = Literal["hf", "tensorflow"]
FILES = (*VOCABULARY_FILES, "merges.txt", CONFIG_FILE, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE)


def holds_tokenizer(folder: Path) -> bool:
    """Return whether a folder has the vocabulary of a tokenizer, of any kind."""
    return any((folder / name).is_file() for name in VOCABULARY_FILES)


def accept_folder(folder: Path) -> list[str]:
    """Write a manifest for a folder as it is, with its tokenizer's fingerprint; return the files that it lists.

    Raises `UserError` for a folder that holds no file of a model or a tokenizer.
    """

    def fingerprint(names: list[str]) -> str | None:
        if not set(names).intersection(VOCABULARY_FILES):
            return None
        try:
            return load_tokenizer(folder, verify=False).fingerprint
        except UserError as error:
            logger.warning("%s: the manifest has no tokenizer fingerprint (%s)", folder, error)
            return None

    return replace_manifest(folder, fingerprint)


def copy_tokenizer(path: Path | None, model_folder: Path, folder: Path, vocab_size: int, to: Target) -> None:
    """Copy a tokenizer to `folder`: from `path`, a folder or a file, or else from `model_folder` if it has one.

    A Hugging Face folder gets all files of the tokenizer, and a tokenizer_config.json if there was none, since it says
    whether text is lower-cased. A TensorFlow checkpoint gets only vocab.txt. Raises `UserError` for damaged files
    and for a `path` that does not fit the model's vocabulary; a misfit in `model_folder` is copied with a warning.
    """
    source = path or model_folder
    if path is None and not holds_tokenizer(model_folder):
        return
    tokenizer = load_tokenizer(source)
    if path is not None:
        check_fingerprint(model_folder, tokenizer.fingerprint, f"--tokenizer {path}")
    try:
        check_sizes(vocab_size, len(tokenizer), "the model")
    except UserError as error:
        if path is not None:
            raise
        logger.warning("%s: %s", model_folder, error)
    complete = source.is_dir() and (source / CONFIG_FILE).is_file()
    if to == "hf" and complete:
        for name in FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        return
    tokenizer.save_pretrained(folder)
    if to == "tensorflow":
        for name in FILES:
            if name != VOCAB_FILE:
                (folder / name).unlink(missing_ok=True)
        if not (folder / VOCAB_FILE).is_file():
            raise UserError(
                f"{source}: this tokenizer cannot be written as {VOCAB_FILE}; name a different one with --tokenizer"
            )
