"""Checkpoints that are complete or absent: safetensors and JSON in a folder that is renamed last.

`checkpoints/step-00001000/` holds `model.safetensors`, `optimizer.safetensors`, `state.json` and `manifest.json` with
the SHA-256 of each. The folder is written under a temporary name, every file and the folder are flushed to the disk,
and then it is renamed: a folder with a final name is complete. It is renamed again before it is removed. Nothing is
pickled. The file `checkpoints/latest` names the newest checkpoint that is durable; readers here verify all of them and
do not depend on it. Models that training starts from are checked, and told apart, here too. `saving` writes
checkpoints.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fastbert.checkpoints.formats.safetensors import read_safetensors
from fastbert.errors import CheckpointError, UserError
from fastbert.io.log import logger
from fastbert.io.untrusted_input import UntrustedFile, read_json_object, read_regular, shown
from fastbert.models.base import PreTrainedModel
from fastbert.models.finite import first_non_finite, first_non_finite_tensor
from fastbert.ops.dropout.arguments import DRAWS_FORMAT

FORMAT_VERSION = 2
MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"
FILES = (MODEL, OPTIMIZER, STATE, MANIFEST)
LATEST = "latest"
_FOLDER = re.compile(r"step-(\d{8,18})")
_CHUNK = 1 << 20

State = TypeVar("State")
Kinds = type | tuple[type, ...]


class NewerFormat(CheckpointError):
    """A checkpoint was written by a newer fastbert; it is not damaged."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory: its folder, its tensors by name, and the state of the run."""

    folder: Path
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]


def restore(
    checkpoint: Checkpoint,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    shard: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Restore a model and an optimiser from a checkpoint. Raises `CheckpointError` for other names or shapes.

    `shard(whole, like)` returns what replaces `like`, a possibly sharded tensor of the model, on its device. It is
    called for each tensor except scalars of the optimiser, in the same order in all processes. One line in the log
    reports a checkpoint after which dropout draws other masks than the run has drawn so far.
    """
    if checkpoint.state.get("dropout_draws") != DRAWS_FORMAT and model.config.attention_probs_dropout_prob:
        logger.warning(
            "%s: was written by a fastbert that drew attention's dropout masks differently; the run continues, but not"
            " to the bits of an uninterrupted one",
            checkpoint.folder,
        )
    tensors = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if name not in model.tied_keys}
    if tensors.keys() != checkpoint.model.keys():
        difference = sorted(tensors.keys() ^ checkpoint.model.keys())
        raise CheckpointError(
            f"{checkpoint.folder}: belongs to a different model ({difference[0]} is in only one of them)"
        )
    for name, tensor in tensors.items():
        if tensor.shape != checkpoint.model[name].shape:
            shapes = f"{tuple(checkpoint.model[name].shape)}, the model has {tuple(tensor.shape)}"
            raise CheckpointError(f"{checkpoint.folder}: {name} has shape {shapes}")
    fields: dict[str, dict[str, Tensor]] = {}
    for key, value in checkpoint.optimizer.items():
        field, _, name = key.partition("/")
        fields.setdefault(name, {})[field] = value
    parameters = dict(model.named_parameters())
    for name in fields:
        if name not in parameters:
            raise CheckpointError(f"{checkpoint.folder}: belongs to a different model (optimiser: {shown(name)})")
        for field, value in fields[name].items():
            if value.dim() and value.shape != parameters[name].shape:
                shapes = f"{tuple(value.shape)}, the model has {tuple(parameters[name].shape)}"
                raise CheckpointError(f"{checkpoint.folder}: {shown(field)} of {name} has shape {shapes}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            whole = checkpoint.model[name]
            tensor.copy_(whole if shard is None else shard(whole, tensor))
    share_of = shard or (lambda whole, like: whole.to(like.device))
    for name, parameter in parameters.items():
        state = {
            field: value.clone() if field == "step" or not value.dim() else share_of(value, parameter)
            for field, value in fields.get(name, {}).items()
        }
        optimizer.state[parameter] = state
        if parameter.is_cuda and "step" in state:
            state["step"] = state["step"].to(parameter.device)


@torch.no_grad()
def load_weights(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Copy the tensors of a `Snapshot` into a model of the same shape."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in model.tied_keys:
            tensor.copy_(weights[name])


def restore_scaler(scaler: torch.amp.GradScaler, state: dict[str, Any], folder: Path) -> None:
    """Restore the loss scale of fp16 training from a checkpoint's state."""
    if scaler.is_enabled() and state:
        try:
            scaler.load_state_dict(state)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{folder / STATE}: damaged (scaler: {error})") from None


def find(root: Path) -> list[Path]:
    """Return the checkpoint folders under `root`, oldest first."""
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if path.is_dir() and _FOLDER.fullmatch(path.name)), key=step_of)


def has_checkpoints(run: Path, at_most: int | None = None) -> bool:
    """Return whether a run has a checkpoint, from which its weights come: of step `at_most` or earlier, if given."""
    return any(at_most is None or step_of(folder) <= at_most for folder in find(run / "checkpoints"))


def step_of(folder: Path) -> int:
    """Return the step of a checkpoint folder by its name."""
    return int(folder.name.removeprefix("step-"))


def check(folder: Path) -> None:
    """Compare every file of a checkpoint with its manifest, each on a thread; raises `CheckpointError`."""
    hashes = _manifest(folder)
    with ThreadPoolExecutor(len(hashes)) as pool:
        digests = pool.map(digest, [folder / name for name in hashes])
        differing = [name for name, found in zip(hashes, digests, strict=True) if found != hashes[name]]
    if differing:
        raise CheckpointError(f"{folder / differing[0]}: damaged (its SHA-256 is not the manifest's)")


def _manifest(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file from the manifest."""
    manifest = read_json_object(folder / MANIFEST)
    _check_version(folder, manifest.get("format_version"))
    hashes = manifest.get("sha256")
    names = (MODEL, OPTIMIZER, STATE)
    if not isinstance(hashes, dict) or any(not isinstance(hashes.get(name), str) for name in names):
        raise CheckpointError(f"{folder / MANIFEST}: damaged (it lacks the SHA-256 of a file)")
    return {name: hashes[name] for name in names}


def _check_version(folder: Path, version: Any) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CheckpointError(f"{folder}: damaged (format_version {shown(version)})")
    if version > FORMAT_VERSION:
        raise NewerFormat(f"{folder}: written by a newer fastbert (format {shown(version)}); update fastbert")
    if version < FORMAT_VERSION:
        raise CheckpointError(f"{folder}: has format {version}, from before the first release; start again")


def digest(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal; pipes and devices are refused."""
    digest, memory = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    with UntrustedFile(path) as file:
        for offset in range(0, file.size, _CHUNK):
            chunk = memory[: min(_CHUNK, file.size - offset)]
            file.read_into(chunk, offset)
            digest.update(chunk)
    return digest.hexdigest()


def load(folder: Path) -> Checkpoint:
    """Read one checkpoint after `check`; raises `CheckpointError`."""
    state = load_state(folder)
    try:
        for name in (MODEL, OPTIMIZER):
            read_safetensors(folder / name)
        model, optimizer = load_file(folder / MODEL), load_file(folder / OPTIMIZER)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: damaged ({error})") from None
    poisoned = first_non_finite_tensor([*model.items(), *optimizer.items()])
    if poisoned is not None:
        raise CheckpointError(f"{folder}: {poisoned} holds NaN or infinity")
    return Checkpoint(folder, model, optimizer, state)


def load_state(folder: Path) -> dict[str, Any]:
    """Read the state of one checkpoint after `check` of all its files; raises `CheckpointError`."""
    check(folder)
    state = read_json_object(folder / STATE)
    _check_version(folder, state.get("format_version"))
    if require(state, "step", int) != step_of(folder):
        raise CheckpointError(f"{folder}: holds step {state['step']:,}; it was renamed or replaced")
    return state


def require(state: Mapping[str, Any], name: str, kinds: Kinds) -> Any:
    """Return a value of a checkpoint's state; raises `CheckpointError` where it is missing or of another type.

    An int passes as a float; a bool passes as a bool only.
    """
    accepted = kinds if isinstance(kinds, tuple) else (kinds,)
    if float in accepted:
        accepted = (*accepted, int)
    value = state.get(name)
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        raise CheckpointError(f"{STATE}: damaged ({name} is {shown(value)})")
    return value


def load_last(root: Path) -> Checkpoint | None:
    """Load the newest whole checkpoint; damaged ones, and those of a newer fastbert, are reported and skipped. None if
    there is no checkpoint.

    Raises `CheckpointError` if there are checkpoints but none can be used.
    """
    return _newest(root, load)


def last_state(
    root: Path, read_state: Callable[[dict[str, Any]], object] = lambda state: None
) -> tuple[Path, dict[str, Any]] | None:
    """Return the folder and the state of the checkpoint that `load_last` would load, without reading its tensors;
    `read_state` must accept the state."""

    def read(folder: Path) -> tuple[Path, dict[str, Any]]:
        state = load_state(folder)
        _accept(folder, state, read_state)
        return folder, state

    return _newest(root, read)


def load_newest(
    root: Path, read_state: Callable[[dict[str, Any]], State], at_most: int | None = None
) -> tuple[Checkpoint, State] | None:
    """Load the newest whole checkpoint whose state `read_state` accepts, and what it returns; see `load_last`."""
    return _newest(root, lambda folder: _read(folder, read_state), at_most)


def _read(folder: Path, read_state: Callable[[dict[str, Any]], State]) -> tuple[Checkpoint, State]:
    checkpoint = load(folder)
    return checkpoint, _accept(folder, checkpoint.state, read_state)


def _accept(folder: Path, state: dict[str, Any], read_state: Callable[[dict[str, Any]], State]) -> State:
    try:
        return read_state(state)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def latest(root: Path) -> Path | None:
    """Return the checkpoint that `latest` names: the newest that was durable, whole or damaged since; None if there is
    none."""
    try:
        name = read_regular(root / LATEST, 64).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    return root / name if _FOLDER.fullmatch(name) and (root / name).is_dir() else None


def _newest(root: Path, read: Callable[[Path], State], at_most: int | None = None) -> State | None:
    """Return `read` of the newest checkpoint, of step `at_most` or before, that it does not refuse."""
    refused: list[CheckpointError] = []
    for folder in reversed(find(root)):
        if at_most is not None and step_of(folder) > at_most:
            continue
        try:
            return read(folder)
        except CheckpointError as error:
            logger.warning("%s; trying the one before it", error)
            refused.append(error)
    newer = next((error for error in refused if isinstance(error, NewerFormat)), None)
    if newer is not None:
        raise NewerFormat(f"{newer}, or start again with --overwrite: no other checkpoint is whole") from newer
    if refused:
        raise CheckpointError(f"{root}: no checkpoint is whole; start again with --overwrite") from refused[-1]
    return None


def require_finite(model: nn.Module, source: Path | str) -> None:
    """Raise `UserError`, which names the tensor, if a weight that was read from `source` is NaN or infinite."""
    name = first_non_finite(model)
    if name is not None:
        raise UserError(
            f"{source}: {name} holds NaN or infinity, so this model cannot be trained from; restore its files, or"
            " name another model"
        )


def weights_fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a model's tensors, by name, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        plain = tensor.detach().cpu().contiguous().flatten()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(plain.view(torch.uint8).numpy().data if plain.numel() else b"")
    return digest.hexdigest()
