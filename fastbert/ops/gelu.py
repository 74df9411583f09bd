"""GELU with the bias of the product before it, and the transform of the masked-language-model head."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fastbert.ops import backend
from fastbert.ops.normalization import layer_norm


def bias_gelu(x: Tensor, bias: Tensor | None, approximate: str = "none") -> Tensor:
    """GELU(x + bias): x (tokens, width), bias (width,) or None; `approximate` is `"none"` (by erf) or `"tanh"`."""
    return backend.select("bias_gelu", x.device)(x, bias, approximate)


def gelu_layer_norm(
    x: Tensor, bias: Tensor | None, weight: Tensor, norm_bias: Tensor, eps: float = 1e-12, approximate: str = "none"
) -> Tensor:
    """LayerNorm(GELU(x + bias)), what the masked-language-model head does before its vocabulary product."""
    return backend.select("gelu_layer_norm", x.device)(x, bias, weight, norm_bias, eps, approximate)


def _bias_gelu(x: Tensor, bias: Tensor | None, approximate: str) -> Tensor:
    with backend.without_autocast(x.device):
        return F.gelu(x if bias is None else x + bias.to(x.dtype), approximate=approximate)


def _gelu_layer_norm(
    x: Tensor, bias: Tensor | None, weight: Tensor, norm_bias: Tensor, eps: float, approximate: str
) -> Tensor:
    return layer_norm(_bias_gelu(x, bias, approximate), weight, norm_bias, eps)


backend.register("bias_gelu", "eager", _bias_gelu)
backend.register("gelu_layer_norm", "eager", _gelu_layer_norm)
