"""Layers behind an encoder's vectors while they are trained; folders hold them as Dense modules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.embeddings.settings import ACTIVATIONS, Dense


class Projections(nn.Module):
    """activation(x weight^T + bias), one layer after the other."""

    def __init__(self, layers: Sequence[nn.Linear], activations: Sequence[str]) -> None:
        super().__init__()
        self.layers: nn.ModuleList = nn.ModuleList(layers)
        self.activations: tuple[str, ...] = tuple(activations)

    @classmethod
    def of(cls, dense: Sequence[Dense]) -> Self:
        """Return the layers of a folder."""
        layers = []
        for each in dense:
            layer = nn.Linear(each.weight.shape[1], each.weight.shape[0], bias=each.bias is not None)
            with torch.no_grad():
                layer.weight.copy_(each.weight)
                if each.bias is not None:
                    layer.bias.copy_(each.bias)
            layers.append(layer)
        return cls(layers, [each.activation for each in dense])

    @property
    def _linear(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers in the dtype of x: (rows, in) -> (rows, out)."""
        for layer, activation in zip(self._linear, self.activations, strict=True):
            bias = None if layer.bias is None else layer.bias.to(x.dtype)
            x = ACTIVATIONS[activation](F.linear(x, layer.weight.to(x.dtype), bias))
        return x

    def dense(self) -> tuple[Dense, ...]:
        """Return the layers as a folder holds them."""
        return tuple(
            Dense(
                layer.weight.detach().float().cpu().clone(),
                None if layer.bias is None else layer.bias.detach().float().cpu().clone(),
                activation,
            )
            for layer, activation in zip(self._linear, self.activations, strict=True)
        )


@contextlib.contextmanager
def without(model: Any, name: str) -> Iterator[Any]:
    """Take a module out of a model within the block, which gets it; None if the model has none."""
    module = model._modules.get(name)
    if module is None:
        yield None
        return
    del model._modules[name]
    try:
        yield module
    finally:
        model.add_module(name, module)
