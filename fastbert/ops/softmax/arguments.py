"""The arguments of `softmax`, as every backend receives them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import check_devices, check_dropout, check_scale, check_tensor


class SoftmaxArguments(NamedTuple):
    """Scores (sequences, heads, queries, keys) of any floating dtype, a bool mask that broadcasts to them, and dropout.

    `dropout_key`, int64 (sequences,), is None exactly where nothing is dropped.
    """

    scores: Tensor
    mask: Tensor | None
    scale: float
    dropout_p: float
    dropout_key: Tensor | None
    dropout_site: int

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        scores, mask, scale, dropout_p, key, dropout_site = self
        check_tensor("scores", scores, "floating", ("sequences", "heads", "queries", "keys"))
        if mask is not None:
            if mask.dtype != torch.bool:
                raise UserError(f"mask has dtype {mask.dtype}: it must be bool, True where a query attends to a key")
            sizes = scores.shape[4 - mask.dim() :] if mask.dim() <= 4 else ()
            if mask.dim() > 4 or any(size != 1 and size != other for size, other in zip(mask.shape, sizes)):
                raise UserError(
                    f"mask has shape {tuple(mask.shape)}, which does not broadcast to that of scores,"
                    f" {tuple(scores.shape)}"
                )
        check_dropout("dropout_", dropout_p, dropout_site)
        check_scale(scale)
        if key is not None:
            check_tensor("dropout_key", key, "int64", scores.shape[:1], ", one per sequence")
        check_devices({"mask": mask, "dropout_key": key}, "scores", scores.device)
