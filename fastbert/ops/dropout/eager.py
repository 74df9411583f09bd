"""`dropout` composed of PyTorch operations."""

from __future__ import annotations

from torch import Tensor

from fastbert.ops.dropout.arguments import DropoutArguments
from fastbert.ops.dropout.masks import token_mask
from fastbert.ops.operation import EagerBackend


class Eager(EagerBackend[DropoutArguments]):
    """A product with a mask in the dtype of x."""

    def forward(self, arguments: DropoutArguments) -> Tensor:
        """Return x with elements dropped and the others scaled, shape and dtype of x."""
        x, dropout = arguments
        return x * token_mask(dropout, x.shape[-1], x.dtype)
