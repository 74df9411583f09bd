"""Attention probabilities of a text, for people to look at."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.models.attention_maps import Recorder, recording
from fastbert.models.encoder import EncoderModel
from fastbert.packing import PackedBatch


def attention_probabilities(model: EncoderModel, batch: PackedBatch, layer: int = -1) -> Tensor:
    """Return the attention probabilities of a layer for one sequence, fp32 (heads, tokens, tokens) on the CPU: row i is
    what token i attends to, and sums to 1.

    Layers are counted from 0, negative ones from the end. Computed without gradients. Raises
    `UserError` for a layer that the model does not have, and for several sequences.
    """
    layers = model.config.num_hidden_layers
    if not -layers <= layer < layers:
        raise UserError(f"layer={layer} is not one of the model's {layers}: give 0 to {layers - 1}")
    if len(batch) != 1:
        raise UserError(f"attention probabilities are of one sequence, and the batch has {len(batch)}: give one")
    record = Recorder(layer % layers)
    with torch.no_grad(), recording(record):
        model.encode(batch)
    if record.probabilities is None:
        raise UserError(f"{type(model).__name__} has no attention in layer {layer}")
    return record.probabilities.cpu()
