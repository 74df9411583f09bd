"""The arguments of the cross-entropy of a vocabulary matmul, as every backend receives them."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import check_devices, check_same_dtype, check_tensor


class LossOptions(NamedTuple):
    """The options of the loss, as `linear_cross_entropy` takes them."""

    ignore_index: int
    label_smoothing: float
    z_loss: float


class CrossEntropyArguments(NamedTuple):
    """x (rows, width), weight (vocabulary, width), bias (vocabulary,), labels int64 (rows,)."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    options: LossOptions

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        x, weight, bias, labels, (_, label_smoothing, z_loss) = self
        if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
            raise UserError(
                "x must have shape (rows, width) and weight (vocabulary, width), not"
                f" {tuple(x.shape)} and {tuple(weight.shape)}"
            )
        if not x.dtype.is_floating_point:
            raise UserError(f"x must be floating, not {x.dtype}")
        if weight.shape[0] < 1:
            raise UserError("weight has no rows: a vocabulary has at least one label")
        if bias is not None and bias.shape != weight.shape[:1]:
            raise UserError(f"bias must have shape ({weight.shape[0]},), one per label, not {tuple(bias.shape)}")
        check_tensor("labels", labels, "int64", x.shape[:1], ", one per row")
        check_devices({"weight": weight, "bias": bias, "labels": labels}, "x", x.device)
        check_same_dtype({"weight": weight, "bias": bias}, x)
        if not 0.0 <= label_smoothing <= 1.0:
            raise UserError(f"label_smoothing={label_smoothing} must be between 0 and 1")
        if not 0.0 <= z_loss < math.inf:
            raise UserError(f"z_loss={z_loss} must be a finite number and not below 0")

    def check_labels(self) -> None:
        """Raise UserError for labels that are neither in the vocabulary nor `ignore_index`; reads them."""
        labels, vocabulary, ignore_index = self.labels, len(self.weight), self.options.ignore_index
        wrong = ((labels < 0) | (labels >= vocabulary)) & (labels != ignore_index)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise UserError(
                f"labels[{row}]={int(labels[row])} is not in the vocabulary of {vocabulary} labels:"
                f" rows without a label have ignore_index={ignore_index}"
            )
