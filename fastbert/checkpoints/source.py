"""Find a model: in a folder, in the folder of its run, at a TensorFlow prefix, or under an id in the Hub's cache.

Imports no torch, so that a missing model is reported at once.
"""

from __future__ import annotations

import os
from pathlib import Path

from fastbert.checkpoints import hub
from fastbert.checkpoints.formats.names import (
    PICKLED,
    PICKLED_INDEX,
    TENSORFLOW_INDEX,
    WEIGHTS,
    WEIGHTS_INDEX,
    index_file,
)
from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.io.untrusted_input import shown

MODEL, GENERATOR = "model", "generator"  # the models in the folder of a run


def find_source(source: str | Path, revision: str = hub.MAIN) -> Path:
    """Return the folder, that of the model if it is a run's, the TensorFlow prefix, or the Hub id's folder in the local
    cache. Raises `UserError`."""
    if not isinstance(source, str | os.PathLike):
        raise UserError(f"{shown(source)}: is not a path; name the folder of a model, or a model in the Hub's cache")
    text = os.fspath(source)
    path = Path(text)
    if not text:
        raise UserError("'': is empty; name the folder of a model (. is the current one)")
    if "\0" in text:
        raise UserError(f"{shown(text)}: a path must not contain NUL")
    if path.is_dir():
        return _model_of_run(path)
    if path.name and index_file(path).is_file():
        return path
    if path.name.endswith(TENSORFLOW_INDEX) and path.is_file():
        return path.with_name(path.name.removesuffix(TENSORFLOW_INDEX))
    if path.exists():
        raise UserError(f"{path}: is a file; name the folder that holds it, with its config.json")
    if isinstance(source, str) and hub.is_id(text):
        return hub.find_snapshot(text, revision)
    raise UserError(f"{path}: no such folder; name one with config.json and {WEIGHTS}, or a model in the Hub's cache")


def find_masked_lm(source: str | Path, revision: str = hub.MAIN) -> Path:
    """Return what `find_source` returns, but of a run of ELECTRA RUN/generator: RUN/model, its discriminator, predicts
    no tokens."""
    path = find_source(source, revision)
    generator = path.parent / GENERATOR
    if path.name == MODEL and (generator / "config.json").is_file():
        logger.info("%s: is a discriminator; %s, the generator of its run, predicts tokens", path, generator)
        return generator
    return path


def config_folder(source: Path) -> Path:
    """Return the folder with the configuration of a path from `find_source`."""
    return source if source.is_dir() else source.parent


def _model_of_run(folder: Path) -> Path:
    """Return RUN/model of the folder of a run, else the folder."""
    if any((folder / name).exists() for name in (WEIGHTS, WEIGHTS_INDEX, PICKLED, PICKLED_INDEX)):
        return folder
    model = folder / MODEL
    if (model / "config.json").is_file():
        return model
    if (folder / "metrics.jsonl").is_file() and (folder / "checkpoints").is_dir():
        raise UserError(f"{folder}: is a run that has not written its model yet; continue it with --resume")
    return folder
