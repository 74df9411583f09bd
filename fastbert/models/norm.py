"""The LayerNorm module of all architectures."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.models.fusibility import owns_weight_and_bias, runs_as_written
from fastbert.ops.encoder_layer.spec import NormSpec
from fastbert.ops.norm.op import layer_norm


class Norm(nn.Module):
    """A LayerNorm that is fused with the operation before it; its own forward runs only where fusion is impossible, for
    hooks, adapters or replaced modules.

    The bias is None where `bias` is False, and of an RMSNorm, `kind` "rms_norm" (Zhang and Sennrich 2019).
    """

    def __init__(self, width: int, eps: float, *, kind: str = "layer_norm", bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias: Any = nn.Parameter(torch.zeros(width)) if bias and kind == "layer_norm" else None
        self.eps = eps
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (rows, width), with statistics in fp32; the same shape and dtype."""
        if self.bias is not None:
            return layer_norm(x, self.weight, self.bias, self.eps)
        wide = torch.promote_types(x.dtype, torch.float32)
        if self.kind == "rms_norm":
            return F.rms_norm(x.to(wide), self.weight.shape, self.weight.to(wide), self.eps).to(x.dtype)
        return F.layer_norm(x.to(wide), self.weight.shape, self.weight.to(wide), None, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        """Return the width and epsilon for `repr`."""
        return f"{self.weight.numel()}, eps={self.eps}"


def norm_of(spec: NormSpec, width: int) -> Norm:
    """Return the module of a norm of rows of a width."""
    return Norm(width, spec.eps, kind=spec.kind, bias=spec.bias)


def is_plain_norm(module: nn.Module) -> TypeGuard[Norm]:
    """Return whether a LayerNorm is nothing but its weight, bias and epsilon."""
    return runs_as_written(module, Norm) and owns_weight_and_bias(module)
