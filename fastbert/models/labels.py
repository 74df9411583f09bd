"""Where a batch has labels, and what of a loss over several batches is its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.models.bert import Packed
from fastbert.ops.linear_cross_entropy import CrossEntropy
from fastbert.packing import IGNORE_INDEX, PackedBatch


def masked_places(packed: Packed, labels: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """The places that have a label, and their labels: the batch's own, or those of a label per token."""
    batch = packed.batch
    if labels is None:
        if batch.masked_positions is None or batch.labels is None:
            return None
        places = batch.masked_positions
        if places.dtype != torch.int64 or places.dim() != 1:
            raise UserError(f"masked_positions must be int64 (places,), not {places.dtype} {tuple(places.shape)}")
        # As for the ids in `encode`: indexing would count a negative place from the end.
        if batch.device.type == "cpu" and not torch.compiler.is_compiling():
            check_places(batch)
        return batch.masked_positions, batch.labels
    flat = packed.labels(labels)
    assert flat is not None
    if flat.shape != batch.input_ids.shape:
        raise UserError(f"labels have shape {tuple(flat.shape)}, but the batch has {batch.num_tokens} tokens")
    places = (flat != IGNORE_INDEX).nonzero().flatten()
    return places, flat[places]


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
