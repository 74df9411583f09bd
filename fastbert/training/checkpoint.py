"""Checkpoints that are whole or absent: safetensors and JSON in a folder that gets its name last.

`checkpoints/step-00001000/` holds `model.safetensors`, `optimizer.safetensors`, `state.json` and `manifest.json` with
the SHA-256 of each. The folder is written under a temporary name, every file and the folder are flushed to the disk,
and then it is renamed: whatever is found under a final name was written to its end. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fastbert.errors import CheckpointError, UserError
from fastbert.models.pretrained import PreTrainedModel

logger = logging.getLogger("fastbert")
FORMAT_VERSION = 1
MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"
_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """What was read back: the folder it came from, tensors by name, and the state of the run."""

    folder: Path
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def fsync_folder(folder: Path) -> None:
    """Make the entries of a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, text: str) -> None:
    """Write a text file and wait until it is on the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, text: str) -> None:
    """Replace a text file as a whole: readers see the old text or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        write_synced(partial, text)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """The model's tensors on the CPU, tied ones once."""
    return {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
        if name not in model.tied_keys
    }


def optimizer_tensors(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as `<field>/<parameter name>` on the CPU."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{field}/{names[id(parameter)]}": torch.as_tensor(value).detach().cpu().contiguous()
        for parameter, fields in optimizer.state.items()
        for field, value in fields.items()
    }


def restore(checkpoint: Checkpoint, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Put a checkpoint's tensors back; every parameter must be there, in its shape and dtype."""
    own = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in model.tied_keys}
    if own.keys() != checkpoint.model.keys():
        difference = sorted(own.keys() ^ checkpoint.model.keys())
        raise CheckpointError(f"{checkpoint.folder}: belongs to another model ({difference[0]} is in only one of them)")
    for name, tensor in own.items():
        if tensor.shape != checkpoint.model[name].shape:
            shapes = f"{tuple(checkpoint.model[name].shape)}, the model has {tuple(tensor.shape)}"
            raise CheckpointError(f"{checkpoint.folder}: {name} has shape {shapes}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(checkpoint.model[name])
    for name, parameter in model.named_parameters():
        fields = {
            key.split("/", 1)[0]: value for key, value in checkpoint.optimizer.items() if key.split("/", 1)[1] == name
        }
        optimizer.state[parameter] = {
            field: value.clone() if field == "step" else value.to(parameter.device) for field, value in fields.items()
        }
        if parameter.is_cuda and "step" in optimizer.state[parameter]:
            optimizer.state[parameter]["step"] = optimizer.state[parameter]["step"].to(parameter.device)


def save(
    root: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, state: dict[str, Any], keep: int
) -> Path:
    """Write `root/step-<state["step"]>` and remove all but the `keep` newest checkpoints; returns its folder.

    Raises `CheckpointError` when the disk refuses (full, read-only): the checkpoints before it stay whole.
    """
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"step-{state['step']:08d}"
    for left in root.glob(".step-*.partial"):  # by a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    partial = root / f".{final.name}.partial"
    try:
        if final.exists():
            if _is_whole(final):
                return final
            shutil.rmtree(final)
        partial.mkdir()
        save_file(model_tensors(model), partial / MODEL, metadata={"format": "pt"})
        save_file(optimizer_tensors(model, optimizer), partial / OPTIMIZER)
        write_synced(partial / STATE, json.dumps({"format_version": FORMAT_VERSION, **state}, indent=2) + "\n")
        hashes = {name: sha256(partial / name) for name in (MODEL, OPTIMIZER, STATE)}
        for name in hashes:
            with (partial / name).open("rb") as file:
                os.fsync(file.fileno())
        write_synced(partial / MANIFEST, json.dumps({"format_version": FORMAT_VERSION, "sha256": hashes}, indent=2))
        fsync_folder(partial)
        partial.rename(final)
        fsync_folder(root)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"{final}: the checkpoint could not be written ({error}); those before it are whole."
            " Free some disk space and continue with --resume"
        ) from error
    for old in find(root)[:-keep]:
        shutil.rmtree(old)
    return final


def find(root: Path) -> list[Path]:
    """The checkpoint folders under `root`, oldest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if path.is_dir() and _FOLDER.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def check(folder: Path) -> None:
    """Compare every file of a checkpoint with its manifest; raises `CheckpointError`."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, hashes = manifest["format_version"], manifest["sha256"]
        if version > FORMAT_VERSION:
            raise UserError(f"{folder}: written by a newer fastbert (format {version}); update fastbert")
        for name in (MODEL, OPTIMIZER, STATE):
            if sha256(folder / name) != hashes[name]:
                raise CheckpointError(f"{folder / name}: damaged (its SHA-256 is not the manifest's)")
    except FileNotFoundError as error:
        raise CheckpointError(f"{error.filename}: missing from the checkpoint") from None
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: damaged ({error})") from None


def _is_whole(folder: Path) -> bool:
    try:
        check(folder)
    except CheckpointError:
        return False
    return True


def load(folder: Path) -> Checkpoint:
    """Read one checkpoint after `check`; raises `CheckpointError`."""
    check(folder)
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        return Checkpoint(folder, load_file(folder / MODEL), load_file(folder / OPTIMIZER), state)
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: damaged ({error})") from None


def load_last(root: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are reported and passed over. None when there is no folder.

    Raises `CheckpointError` when there are checkpoints and none is whole.
    """
    damaged: CheckpointError | None = None
    for folder in reversed(find(root)):
        try:
            return load(folder)
        except CheckpointError as error:
            logger.warning("%s; trying the one before it", error)
            damaged = error
    if damaged is not None:
        raise CheckpointError(f"{root}: no checkpoint is whole; start again with --overwrite") from damaged
    return None
