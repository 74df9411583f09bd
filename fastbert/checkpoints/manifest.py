"""Write and verify `fastbert_manifest.json`: the size and CRC-32C of every file of a finished model folder.

Weights, configuration, tokenizer and the small files beside them are listed when they are written and verified before
they are loaded, so that a flipped bit or a replaced file is an error instead of a different model. The manifest holds a
SHA-256 of itself and the tokenizer's fingerprint. Folders without a manifest load unverified; other libraries ignore
it. docs/checkpoints.md describes the format.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_atomic
from fastbert.io.checksums import combine_crc32c, json_sha256, range_crc32c
from fastbert.io.log import logger
from fastbert.io.untrusted_input import UntrustedFile, read_json_file, shown

NAME = "fastbert_manifest.json"
FORMAT, VERSION = "fastbert-manifest", 1
VARIABLE = "FASTBERT_VERIFY"
_MAX_SHOWN = 4
_RANGE_BYTES = 16 << 20  # what a thread reads of a large file at a time
_MAX_THREADS = 8

# The files of which a tokenizer has one at least: WordPiece, byte-level BPE (with merges.txt), Unigram, and any kind.
VOCABULARY_FILES = (
    "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model",
    "tokenizer.json",
)  # fmt: skip
MODEL, ADAPTER, TOKENIZER, EMBEDDER, TASK, ONNX = "model", "adapter", "tokenizer", "embedder", "task", "onnx"
_PATTERNS = {
    MODEL: r"(?:bert_)?config\.json|model\.safetensors(?:\.index\.json)?|model-\d+-of-\d+\.safetensors"
    r"|bert_model\.ckpt\.(?:index|data-\d+-of-\d+)",
    ADAPTER: r"adapter_config\.json|adapter_model\.safetensors",
    TOKENIZER: "|".join(map(re.escape, VOCABULARY_FILES))
    + r"|merges\.txt|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json",
    EMBEDDER: r"modules\.json|config_sentence_transformers\.json|sentence_[a-z-]+_config\.json"
    r"|[1-9]_\w+/(?:config\.json|model\.safetensors)",
    TASK: r"fastbert_task\.json",
    ONNX: r"model\.onnx(?:[_.]data)?",
}
KINDS = {kind: re.compile(pattern, re.ASCII) for kind, pattern in _PATTERNS.items()}


@dataclass(frozen=True)
class Entry:
    """The content of a file: its size in bytes and its CRC-32C in eight hexadecimal digits."""

    size: int
    crc32c: str


@dataclass(frozen=True)
class Manifest:
    """The files of a folder by relative path, and the fingerprint of its tokenizer if it has one."""

    files: Mapping[str, Entry]
    tokenizer: str | None = None


def is_enabled() -> bool:
    """Return whether folders are verified: always, unless FASTBERT_VERIFY=0 is set. Raises UserError."""
    value = os.environ.get(VARIABLE, "").strip()
    if value not in ("", "0", "1"):
        raise UserError(f"{VARIABLE}={value} must be 1 (verify model folders, the default) or 0")
    return value != "0"


def read_manifest(folder: Path) -> Manifest | None:
    """Return a folder's manifest, or None. Raises `CheckpointError` for a damaged or newer manifest."""
    path = folder / NAME
    if not os.path.lexists(path):
        return None
    try:
        body = read_json_file(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {_cure(folder)}") from None
    digest = body.pop("sha256", None) if isinstance(body, dict) else None
    if not isinstance(body, dict) or digest != json_sha256(body) or body.get("format") != FORMAT:
        raise CheckpointError(f"{path}: damaged: it does not match its own checksum; {_cure(folder)}")
    if body.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: a manifest of version {shown(body.get('version'))}, but {VERSION} is supported; use a newer"
            f" fastbert, or load the folder unverified with {VARIABLE}=0"
        )
    try:
        return Manifest(read_entries(body["files"]), _optional_text(body["tokenizer"]))
    except (KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path}: damaged: not a manifest that fastbert wrote; {_cure(folder)}") from None


def read_entries(values: Mapping[str, Mapping[str, Any]]) -> dict[str, Entry]:
    """Return entries by name from JSON. Raises KeyError, TypeError or AttributeError for anything else."""
    entries = {str(name): Entry(**entry) for name, entry in values.items()}
    for entry in entries.values():
        if not isinstance(entry.size, int) or isinstance(entry.size, bool) or not isinstance(entry.crc32c, str):
            raise TypeError
    return entries


def _optional_text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value


def update_manifest(folder: Path, names: Iterable[str], tokenizer: str | None = None) -> Path:
    """Enter files that were just written in a folder's manifest, and drop entries of files that no longer exist.

    `tokenizer` is the fingerprint of a tokenizer that was written. Returns the manifest's path. Raises
    `CheckpointError` if it cannot be written.
    """
    try:
        old = read_manifest(folder) or Manifest({})
    except CheckpointError as error:
        logger.warning("%s; the new manifest lists only the files written now", error)
        old = Manifest({})
    written = {name: describe(folder / name) for name in names}
    remaining = {name: entry for name, entry in old.files.items() if (folder / name).is_file()}
    _write(folder, Manifest({**remaining, **written}, tokenizer or old.tokenizer))
    return folder / NAME


def replace_manifest(folder: Path, fingerprint: Callable[[list[str]], str | None]) -> list[str]:
    """Write a manifest for a folder as it is, ignoring the old one; return the files that it lists.

    `fingerprint(names)` returns the fingerprint of the folder's tokenizer. Raises `UserError` for a folder without a
    file of a model or a tokenizer.
    """
    names = _present(folder, KINDS)
    if not names:
        raise UserError(f"{folder}: holds no file of a model or a tokenizer; name a model's folder")
    _write(folder, Manifest({name: describe(folder / name) for name in names}, fingerprint(names)))
    return names


def merge_manifest(source: Path, folder: Path, remaining: Iterable[str]) -> None:
    """Add entries of remaining files from `source`'s manifest to that of `folder`, whose own take precedence."""
    new = read_manifest(folder)
    try:
        old = read_manifest(source)
    except CheckpointError:  # the new manifest replaces it
        return
    if new is None or old is None:
        return
    stay = set(remaining)
    files = {name: entry for name, entry in old.files.items() if name.partition("/")[0] in stay}
    _write(
        folder,
        Manifest(
            {**files, **new.files}, new.tokenizer or (old.tokenizer if stay.intersection(VOCABULARY_FILES) else None)
        ),
    )


def verify_files(folder: Path, *kinds: str, verify: bool = True) -> None:
    """Compare a folder's files of some kinds with its manifest, if it has one; `verify=False` skips this.

    Raises `CheckpointError`, which names each file that changed, is missing or was added.
    """
    with verifying(folder, *kinds, verify=verify):
        pass


@contextmanager
def verifying(folder: Path, *kinds: str, verify: bool = True) -> Iterator[None]:
    """Verify a folder's files as `verify_files` does, on other threads, while the block reads them.

    The block must leave nothing behind before it ends: what was read from a folder that differs from its manifest is
    discarded with the error, which also replaces one that the block raises.
    """
    manifest = read_manifest(folder) if verify and is_enabled() else None
    if manifest is None:
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        differences = pool.submit(_differences, folder, manifest, kinds)
        try:
            yield
        except UserError:
            _refuse(folder, differences.result())
            raise
        _refuse(folder, differences.result())


def _differences(folder: Path, manifest: Manifest, kinds: Iterable[str]) -> list[str]:
    """Return what differs between a folder's files of some kinds and its manifest."""
    differences = []
    for kind in kinds:
        listed = {name: entry for name, entry in manifest.files.items() if KINDS[kind].fullmatch(name)}
        differences += [text for name, entry in listed.items() if (text := _difference(folder, name, entry))]
        if listed:
            added = [name for name in _present(folder, [kind]) if name not in listed and not _is_shard(name)]
            differences += [f"{name} was added" for name in added]
    return differences


def verify_file(path: Path, *, verify: bool = True) -> None:
    """Compare one file with the manifest beside it, if listed there. Raises `CheckpointError`."""
    manifest = read_manifest(path.parent) if verify and is_enabled() else None
    if manifest is not None and path.name in manifest.files:
        difference = _difference(path.parent, path.name, manifest.files[path.name])
        _refuse(path.parent, [difference] if difference else [])


def verify_path(path: Path, *kinds: str, verify: bool = True) -> None:
    """Verify a folder's files of some kinds as `verify_files` does, or one file as `verify_file`."""
    if path.is_dir():
        verify_files(path, *kinds, verify=verify)
    else:
        verify_file(path, verify=verify)


def check_fingerprint(folder: Path, fingerprint: str, source: str) -> None:
    """Raise `UserError` for a tokenizer, from `source`, other than the one that a model's folder was saved with."""
    manifest = read_manifest(folder) if is_enabled() else None
    if manifest is not None and manifest.tokenizer not in (None, fingerprint):
        raise UserError(
            f"{source}: this tokenizer is not the one that the model in {folder} was saved with (its fingerprint is"
            f" {fingerprint[:12]}, not {str(manifest.tokenizer)[:12]}); use the model's own, or set {VARIABLE}=0 to use"
            " this one anyway"
        )


def describe(path: Path) -> Entry:
    """Return the entry of a file, reading it once, on several threads if it is large."""
    with UntrustedFile(path) as file:
        starts = range(0, file.size, _RANGE_BYTES)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with ThreadPoolExecutor(min(_MAX_THREADS, cores)) as pool:  # begins no more threads than there are ranges
            sizes = [min(_RANGE_BYTES, file.size - start) for start in starts]
            values = list(pool.map(range_crc32c, repeat(file), starts, sizes))
        value = 0
        for crc, size in zip(values, sizes, strict=True):
            value = combine_crc32c(value, crc, size)
        return Entry(file.size, f"{value:08x}")


def _difference(folder: Path, name: str, entry: Entry) -> str | None:
    path = folder / name
    if not path.is_file():
        return f"{name} is missing"
    size = path.stat().st_size
    if size != entry.size:
        return f"{name} has {size:,} bytes, not {entry.size:,}"
    value = describe(path).crc32c
    return None if value == entry.crc32c else f"{name} has different content (CRC-32C {value}, not {entry.crc32c})"


def _refuse(folder: Path, differences: list[str]) -> None:
    if not differences:
        return
    more = f", and {len(differences) - _MAX_SHOWN} more" if len(differences) > _MAX_SHOWN else ""
    raise CheckpointError(
        f"{folder}: not as it was written ({NAME}): {', '.join(differences[:_MAX_SHOWN])}{more}; restore the files, or,"
        f" if they were changed on purpose, accept them with `fastbert convert {folder} --manifest`; {VARIABLE}=0 skips"
        " the check"
    )


def _cure(folder: Path) -> str:
    return f"restore it, or write it again with `fastbert convert {folder} --manifest`"


def _present(folder: Path, kinds: Iterable[str]) -> list[str]:
    """Return the files of some kinds in a folder and in its module sub-folders."""
    names = [path.relative_to(folder).as_posix() for path in (*folder.glob("*"), *folder.glob("[1-9]_*/*"))]
    patterns = [KINDS[kind] for kind in kinds]
    return sorted(name for name in names if any(p.fullmatch(name) for p in patterns) and (folder / name).is_file())


def _is_shard(name: str) -> bool:
    """Return whether a file is read only if another file names it."""
    return name.startswith(("model-", "bert_model.ckpt"))


def _write(folder: Path, manifest: Manifest) -> None:
    files = {name: asdict(entry) for name, entry in sorted(manifest.files.items())}
    body = {"format": FORMAT, "version": VERSION, "files": files, "tokenizer": manifest.tokenizer}
    try:
        write_atomic(folder / NAME, json.dumps({**body, "sha256": json_sha256(body)}, indent=1) + "\n")
    except OSError as error:
        raise CheckpointError(f"{folder / NAME}: could not be written ({error}); free some disk space") from error
