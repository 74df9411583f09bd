"""GELU and its derivative from one exponential, for kernels that apply them to values in registers.

With q = erfc(|x| / sqrt(2)) = poly(t) exp(-x^2 / 2), t = 1 / (1 + 0.3275911 |x| / sqrt(2)) (Abramowitz and Stegun 1964,
7.1.26: off by at most 1.5e-7), Phi(x) is q / 2 below zero and 1 - q / 2 above. The exponential is the density's too, so
the derivative Phi(x) + x phi(x) needs no second one. Below zero nothing is subtracted from 1: the error falls with the
exponential.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import LOG2_E

# sqrt(2 / pi) and its product with 0.044715, of the approximation by tanh.
TANH_LINEAR, TANH_CUBIC = tl.constexpr(0.7978845608028654), tl.constexpr(0.035677408136300125)


@triton.jit
def _reciprocal(x):
    """Return 1 / x of x >= 1 in two instructions; a division also handles very large and very small numbers."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def _normal(x):
    """Return Phi(x) and exp(-x^2 / 2)."""
    density = tl.exp2(x * x * (-0.5 * LOG2_E))
    t = _reciprocal(1.0 + 0.23164189 * tl.abs(x))
    # Half of the coefficients of 7.1.26.
    q = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t * density
    return tl.where(x < 0.0, q, 1.0 - q), density


@triton.jit
def _logistic(x):
    """Return s = (1 + tanh(u)) / 2 of the approximation's u, and s (1 - s), without cancellation."""
    power = tl.exp2(tl.abs((x * x * TANH_CUBIC + TANH_LINEAR) * x) * (-2.0 * LOG2_E))
    upper = _reciprocal(1.0 + power)
    lower = power * upper
    return tl.where(x < 0.0, lower, upper), lower * upper


@triton.jit
def gelu(x, TANH: tl.constexpr):
    """Return x Phi(x), or its approximation by tanh; fp32."""
    if TANH:
        s, _ = _logistic(x)
        return x * s
    else:
        phi, _ = _normal(x)
        return x * phi


@triton.jit
def gelu_and_derivative(x, TANH: tl.constexpr):
    """Return GELU of x, fp32, and its derivative."""
    if TANH:
        s, slope = _logistic(x)
        return x * s, s + x * slope * (x * x * (6.0 * TANH_CUBIC) + 2.0 * TANH_LINEAR)
    else:
        phi, density = _normal(x)
        return x * phi, phi + x * density * 0.3989422804014327
