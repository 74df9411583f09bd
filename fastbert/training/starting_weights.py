"""Checks of the weights that a run starts from: finite, and unchanged on --resume."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from fastbert.errors import UserError
from fastbert.models.finite import first_non_finite


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
