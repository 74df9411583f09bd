"""Encoder layers for tests."""

import torch

from fastbert import BertConfig
from fastbert.models.bert.model import Layer


def random_layer(seed: int, config: BertConfig) -> Layer:
    """Weights and biases that all matter."""
    layer = Layer(config, 1)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        spread = 1 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.5
        parameter.data = torch.randn(parameter.shape, generator=generator) * spread
    return layer
