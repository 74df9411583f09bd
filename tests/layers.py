"""Encoder layers for tests."""

from dataclasses import replace

import torch

from fastbert import BertConfig, PackedBatch
from fastbert.models.bert.architecture import bert_spec
from fastbert.models.layers import layer_batch
from fastbert.models.modules import Layer


def random_layer(seed: int, config: BertConfig) -> Layer:
    """Weights and biases that all matter."""
    layer = Layer(bert_spec(config).layers[0], 1, drops=True)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        spread = 1 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.5
        parameter.data = torch.randn(parameter.shape, generator=generator) * spread
    return layer


def run_layer(
    layer: Layer,
    x: torch.Tensor,
    batch: PackedBatch,
    p: float = 0.0,
    *,
    rows: torch.Tensor | None = None,
    causal: bool = False,
    recompute: bool = False,
) -> torch.Tensor:
    """Compute the layer of x, of `rows` alone if given, with dropout of probability `p`."""
    view = replace(layer_batch(batch, p, p, p > 0), token_indices=rows)
    attention = replace(layer.spec.self_attention, causal=causal)
    return layer(x, view, replace(layer.spec, self_attention=attention), recompute)
