"""The files in a run's folder: lock the folder, remove what an earlier run has written there, keep the tokenizer.

The tokenizer is in RUN/tokenizer/, with RUN/vocab.txt beside it where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.errors import UserError
from fastbert.io.atomic_write import sync, sync_tree, write_atomic
from fastbert.io.folder_exchange import remove
from fastbert.io.locking import locked_folder
from fastbert.tokenizers import WordPieceTokenizer

TOKENIZER, VOCABULARY = "tokenizer", "vocab.txt"


@contextmanager
def locked_run(out: Path) -> Iterator[None]:
    """Lock a run's folder. Raises `UserError` for a file, and while another process writes to the folder."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; give a folder")
    with locked_folder(out, "wait for it to end, or choose another --out"):
        yield


def remove_run(out: Path, names: Sequence[str]) -> None:
    """Remove the named files and folders of a run's folder, and nothing else.

    config.json, which marks the folder as a run's, is removed last, so that an interrupted removal can be repeated.
    """
    for name in sorted(names, key="config.json".__eq__):
        remove(out / name, ignore_errors=True)


def check_spared(out: Path, names: Sequence[str], inputs: Iterable[tuple[str, Path | None]]) -> None:
    """Raise `UserError` if removing the named files would remove an input of the new run, given by flag and path."""
    removed = [out.resolve() / name for name in names]
    for flag, path in inputs:
        if path is not None and any(path.resolve().is_relative_to(target) for target in removed):
            raise UserError(f"{flag} {path}: belongs to the run that --overwrite removes; copy it elsewhere first")


def keep_tokenizer(run: Path, fingerprint: str | None, make: Callable[[], WordPieceTokenizer]) -> WordPieceTokenizer:
    """Return the tokenizer of a run; where its folder has none, write the one that `make` returns.

    `fingerprint` is that of the run's tokenizer, None until one has been written. Raises `UserError` where a tokenizer
    has a different fingerprint, and where RUN/vocab.txt differs from RUN/tokenizer/vocab.txt.
    """
    folder, original, copy = run / TOKENIZER, run / TOKENIZER / VOCABULARY, run / VOCABULARY
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
