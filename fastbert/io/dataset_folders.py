"""Folders that `save_to_disk` of the library `datasets` writes: a data set, or one for each split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.untrusted_input import is_plain_name, read_json_object

STATE = "state.json"
SPLITS = "dataset_dict.json"


def saved_files(folder: Path) -> tuple[Path, ...]:
    """Return the Arrow files of a data set, in order. Raises UserError for a folder that is not one, or incomplete."""
    path = folder / STATE
    if not path.is_file():
        raise UserError(f"{path}: no such file, so the data set is incomplete; save it again")
    files = tuple(folder / name for name in names_in_state(read_json_object(path), str(folder)))
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise UserError(f"{missing}: no such file, so the data set is incomplete; download or save it again")
    return files


def saved_splits(folder: Path) -> dict[str, tuple[Path, ...]]:
    """Return the files of each split of a folder with splits. Raises UserError if it is damaged or incomplete."""
    path = folder / SPLITS
    return {name: saved_files(folder / name) for name in names_of_splits(read_json_object(path), str(folder))}


def names_in_state(state: dict[str, Any], folder: str) -> list[str]:
    """Return the file names that the content of a state.json lists; `folder` is the one that holds it."""
    if state.get("_indices_data_files"):
        raise UserError(f"{folder}: selects rows by an index; call flatten_indices() and save it again")
    listed = state.get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed or ()]
    if (
        not isinstance(listed, list)
        or not names
        or not all(isinstance(name, str) and is_plain_name(name) for name in names)
    ):
        raise UserError(f"{folder}/{STATE}: holds no list of files under '_data_files'; save the data set again")
    return [str(name) for name in names]


def names_of_splits(content: dict[str, Any], folder: str) -> list[str]:
    """Return the splits that the content of a dataset_dict.json lists; `folder` is the one that holds it."""
    names = content.get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) and is_plain_name(name) for name in names):
        raise UserError(f"{folder}/{SPLITS}: holds no list of names under 'splits'; save it again")
    return names
