"""A fingerprint of a model: equal for folders that give texts the same vectors."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastbert.checkpoints.formats.names import PICKLED, PICKLED_INDEX
from fastbert.checkpoints.manifest import EMBEDDER, KINDS, MODEL, TOKENIZER
from fastbert.checkpoints.source import find_source
from fastbert.embeddings.folder import read_settings
from fastbert.errors import UserError
from fastbert.io.checksums import sha256


def model_fingerprint(source: str | Path) -> str:
    """Return the SHA-256, in hexadecimal, of an embedder's files: weights, configuration, tokenizer and settings.

    Other files of the folder do not count, nor does its place. Raises UserError for a folder that is no embedder.
    """
    folder = find_source(source)
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; name that of a sentence-transformers or Hugging Face model")
    encoder, _, _ = read_settings(folder)
    # The encoder may be in a folder of its own; its files are counted under the same names.
    files = {path.relative_to(folder).as_posix(): path for path in (*folder.glob("*"), *folder.glob("[1-9]_*/*"))}
    files = {name: path for name, path in files.items() if KINDS[EMBEDDER].fullmatch(name)}
    files |= {path.name: path for path in encoder.glob("*") if _is_of_encoder(path.name)}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        if path.is_file():
            digest.update(f"{name} {sha256(path)}\n".encode())
    return digest.hexdigest()


def _is_of_encoder(name: str) -> bool:
    if name in (PICKLED, PICKLED_INDEX) or (name.startswith("pytorch_model-") and name.endswith(".bin")):
        return True
    return any(KINDS[kind].fullmatch(name) for kind in (MODEL, TOKENIZER))
