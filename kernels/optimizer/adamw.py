"""AdamW over flat buffers: gradient norm, clipping, update, a half-precision copy of the weights, cleared gradients.

Weights, gradients and both moments are fp32 buffers of one layout, in which every parameter starts at a multiple of
UNIT elements. Three launches take a step (Loshchilov and Hutter 2019, algorithm 2; the arithmetic is that of
`torch.optim.AdamW`):

    sum_squares   partial sums of squares of the gradients, in a fixed order
    begin_step    their norm; per parameter the factors that its elements share
    adamw         m += (1 - b1) (g - m);  v += (1 - b2) (g^2 - v)
                  w = (1 - lr decay) w - lr / c1 m / (sqrt(v) / sqrt(c2) + eps),  c = 1 - b^t

Nothing is read by the host: the learning rates, the step counts and the norm lie on the device, and a norm that is not
finite makes the step change nothing but the gradients, which it clears. Parameters that are not in use are left alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.common import narrow
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables

# Every parameter starts at a multiple of this many elements: 64 bytes in half precision.
UNIT = 32
# Programs of `sum_squares` per multiprocessor.
PROGRAMS = 8
# Rows of `StepTensors.factors`.
FACTORS = 10
# Columns of `StepTensors.settings`.
SETTINGS = 6


class StepTensors(NamedTuple):
    """What a step reads and writes on the device, for P parameters in G groups.

    `weights`, `gradients`, `exp_avg` and `exp_avg_sq` are fp32 (elements,), `shadow` is bf16 or fp16 (elements,) or
    None. `steps` fp32 (P,) are the step counts, `used` int32 (P,) is 0 for parameters that are left alone, `groups`
    int32 (P,) holds each parameter's group. `settings` fp64 (G, 6) are log2 b1, log2 b2, 1 - b1, 1 - b2, eps and weight
    decay, `rates` fp32 (G,) the learning rates. `blocks` int32 (B, 4) are of each block the first unit, the parameter,
    the units, and 1 if it is the parameter's first block. `norm` fp32 (1,) and `factors` fp32 (10, P) are written by
    `begin`. Rates per parameter need `spans` int32 (P, 2), the first of the blocks of each parameter and their number,
    and `sizes` int64 (P,), the elements.
    """

    weights: Tensor
    gradients: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    shadow: Tensor | None
    steps: Tensor
    used: Tensor
    groups: Tensor
    settings: Tensor
    rates: Tensor
    blocks: Tensor
    norm: Tensor
    factors: Tensor
    spans: Tensor | None = None
    sizes: Tensor | None = None


@triton.jit(do_not_specialize=["units"])
def sum_squares(x_ptr, partial_ptr, units, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    """partial (programs,): sums of squares of x (units x UNIT,) fp32. Grid: any number of programs."""
    offset = tl.arange(0, BLOCK)
    elements = units.to(tl.int64) * UNIT
    total = tl.zeros((BLOCK,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(elements, BLOCK), tl.num_programs(0)):
        first = tl.cast(block, tl.int64) * BLOCK
        x = tl.load(x_ptr + first + offset, mask=offset < elements - first, other=0.0)
        total += x * x
    tl.store(partial_ptr + tl.program_id(0), tl.sum(total, 0))


@triton.jit(do_not_specialize=["programs", "parameters"])
def begin_step(
    partial_ptr, used_ptr, group_ptr, settings_ptr, rate_ptr, step_ptr, norm_ptr, factor_ptr,
    programs, parameters, max_norm,
    SETTINGS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: one program. factors (10, parameters): active, clip, 1 - lr decay, lr / c1, sqrt(c2), 1 - b1, 1 - b2, eps,
    1 / c1, decay.

    Powers of b1 and b2 are fp64: 1 - b2^t of the first steps loses all but three digits in fp32.
    """
    offset = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, programs, BLOCK):
        total += tl.load(partial_ptr + first + offset, mask=first + offset < programs, other=0.0).to(tl.float64)
    norm = tl.sqrt_rn(tl.sum(total, 0).to(tl.float32))
    finite = norm < float("inf")  # nor is a NaN
    tl.store(norm_ptr, norm)
    clip = tl.minimum(tl.div_rn(tl.cast(max_norm, tl.float32), norm + 1e-6), 1.0)
    for first in range(0, parameters, BLOCK):
        index = first + offset
        exists = index < parameters
        active = tl.where(finite, tl.load(used_ptr + index, mask=exists, other=0), 0) != 0
        group = tl.load(group_ptr + index, mask=exists, other=0)
        rate = tl.load(rate_ptr + group, mask=exists, other=0.0).to(tl.float64)
        settings = settings_ptr + group * SETTINGS
        times = (tl.load(step_ptr + index, mask=exists, other=0.0) + 1.0).to(tl.float64)
        first_correction = 1.0 - tl.exp2(times * tl.load(settings, mask=exists, other=-1.0))
        second_correction = 1.0 - tl.exp2(times * tl.load(settings + 1, mask=exists, other=-1.0))
        decay = tl.load(settings + 5, mask=exists, other=0.0)
        factors = factor_ptr + index
        tl.store(factors, active.to(tl.float32), mask=exists)
        tl.store(factors + parameters, tl.zeros((BLOCK,), tl.float32) + clip, mask=exists)
        tl.store(factors + 2 * parameters, (1.0 - rate * decay).to(tl.float32), mask=exists)
        tl.store(factors + 3 * parameters, (rate / first_correction).to(tl.float32), mask=exists)
        tl.store(factors + 4 * parameters, tl.sqrt_rn(second_correction.to(tl.float32)), mask=exists)
        for i in tl.static_range(3):
            value = tl.load(settings + 2 + i, mask=exists, other=0.0).to(tl.float32)
            tl.store(factors + (5 + i) * parameters, value, mask=exists)
        tl.store(factors + 8 * parameters, (1.0 / first_correction).to(tl.float32), mask=exists)
        tl.store(factors + 9 * parameters, decay.to(tl.float32), mask=exists)


@triton.jit(do_not_specialize=["parameters"])
def adamw(
    weight_ptr, grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, shadow_ptr, step_ptr, block_ptr, factor_ptr, parameters,
    UNIT: tl.constexpr, CLEAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: the blocks of StepTensors.blocks, at most BLOCK elements each."""
    block_ptr += tl.program_id(0) * 4
    start = tl.load(block_ptr).to(tl.int64) * UNIT
    parameter = tl.load(block_ptr + 1)
    factors = factor_ptr + parameter
    offset = tl.arange(0, BLOCK)
    inside = offset < tl.load(block_ptr + 2) * UNIT
    grad_ptr += start
    if tl.load(factors) != 0.0:
        if tl.load(block_ptr + 3) != 0:
            tl.store(step_ptr + parameter, tl.load(step_ptr + parameter) + 1.0)
        grad = tl.load(grad_ptr + offset, mask=inside, other=0.0) * tl.load(factors + parameters)
        weight = tl.load(weight_ptr + start + offset, mask=inside, other=0.0)
        m = tl.load(exp_avg_ptr + start + offset, mask=inside, other=0.0)
        v = tl.load(exp_avg_sq_ptr + start + offset, mask=inside, other=0.0)
        m += (grad - m) * tl.load(factors + 5 * parameters)
        v += (grad * grad - v) * tl.load(factors + 6 * parameters)
        root = tl.div_rn(tl.sqrt_rn(v), tl.load(factors + 4 * parameters) + tl.zeros((BLOCK,), tl.float32))
        weight = weight * tl.load(factors + 2 * parameters) - tl.div_rn(
            m * tl.load(factors + 3 * parameters), root + tl.load(factors + 7 * parameters)
        )
        tl.store(exp_avg_ptr + start + offset, m, mask=inside)
        tl.store(exp_avg_sq_ptr + start + offset, v, mask=inside)
        tl.store(weight_ptr + start + offset, weight, mask=inside)
        if shadow_ptr is not None:
            tl.store(shadow_ptr + start + offset, narrow(weight, shadow_ptr.dtype.element_ty), mask=inside)
    if CLEAR:
        tl.store(grad_ptr + offset, tl.zeros((BLOCK,), tl.float32), mask=inside)


def config_of(kernel: Any, device: torch.device) -> tables.Config:
    """Return the configuration of one of the optimiser's kernels on a device."""
    return tables.lookup(kernel.__name__, "any", architecture(device))


def block_elements(device: torch.device) -> int:
    """Return the most elements of a block of `adamw` on a device."""
    return int(config_of(adamw, device).constants["BLOCK"])


def begin(tensors: StepTensors, max_norm: float) -> None:
    """Write the norm of all gradients, and the factors of an update that clips it to `max_norm` (inf: not at all)."""
    gradients, parameters = tensors.gradients, len(tensors.steps)
    config = config_of(sum_squares, gradients.device)
    blocks = triton.cdiv(len(gradients), config.constants["BLOCK"])
    programs = max(1, min(blocks, PROGRAMS * multiprocessors(gradients.device)))
    partial = torch.empty(programs, dtype=torch.float32, device=gradients.device)
    launch(sum_squares, (programs,), gradients, partial, len(gradients) // UNIT, UNIT=UNIT, config=config)
    launch(
        begin_step,
        (1,),
        *(partial, tensors.used, tensors.groups, tensors.settings, tensors.rates),
        *(tensors.steps, tensors.norm, tensors.factors, programs, parameters, float(max_norm)),
        SETTINGS=SETTINGS,
        config=config_of(begin_step, gradients.device),
    )


def update(tensors: StepTensors, *, clear: bool) -> None:
    """Update weights, moments, shadow and step counts by the factors of `begin`; `clear` zeroes the gradients."""
    device = tensors.weights.device
    launch(
        adamw,
        (len(tensors.blocks),),
        *(tensors.weights, tensors.gradients, tensors.exp_avg, tensors.exp_avg_sq, tensors.shadow),
        *(tensors.steps, tensors.blocks, tensors.factors, len(tensors.steps)),
        UNIT=UNIT,
        CLEAR=clear,
        config=config_of(adamw, device),
    )
