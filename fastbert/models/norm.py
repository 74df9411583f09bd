"""The norm module of all architectures."""

from __future__ import annotations

from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn

from fastbert.errors import UserError
from fastbert.models.fusibility import owns_weight_and_bias, runs_as_written
from fastbert.ops.encoder_layer.spec import NormSpec
from fastbert.ops.norm.op import layer_norm, rms_norm


class Norm(nn.Module):
    """A LayerNorm with or without a bias, or an RMSNorm, which has none.

    A LayerNorm with a bias is fused with the operation before it; its own forward runs only where fusion is impossible,
    for hooks, adapters or replaced modules, and in front of a sub-layer.
    """

    bias: nn.Parameter  # None where it is absent, which `is_plain_norm` excludes

    def __init__(
        self, width: int, eps: float, *, kind: Literal["layer_norm", "rms_norm"] = "layer_norm", bias: bool = True
    ) -> None:
        super().__init__()
        if kind not in ("layer_norm", "rms_norm"):
            raise UserError(f"kind={kind!r} must be 'layer_norm' or 'rms_norm'")
        self.weight: nn.Parameter = nn.Parameter(torch.ones(width))
        self.register_parameter("bias", nn.Parameter(torch.zeros(width)) if bias and kind == "layer_norm" else None)
        self.eps = eps
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (rows, width), with statistics in fp32; the same shape and dtype."""
        if self.kind == "rms_norm":
            return rms_norm(x, self.weight, self.eps)
        return layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return width, epsilon and what differs from a LayerNorm with a bias for `repr`."""
        other = f", {self.kind}" if self.kind != "layer_norm" else ", bias=False" if self.bias is None else ""
        return f"{self.weight.numel()}, eps={self.eps}{other}"


def norm_of(spec: NormSpec, width: int) -> Norm:
    """Return the module of a norm of rows of a width."""
    return Norm(width, spec.eps, kind=spec.kind, bias=spec.bias)


def is_plain_norm(module: nn.Module) -> TypeGuard[Norm]:
    """Return whether a LayerNorm is nothing but its weight, bias and epsilon."""
    return runs_as_written(module, Norm) and owns_weight_and_bias(module)
