"""Where a batch has labels, and what of a loss over several batches is its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.models.packed import Packed
from fastbert.models.padded import PaddedBatch, is_readable
from fastbert.ops.cross_entropy.op import CrossEntropy
from fastbert.packing import IGNORE_INDEX, INTEGERS, PackedBatch

# What to do about labels that are out of range.
NUMBER_CLASSES = "correct the labels, or set num_labels in the config"
USE_VOCABULARY = "use the vocabulary the model was trained with"


def masked_places(
    packed: Packed, labels: Tensor | None, classes: int, cure: str
) -> tuple[Tensor | None, Tensor] | None:
    """The places that have a label, and their labels of so many classes: the batch's own, or those of a label per
    token. The places of a recorded batch are None, all of them, and its labels -100 where there is none."""
    batch = packed.batch
    if labels is None:
        if batch.masked_positions is None or batch.labels is None:
            return None
        places = batch.masked_positions
        if places.dtype != torch.int64 or places.dim() != 1:
            raise UserError(f"masked_positions must be int64 (places,), not {places.dtype} {tuple(places.shape)}")
        # As for the ids in `encode`: indexing would count a negative place from the end.
        if is_readable(batch.input_ids):
            check_places(batch)
        targets = integers("labels", batch.labels, "one per masked position")
        if targets.shape != places.shape:
            raise UserError(f"labels have shape {tuple(targets.shape)}, but masked_positions {tuple(places.shape)}")
        check_classes("labels", targets, classes, cure)
        return places, targets
    flat = packed.labels(integers("labels", labels, "one class per token"))
    assert flat is not None
    if flat.shape != batch.input_ids.shape:
        raise UserError(f"labels have shape {tuple(flat.shape)}, but the batch has {batch.num_tokens} tokens")
    check_classes("labels", flat, classes, cure, packed.place)
    if isinstance(batch, PaddedBatch):
        return None, flat
    places = (flat != IGNORE_INDEX).nonzero().flatten()
    return places, flat[places]


def read_places(x: Tensor, places: Tensor | None) -> Tensor:
    """The rows of x at the places, all of them where the places are None."""
    return x if places is None else x[places]


def integers(name: str, labels: Tensor, what: str) -> Tensor:
    """Labels as int64; UserError for other things than tensors of integers."""
    if not isinstance(labels, Tensor):
        raise UserError(f"{name} must be a tensor of int64, {what}, not {type(labels).__name__}")
    if labels.dtype not in INTEGERS:
        raise UserError(f"{name} must be int64, {what}, not {labels.dtype}")
    return labels.long()


def class_labels(name: str, labels: Tensor, rows: int, classes: int, cure: str) -> Tensor:
    """Labels of one class per sequence as int64 (rows,); UserError where they cannot be that."""
    flat = integers(name, labels, "one class per sequence").reshape(-1)
    if flat.shape[0] != rows:
        raise UserError(f"{name} have shape {tuple(labels.shape)}, but there are {rows} sequences to label")
    check_classes(name, flat, classes, cure)
    return flat


def check_classes(
    name: str, labels: Tensor, classes: int, cure: str, place: Callable[[int], str] = "[{}]".format
) -> None:
    """Refuse labels that are neither a class nor -100, as far as they can be read without waiting for a device."""
    if not labels.numel() or not is_readable(labels):
        return
    low, high = (int(value) for value in labels.aminmax())
    if low >= 0 and high < classes:
        return
    wrong = ((labels < 0) | (labels >= classes)) & (labels != IGNORE_INDEX)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        raise UserError(
            f"{name}{place(first)} is {int(labels[first])}: it must be from 0 to {classes - 1}, or -100 to be ignored;"
            f" {cure}"
        )


def check_shares(labels: Tensor) -> None:
    """Refuse labels of several classes at once that are not from 0 to 1, as far as they can be read."""
    if labels.numel() and is_readable(labels) and not bool(((labels >= 0) & (labels <= 1)).all()):
        wrong = labels[~((labels >= 0) & (labels <= 1))]
        raise UserError(
            f"labels hold {wrong[0].item():g}: multi_label_classification takes 1 for each class that a sequence has"
            " and 0 for the others"
        )


def check_places(batch: PackedBatch) -> None:
    """Refuse masked positions that are no tokens of the batch; reads them."""
    if batch.masked_positions is not None:
        check_range("masked_positions", batch.masked_positions, batch.num_tokens, "tokens of the batch")


def check_range(name: str, values: Tensor, size: int, of: str) -> None:
    """Refuse numbers that are not at least 0 and below `size`; reads them."""
    wrong = values[(values < 0) | (values >= size)]
    if len(wrong):
        raise UserError(f"{name} holds {int(wrong[0])}, outside the {size} {of}: correct the batch")


def mean_of(loss: CrossEntropy, items: Tensor | int | None = None) -> Tensor:
    """The mean over the labels, or over so many `items`, of which this batch holds a part."""
    return loss.loss_sum / (loss.count.clamp(min=1) if items is None else items)


def class_loss(logits: Tensor, labels: Tensor, items: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of logits (rows, classes) in fp32: the mean over the labels that are not -100, or over `items`."""
    if items is None:
        return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX)
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum") / items


def part_of(mean: Tensor, count: int, items: Tensor | int | None) -> Tensor:
    """A mean over `count` labels as its part of a mean over the `items` of several batches."""
    return mean if items is None else mean * count / items
