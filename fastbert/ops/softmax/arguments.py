"""The arguments of `softmax`, as every backend receives them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fastbert.errors import UserError


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
        if scores.dim() != 4 or not scores.dtype.is_floating_point:
            raise UserError(
                "scores must be floating of shape (sequences, heads, queries, keys), not"
                f" {scores.dtype} {tuple(scores.shape)}"
            )
        if mask is not None:
            if mask.dtype != torch.bool:
                raise UserError(f"mask has dtype {mask.dtype}: it must be bool, True where a query attends to a key")
            sizes = scores.shape[4 - mask.dim() :] if mask.dim() <= 4 else ()
            if mask.dim() > 4 or any(size != 1 and size != other for size, other in zip(mask.shape, sizes)):
                raise UserError(
                    f"mask has shape {tuple(mask.shape)}, which does not broadcast to that of scores,"
                    f" {tuple(scores.shape)}"
                )
        if not 0.0 <= dropout_p < 1.0:
            raise UserError(f"dropout_p={dropout_p} must be at least 0 and below 1")
        if not 0 <= dropout_site < 2**31:
            raise UserError(f"dropout_site={dropout_site} must be at least 0 and below 2**31")
        if not math.isfinite(scale):
            raise UserError(f"scale={scale} must be a finite number")
        if key is not None and (key.dtype != torch.int64 or key.shape != scores.shape[:1]):
            raise UserError(
                f"dropout_key must be int64 of shape ({scores.shape[0]},), one per sequence, not"
                f" {key.dtype} {tuple(key.shape)}"
            )
        for name, tensor in (("mask", mask), ("dropout_key", key)):
            if tensor is not None and tensor.device != scores.device:
                raise UserError(f"{name} is on {tensor.device}, scores on {scores.device}: move them to one device")
