"""Validate labels, and compute losses from them; labels of -100 are ignored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.models.packed import Packed
from fastbert.models.padded import PaddedBatch, is_readable
from fastbert.ops.cross_entropy.op import CrossEntropy
from fastbert.packing import IGNORE_INDEX, INTEGERS, PackedBatch

# The cures that errors name for labels out of range.
NUMBER_CLASSES = "correct the labels, or set num_labels in the config"
USE_VOCABULARY = "use the vocabulary the model was trained with"
IS_NEXT = "use 0 where B follows A and 1 where it does not"


@dataclass(frozen=True, eq=False)
class TokenLabels:
    """The labels of a batch's tokens."""

    positions: Tensor | None
    """The tokens with a label, int64 (labels,); None: all tokens of a recorded batch."""
    labels: Tensor
    """int64 (labels,); in a recorded batch -100 at tokens without a label."""


def token_labels(packed: Packed, labels: Tensor | None, classes: int, cure: str) -> TokenLabels | None:
    """Return the labels of tokens, one of so many classes each: `labels` of all tokens, or else the batch's own.

    Raises UserError, which ends with `cure` where a label is out of range, for labels and positions that do not fit the
    batch.
    """
    batch = packed.batch
    if labels is None:
        if batch.masked_positions is None or batch.labels is None:
            return None
        positions = batch.masked_positions
        if positions.dtype != torch.int64 or positions.dim() != 1:
            raise UserError(f"masked_positions must be int64 (places,), not {positions.dtype} {tuple(positions.shape)}")
        # As for the ids in `encode`: indexing would count a negative position from the end.
        if is_readable(batch.input_ids):
            check_masked_positions(batch)
        targets = integers("labels", batch.labels, "one per masked position")
        if targets.shape != positions.shape:
            raise UserError(f"labels have shape {tuple(targets.shape)}, but masked_positions {tuple(positions.shape)}")
        check_classes("labels", targets, classes, cure)
        return TokenLabels(positions, targets)
    flat = packed.labels(integers("labels", labels, "one class per token"))
    if flat.shape != batch.input_ids.shape:
        raise UserError(f"labels have shape {tuple(flat.shape)}, but the batch has {batch.num_tokens} tokens")
    check_classes("labels", flat, classes, cure, packed.index_of)
    if isinstance(batch, PaddedBatch):
        return TokenLabels(None, flat)
    positions = (flat != IGNORE_INDEX).nonzero().flatten()
    return TokenLabels(positions, flat[positions])


def integers(name: str, labels: Tensor, what: str) -> Tensor:
    """Return labels as int64. Raises UserError for anything but a tensor of integers; `what` describes the labels."""
    if not isinstance(labels, Tensor):
        raise UserError(f"{name} must be a tensor of int64, {what}, not {type(labels).__name__}")
    if labels.dtype not in INTEGERS:
        raise UserError(f"{name} must be int64, {what}, not {labels.dtype}")
    return labels.long()


def class_labels(name: str, labels: Tensor, rows: int, classes: int, cure: str) -> Tensor:
    """Return labels of one class per sequence as int64 (rows,). Raises UserError for another shape, dtype or range."""
    flat = integers(name, labels, "one class per sequence").reshape(-1)
    if flat.shape[0] != rows:
        raise UserError(f"{name} have shape {tuple(labels.shape)}, but there are {rows} sequences to label")
    check_classes(name, flat, classes, cure)
    return flat


def check_classes(
    name: str, labels: Tensor, classes: int, cure: str, index_of: Callable[[int], str] = "[{}]".format
) -> None:
    """Raise UserError for labels that are neither a class nor -100, if reading them needs no host-device sync.

    `index_of` formats the index of a label as the user knows it.
    """
    if not labels.numel() or not is_readable(labels):
        return
    low, high = (int(value) for value in labels.aminmax())
    if low >= 0 and high < classes:
        return
    wrong = ((labels < 0) | (labels >= classes)) & (labels != IGNORE_INDEX)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        raise UserError(
            f"{name}{index_of(first)} is {int(labels[first])}: it must be from 0 to {classes - 1}, or -100 to be"
            f" ignored; {cure}"
        )


def check_multi_label(labels: Tensor) -> None:
    """Raise UserError for labels of several classes at once outside 0 to 1, if reading them needs no sync."""
    if labels.numel() and is_readable(labels) and not bool(((labels >= 0) & (labels <= 1)).all()):
        wrong = labels[~((labels >= 0) & (labels <= 1))]
        raise UserError(
            f"labels hold {wrong[0].item():g}: multi_label_classification takes 1 for each class that a sequence has"
            " and 0 for the others"
        )


def check_masked_positions(batch: PackedBatch) -> None:
    """Raise UserError for masked positions beyond the batch's tokens; a host-device sync on a GPU."""
    if batch.masked_positions is not None:
        check_range("masked_positions", batch.masked_positions, batch.num_tokens, "tokens of the batch")


def check_token_labels(batch: PackedBatch, vocab_size: int) -> None:
    """Raise UserError for labels outside the vocabulary, and as `check_masked_positions`; a host-device sync on a
    GPU."""
    check_labels("labels", batch.labels, vocab_size, "entries of the vocabulary")
    check_masked_positions(batch)


def check_labels(name: str, labels: Tensor | None, size: int, rows: str) -> None:
    """Raise UserError for labels, but -100, outside 0 to `size` - 1, as `check_range` does; nothing for None."""
    if labels is not None:
        check_range(name, labels[labels != IGNORE_INDEX], size, rows)


def check_range(name: str, values: Tensor, size: int, rows: str) -> None:
    """Raise UserError for values outside 0 to `size` - 1, the number of `rows`; a host-device sync on a GPU."""
    wrong = values[(values < 0) | (values >= size)]
    if len(wrong):
        raise UserError(f"{name} holds {int(wrong[0])}, outside the {size} {rows}: correct the batch")


def mean_loss(loss: CrossEntropy, items: Tensor | int | None = None) -> Tensor:
    """Return the mean over the labels, fp32 (), or their sum divided by the `items` of several batches."""
    return loss.loss_sum / (loss.count.clamp(min=1) if items is None else items)


def class_loss(logits: Tensor, labels: Tensor, items: Tensor | int | None = None) -> Tensor:
    """Return the cross-entropy of logits (rows, classes), fp32 (): the mean over the labels that are not -100, or their
    sum divided by the `items` of several batches."""
    if items is None:
        return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX)
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum") / items


def scale_to_items(mean: Tensor, count: int, items: Tensor | int | None) -> Tensor:
    """Return a mean over `count` labels as their sum divided by the `items` of several batches, None: as it is."""
    return mean if items is None else mean * count / items
