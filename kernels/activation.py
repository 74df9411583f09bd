"""GELU and its derivative from one exponential, for kernels that apply them to what they have in registers.

With q = erfc(|x| / sqrt(2)) = poly(t) exp(-x^2 / 2), t = 1 / (1 + 0.3275911 |x| / sqrt(2)) (Abramowitz and Stegun 1964,
7.1.26: off by at most 1.5e-7), Phi(x) is q / 2 below zero and 1 - q / 2 above. The exponential is the density's too, so
the derivative Phi(x) + x phi(x) costs no second one. Below zero nothing is subtracted from 1: the error falls with the
exponential.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import LOG2_E

# sqrt(2 / pi) and its product with 0.044715, of the approximation by tanh.
TANH_LINEAR, TANH_CUBIC = tl.constexpr(0.7978845608028654), tl.constexpr(0.035677408136300125)


@triton.jit
def _normal(x):
    """Phi(x), and exp(-x^2 / 2)."""
    density = tl.exp2(x * x * (-0.5 * LOG2_E))
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))
    # Half of the coefficients of 7.1.26.
    q = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t * density
    return tl.where(x < 0.0, q, 1.0 - q), density


@triton.jit
def _sigmoid_of_tanh(x):
    """(1 + tanh(u)) / 2 of the approximation's u, as a logistic function of 2 u."""
    return 1.0 / (1.0 + tl.exp2((x * x * TANH_CUBIC + TANH_LINEAR) * x * (-2.0 * LOG2_E)))


@triton.jit
def gelu(x, TANH: tl.constexpr):
    """x Phi(x), or its approximation by tanh; fp32."""
    if TANH:
        return x * _sigmoid_of_tanh(x)
    else:
        phi, _ = _normal(x)
        return x * phi


@triton.jit
def gelu_and_derivative(x, TANH: tl.constexpr):
    """GELU of x, fp32, and its derivative there."""
    if TANH:
        s = _sigmoid_of_tanh(x)
        return x * s, s + x * s * (1.0 - s) * (x * x * (6.0 * TANH_CUBIC) + 2.0 * TANH_LINEAR)
    else:
        phi, density = _normal(x)
        return x * phi, phi + x * density * 0.3989422804014327
