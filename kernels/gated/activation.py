"""The activations of gated linear units and their derivatives, for values in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import LOG2_E
from fastbert.kernels.gelu.activation import gelu, gelu_and_derivative


@triton.jit
def _sigmoid(x):
    """Return s = 1 / (1 + exp(-x)), and s (1 - s), without cancellation."""
    power = tl.exp2(tl.abs(x) * -LOG2_E)
    root = tl.rsqrt(1.0 + power)
    upper = root * root
    lower = power * upper
    return tl.where(x < 0.0, lower, upper), lower * upper


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Return the activation of x, fp32."""
    if ACTIVATION == "relu":
        return tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "silu":
        s, _ = _sigmoid(x)
        return x * s
    else:
        return gelu(x, ACTIVATION == "gelu_tanh")


@triton.jit
def activate_with_derivative(x, ACTIVATION: tl.constexpr):
    """Return the activation of x, fp32, and its derivative."""
    if ACTIVATION == "relu":
        return tl.where(x < 0.0, 0.0, x), tl.where(x > 0.0, 1.0, 0.0)
    elif ACTIVATION == "silu":
        s, slope = _sigmoid(x)
        return x * s, s + x * slope
    else:
        return gelu_and_derivative(x, ACTIVATION == "gelu_tanh")
