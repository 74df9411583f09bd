"""RUN/tokenizer/: the tokenizer that a run keeps, with RUN/vocab.txt beside it where the tokenizer has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.errors import UserError
from fastbert.io.atomic_write import sync, sync_tree, write_atomic
from fastbert.tokenizers import WordPieceTokenizer

FOLDER, VOCABULARY = "tokenizer", "vocab.txt"


def keep_tokenizer(run: Path, fingerprint: str | None, make: Callable[[], WordPieceTokenizer]) -> WordPieceTokenizer:
    """Return the tokenizer of a run; where its folder has none, write the one that `make` returns.

    `fingerprint` is that of the run's tokenizer, None until one has been written. Raises `UserError` where a tokenizer
    has a different fingerprint, and where RUN/vocab.txt differs from RUN/tokenizer/vocab.txt.
    """
    folder, original, copy = run / FOLDER, run / FOLDER / VOCABULARY, run / VOCABULARY
    if fingerprint is not None and folder.exists():
        tokenizer = WordPieceTokenizer.from_pretrained(folder)
        _check(tokenizer, fingerprint, folder)
        if copy.exists() and original.exists() and copy.read_bytes() != original.read_bytes():
            raise UserError(f"{copy}: a different vocabulary than {original}; put the run's own back, or delete it")
    else:
        tokenizer = make()
        if fingerprint is not None:
            _check(tokenizer, fingerprint, folder)
        copy.unlink(missing_ok=True)
        with atomic_folder(folder) as partial:
            tokenizer.save_pretrained(partial)
            sync_tree(partial)
        sync(run)
    if original.exists() and not copy.exists():
        write_atomic(copy, original.read_text(encoding="utf-8"))
    return tokenizer


def _check(tokenizer: WordPieceTokenizer, fingerprint: str, folder: Path) -> None:
    if tokenizer.fingerprint != fingerprint:
        raise UserError(f"{folder}: holds a different vocabulary than the run began with; put the run's own back")
