"""Sinks for the gradients of a layer's parameters: returned to autograd, or added to the buffer of the optimiser."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from fastbert.kernels.matmul import add_matmul
from fastbert.ops.encoder_layer.arguments import GradMask, LayerParameters
from fastbert.ops.encoder_layer.flat_layer import LayerGradients
from fastbert.ops.linear.mixed_matmul import matmul


class Sink(Protocol):
    """Receives the gradients of a layer by the names of `GradMask`, in the order in which backward computes them."""

    def matrix(self, name: str, a: Tensor, b: Tensor) -> None:
        """Receive the gradient a @ b of a matrix."""

    def partial_sums(self, name: str, partial: Tensor) -> None:
        """Receive partial sums (rows, ...) fp32 of the gradients of vectors."""

    def column_sums(self, name: str, x: Tensor) -> None:
        """Receive x (tokens, columns), whose sums over the tokens are the gradient of a vector."""


class Returned:
    """Gradients as tensors of their own, in the dtype of their parameters; those that are masked are empty."""

    def __init__(self, parameters: LayerParameters, mask: GradMask) -> None:
        self.mask: dict[str, Any] = mask._asdict()
        self.weights: dict[str, Any] = {**parameters._asdict(), "projections": parameters.query}
        self.gradients: dict[str, Tensor] = {}

    def matrix(self, name: str, a: Tensor, b: Tensor) -> None:
        """Compute the gradient."""
        weight = self.weights[name]
        self.gradients[name] = matmul(a, b, weight.dtype) if self.mask[name] else weight.new_empty(0)

    def partial_sums(self, name: str, partial: Tensor) -> None:
        """Add the partial sums."""
        from fastbert.kernels.columns import column_sums

        self.gradients[name] = column_sums(partial)

    def column_sums(self, name: str, x: Tensor) -> None:
        """Sum the columns in fp32."""
        empty = x.new_empty(0, dtype=torch.float32)
        self.gradients[name] = x.sum(0, dtype=torch.float32) if self.mask[name] else empty

    def results(self) -> list[Tensor]:
        """Return the gradients in the order of `GradMask`, without that of x."""
        return [self.gradients[name] for name in GradMask._fields[1:]]


class Accumulated:
    """Gradients added to those of a flat buffer: of matrices by the matmuls themselves, of vectors by one launch."""

    def __init__(self, gradients: LayerGradients) -> None:
        self.gradients = gradients
        self.partials: list[tuple[Tensor, Tensor]] = []

    def matrix(self, name: str, a: Tensor, b: Tensor) -> None:
        """Add a @ b."""
        add_matmul(getattr(self.gradients, name), a, b, fresh=False)

    def partial_sums(self, name: str, partial: Tensor) -> None:
        """Keep the partial sums for `add_vectors`."""
        self.partials.append((partial, getattr(self.gradients, name)))

    def column_sums(self, name: str, x: Tensor) -> None:
        """Keep partial sums of the columns for `add_vectors`."""
        from fastbert.kernels.optimizer.vectors import partial_row_sums

        self.partial_sums(name, partial_row_sums(x))

    def add_vectors(self) -> None:
        """Add all partial sums to their gradients."""
        from fastbert.kernels.optimizer.vectors import PartialSums, add_all

        add_all([PartialSums(partial, gradient) for partial, gradient in self.partials])
        self.partials.clear()
