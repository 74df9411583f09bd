"""The patterns between matmuls: fastbert's operation, the same from torch's and Liger-Kernel's, and the bytes it moves.

Rows are bf16, weights and tables fp32. Eager torch composes the same operations as under autocast: LayerNorm in fp32,
torch's own dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert import ops
from fastbert.benchmarks.gpu import liger
from fastbert.ops.dropout.arguments import TokenDropout

EPS = 1e-12
ROWS = torch.bfloat16

Named = Mapping[str, Tensor]
Drop = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Tensors by name, the names of those that require gradients, the upstream gradient, and the dropout."""

    tensors: dict[str, Tensor]
    leaves: tuple[str, ...]
    gradient: Tensor
    dropout: TokenDropout | None

    def leaves_of(self, tensors: Named) -> list[Tensor]:
        """Return the leaves among tensors of these names."""
        return [tensors[name] for name in self.leaves]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """An operation: fastbert's, the same from torch's operations, and the minimum of bytes that it moves."""

    operation: str
    rows: tuple[str, ...]
    """Inputs of shape (tokens, width) in bf16."""
    columns: tuple[str, ...]
    """Inputs of shape (width,) in fp32."""
    fastbert: Callable[[Inputs], Tensor]
    eager: Callable[[Named, torch.dtype, Drop], Tensor]
    element_bytes: tuple[int, int]
    """Forward and backward."""
    drops: bool = False
    liger: Callable[[Named], Tensor] | None = None
    """Liger-Kernel's, where it has the operation, and in `liger_eager` what that computes, if it differs."""
    liger_eager: Callable[[Named, torch.dtype, Drop], Tensor] | None = None
    widths: tuple[int, ...] = (768, 1024)


def _eager_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute LayerNorm in the weights' dtype, which is fp32 under autocast, and cast back."""
    return F.layer_norm(x.to(weight.dtype), weight.shape, weight, bias, EPS).to(x.dtype)


def _layer_norm(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    return _eager_norm(t["x"], t["weight"], t["bias"])


def _dropout_add(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    return _eager_norm(drop(t["x"] + t["x_bias"].to(rows)) + t["residual"], t["weight"], t["bias"])


def _gelu_norm(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    return _eager_norm(_bias_gelu(t, rows, drop), t["weight"], t["bias"])


def _bias_gelu(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    return F.gelu(t["x"] + t["x_bias"].to(rows))


def _tanh_gelu(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    return F.gelu(t["x"] + t["x_bias"].to(rows), approximate="tanh")


def _embedding(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    summed = F.embedding(t["ids"], t["words"]) + F.embedding(t["places"], t["positions"])
    summed = summed + F.embedding(t["kinds"], t["segments"])
    return drop(_eager_norm(summed, t["weight"], t["bias"]).to(rows))


def _fastbert_embedding(inputs: Inputs) -> Tensor:
    t = inputs.tensors
    ids, tables = (t["ids"], t["places"], t["kinds"]), (t["words"], t["positions"], t["segments"])
    with torch.autocast(t["ids"].device.type, dtype=ROWS):
        return ops.embedding_layer_norm(ids, tables, t["weight"], t["bias"], EPS, inputs.dropout)


def _fastbert_dropout_add(inputs: Inputs) -> Tensor:
    t = inputs.tensors
    return ops.dropout_add_layer_norm(
        t["x"], t["residual"], t["weight"], t["bias"], EPS, inputs.dropout, x_bias=t["x_bias"]
    )


def _fastbert_norm(inputs: Inputs) -> Tensor:
    return ops.layer_norm(inputs.tensors["x"], inputs.tensors["weight"], inputs.tensors["bias"], EPS)


def _fastbert_gelu_norm(inputs: Inputs) -> Tensor:
    t = inputs.tensors
    return ops.gelu_layer_norm(t["x"], t["x_bias"], t["weight"], t["bias"], EPS, "none")


def _fastbert_bias_gelu(inputs: Inputs) -> Tensor:
    return ops.bias_gelu(inputs.tensors["x"], inputs.tensors["x_bias"], "none")


PATTERNS = {
    pattern.operation: pattern
    for pattern in (
        # Reads x, writes y; reads x and the gradient, writes one.
        Pattern(
            operation="layer_norm",
            rows=("x",),
            columns=("weight", "bias"),
            fastbert=_fastbert_norm,
            eager=_layer_norm,
            element_bytes=(4, 6),
            liger=lambda t: liger.layer_norm(t["x"], t["weight"], t["bias"], EPS),
        ),
        # Reads x and residual, writes y and the sum; reads gradient and sum, writes two gradients.
        Pattern(
            operation="dropout_add_layer_norm",
            rows=("x", "residual"),
            columns=("x_bias", "weight", "bias"),
            fastbert=_fastbert_dropout_add,
            eager=_dropout_add,
            element_bytes=(8, 8),
            drops=True,
        ),
        Pattern(
            operation="gelu_layer_norm",
            rows=("x",),
            columns=("x_bias", "weight", "bias"),
            fastbert=_fastbert_gelu_norm,
            eager=_gelu_norm,
            element_bytes=(4, 6),
        ),
        # Writes y, reads a gradient; the rows of the tables are added.
        Pattern(
            operation="embedding_layer_norm",
            rows=(),
            columns=("weight", "bias"),
            fastbert=_fastbert_embedding,
            eager=_embedding,
            element_bytes=(2, 2),
            drops=True,
        ),
        Pattern(
            operation="bias_gelu",
            rows=("x",),
            columns=("x_bias",),
            fastbert=_fastbert_bias_gelu,
            eager=_bias_gelu,
            element_bytes=(4, 6),
            liger=lambda t: liger.bias_gelu(t["x"], t["x_bias"]),
            liger_eager=_tanh_gelu,
            widths=(3072, 4096),
        ),
    )
}
