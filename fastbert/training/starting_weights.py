"""The weights that a run starts from or learns from: they must be finite, and the same ones when it is resumed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from fastbert.errors import UserError
from fastbert.models.finite import first_non_finite


def require_finite(model: nn.Module, place: Path | str) -> None:
    """Raise `UserError`, which names the tensor, if a weight that was read from `place` is NaN or infinite."""
    name = first_non_finite(model)
    if name is not None:
        raise UserError(
            f"{place}: {name} holds NaN or infinity, so nothing can be learnt from this model; restore its files, or"
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
