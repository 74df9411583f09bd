"""StableAdamW and LAMB over the flat buffers of AdamW: a learning rate per parameter, between its `begin` and `update`.

With the moments m and v after this step, and root = sqrt(v) / sqrt(c2) (see adamw.py; c = 1 - b^t):

    tensor_sums   per block: StableAdamW (Wortsman et al. 2023, algorithm 2) the sum of (g / max(root, eps))^2; LAMB
                  (You et al. 2020, algorithm 2) those of w^2 and of (m / c1 / (root + eps) + decay w)^2
    scale_rates   per parameter, in a fixed order over its blocks: their sums, and the factors of decay and step. The
                  rate is divided by max(1, root of the mean), or multiplied by the ratio of the norms, which is 1 where
                  one is zero and for parameters without weight decay
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fastbert.kernels.launch import launch
from fastbert.kernels.optimizer.adamw import SETTINGS, UNIT, StepTensors, block_elements, config_of


@triton.jit(do_not_specialize=["parameters"])
def tensor_sums(
    weight_ptr, grad_ptr, exp_avg_ptr, exp_avg_sq_ptr, block_ptr, factor_ptr, sum_ptr, parameters,
    UNIT: tl.constexpr, LAMB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sums (blocks, 2) fp32; zeros for parameters that are left alone. Grid: the blocks of StepTensors.blocks."""
    program = tl.program_id(0)
    block_ptr += program * 4
    start = tl.load(block_ptr).to(tl.int64) * UNIT
    factors = factor_ptr + tl.load(block_ptr + 1)
    offset = tl.arange(0, BLOCK)
    inside = offset < tl.load(block_ptr + 2) * UNIT
    decay = tl.load(factors + 9 * parameters)
    first = 0.0
    second = 0.0
    needed = tl.load(factors) != 0.0
    if LAMB:
        needed = needed & (decay != 0.0)
    if needed:
        grad = tl.load(grad_ptr + start + offset, mask=inside, other=0.0) * tl.load(factors + parameters)
        v = tl.load(exp_avg_sq_ptr + start + offset, mask=inside, other=0.0)
        v += (grad * grad - v) * tl.load(factors + 6 * parameters)
        root = tl.div_rn(tl.sqrt_rn(v), tl.load(factors + 4 * parameters) + tl.zeros((BLOCK,), tl.float32))
        eps = tl.load(factors + 7 * parameters)
        if LAMB:
            weight = tl.load(weight_ptr + start + offset, mask=inside, other=0.0)
            m = tl.load(exp_avg_ptr + start + offset, mask=inside, other=0.0)
            m += (grad - m) * tl.load(factors + 5 * parameters)
            update = tl.div_rn(m * tl.load(factors + 8 * parameters), root + eps) + decay * weight
            first = tl.sum(weight * weight, 0)
            # Beyond the end of a block it is 0 / 0 where eps is 0.
            second = tl.sum(tl.where(inside, update * update, 0.0), 0)
        else:
            share = tl.div_rn(grad, tl.maximum(root, tl.maximum(eps, 1e-37)))
            first = tl.sum(share * share, 0)
    tl.store(sum_ptr + program * 2, first)
    tl.store(sum_ptr + program * 2 + 1, second)


@triton.jit(do_not_specialize=["parameters"])
def scale_rates(
    sum_ptr, span_ptr, size_ptr, group_ptr, settings_ptr, rate_ptr, factor_ptr, parameters,
    SETTINGS: tl.constexpr, LAMB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write rows 2 and 3 of StepTensors.factors. Grid: the parameters, of which spans (P, 2) are the blocks."""
    parameter = tl.program_id(0)
    begin = tl.load(span_ptr + parameter * 2)
    blocks = tl.load(span_ptr + parameter * 2 + 1)
    offset = tl.arange(0, BLOCK)
    sum_ptr += begin.to(tl.int64) * 2
    firsts = tl.zeros((BLOCK,), tl.float64)
    seconds = tl.zeros((BLOCK,), tl.float64)
    for block in range(0, blocks, BLOCK):
        exists = block + offset < blocks
        firsts += tl.load(sum_ptr + (block + offset) * 2, mask=exists, other=0.0).to(tl.float64)
        if LAMB:
            seconds += tl.load(sum_ptr + (block + offset) * 2 + 1, mask=exists, other=0.0).to(tl.float64)
    first = tl.sum(firsts, 0)
    group = tl.load(group_ptr + parameter)
    decay = tl.load(settings_ptr + group * SETTINGS + 5)
    if LAMB:
        second = tl.sum(seconds, 0)
        has_ratio = (first > 0.0) & (second > 0.0) & (decay != 0.0)
        square = tl.where(has_ratio, first / tl.where(has_ratio, second, 1.0), 1.0)
        scale = tl.sqrt(square)
    else:
        mean = first / tl.load(size_ptr + parameter).to(tl.float64)
        scale = 1.0 / tl.maximum(tl.sqrt(mean), 1.0)
    rate = tl.load(rate_ptr + group).to(tl.float64) * scale
    factors = factor_ptr + parameter
    tl.store(factors + 2 * parameters, (1.0 - rate * decay).to(tl.float32))
    step = tl.load(factors + 3 * parameters).to(tl.float64) * scale
    tl.store(factors + 3 * parameters, step.to(tl.float32))


def scale(tensors: StepTensors, *, lamb: bool) -> None:
    """Scale the learning rates of an update, after `adamw.begin`: by LAMB's trust ratios, or as StableAdamW."""
    assert tensors.spans is not None
    assert tensors.sizes is not None
    device, parameters = tensors.weights.device, len(tensors.steps)
    config = config_of(tensor_sums, device)
    assert config.constants["BLOCK"] == block_elements(device), "the blocks are those of the update"
    sums = torch.empty(len(tensors.blocks), 2, dtype=torch.float32, device=device)
    launch(
        tensor_sums,
        (len(tensors.blocks),),
        *(tensors.weights, tensors.gradients, tensors.exp_avg, tensors.exp_avg_sq),
        *(tensors.blocks, tensors.factors, sums, parameters),
        UNIT=UNIT,
        LAMB=lamb,
        config=config,
    )
    launch(
        scale_rates,
        (parameters,),
        *(sums, tensors.spans, tensors.sizes, tensors.groups, tensors.settings, tensors.rates),
        *(tensors.factors, parameters),
        SETTINGS=SETTINGS,
        LAMB=lamb,
        config=config_of(scale_rates, device),
    )
