"""Liger-Kernel's operations on the benchmark's inputs, where the package is installed."""

from __future__ import annotations

import functools
import importlib.util
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fastbert.benchmarks.gpu.device import Device

LIGER = "liger"


def measurable(device: Device) -> bool:
    """Return whether Liger-Kernel can be measured: its kernels are not for Triton's interpreter."""
    return not device.dry_run and importlib.util.find_spec("liger_kernel") is not None


def _operation(name: str) -> Any:
    return getattr(import_module("liger_kernel.ops"), name)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise x (rows, width) bf16 with fp32 weights."""
    out: Tensor = _operation("LigerLayerNormFunction").apply(x, weight, bias, eps)
    return out


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Compute GELU, in the approximation by tanh, of x + bias: Liger-Kernel's product of GELU and a second operand of
    ones, which it reads too."""
    a = x + bias.to(x.dtype)
    out: Tensor = _operation("LigerGELUMulFunction").apply(a, _ones(a.shape, a.dtype, a.device))
    return out


@functools.cache
def _ones(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Its backward overwrites both operands with their gradients: results are compared before the first backward.
    return torch.ones(shape, dtype=dtype, device=device)


def linear_cross_entropy(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of x (rows, width), weight (vocabulary, width) and labels (rows,)."""
    module = import_module("liger_kernel.transformers.functional")
    loss: Tensor = module.liger_fused_linear_cross_entropy(x, weight, labels, bias)
    return loss
