"""StableAdamW and LAMB as AdamW with a learning rate per parameter, and their step in PyTorch operations.

With m and v the moments of AdamW, corrected for their start at zero, and update = m / (sqrt(v) + eps):

- StableAdamW (Wortsman et al. 2023, algorithm 2): rate / max(1, RMS), RMS^2 the mean of g^2 / max(v, eps^2);
- LAMB (You et al. 2020, algorithm 2): rate * |w| / |update + decay w|, with phi the identity; the ratio is 1 where a
  norm is zero. Parameters without weight decay keep the rate, as in the implementations of NVIDIA and DeepSpeed.

Each step is then AdamW's: w = (1 - rate decay) w - rate update. The step here is for devices, dtypes and layouts that
the kernels do not support; without host-device sync, so that CUDA graphs can capture it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Rule = Literal["adamw", "stableadamw", "lamb"]
ReduceSums = Callable[[Tensor], Tensor]
"""Returns the sum of an fp64 tensor over the processes that hold shards of the parameters."""


def rate_scales(rule: Rule, sums: Tensor, sizes: Sequence[int], decays: bool) -> Tensor:
    """Return the factors of the learning rate, fp64 (parameters,).

    `sums` (parameters, 2) fp64 are over whole parameters of `sizes` elements. StableAdamW: the first is that of
    g^2 / max(v, eps^2). LAMB: the squares of the weight and of the update with weight decay, which `decays` tells.
    """
    first, second = sums.unbind(1)
    if rule == "stableadamw":
        # No tensor is made from `sizes`: a captured step copies nothing from the host.
        means = torch.stack([total / max(size, 1) for total, size in zip(first.unbind(), sizes, strict=True)])
        return 1.0 / means.sqrt().clamp(min=1.0)
    if rule == "lamb" and decays:
        ratios = (first / second).sqrt()
        return torch.where((first > 0) & (second > 0), ratios, 1.0)
    return torch.ones_like(first)


@dataclass(frozen=True)
class Part:
    """What the step of one parameter reads and writes; `weight` is fp32, the master of `narrow` if there is one."""

    weight: Tensor
    gradient: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor
    narrow: Tensor | None
    size: int
    """Elements of the whole parameter, of which the tensors may be a shard."""


def torch_step(
    rule: Rule,
    parts: Sequence[Part],
    group: dict[str, Any],
    *,
    grad_factor: float = 1.0,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    reduce_sums: ReduceSums | None = None,
) -> None:
    """Take a step of parameters that are on one device and share the settings of `group`.

    Gradients are multiplied by `grad_factor` and divided by `grad_scale`. Nothing changes where `found_inf` is not 0.
    """
    beta1, beta2 = map(float, group["betas"])
    eps, decay, lr = float(group["eps"]), float(group["weight_decay"]), group["lr"]
    weights, first, second = ([getattr(p, name) for p in parts] for name in ("weight", "exp_avg", "exp_avg_sq"))
    gradients = torch._foreach_mul([part.gradient.float() for part in parts], grad_factor)
    if grad_scale is not None:
        torch._foreach_div_(gradients, grad_scale.to(weights[0].device))
    counted: Tensor | None = None  # 1, or 0 for a step that is skipped
    if found_inf is not None:
        skip = found_inf.to(weights[0].device) != 0
        counted = 1.0 - skip.float()
        for gradient in gradients:
            gradient.masked_fill_(skip, 0.0)
    times = torch.stack([part.step for part in parts]).flatten().to(weights[0].device, torch.float64) + 1.0
    first_correction, second_correction = 1.0 - beta1**times, 1.0 - beta2**times
    _interpolate(first, gradients, 1.0 - beta1, counted)
    _interpolate(second, torch._foreach_mul(gradients, gradients), 1.0 - beta2, counted)
    roots = torch._foreach_sqrt(second)
    torch._foreach_div_(roots, second_correction.sqrt().unbind())
    updates = torch._foreach_div(first, torch._foreach_add(roots, eps))
    torch._foreach_div_(updates, first_correction.unbind())
    scales: Tensor = torch.ones_like(times)
    if rule == "stableadamw" or (rule == "lamb" and decay):
        if rule == "stableadamw":
            torch._foreach_clamp_min_(roots, max(eps, torch.finfo(torch.float32).tiny))
            sums = torch.stack((_squares(torch._foreach_div(gradients, roots)), torch.zeros_like(times)), 1)
        else:
            decayed = torch._foreach_add(updates, weights, alpha=decay)
            sums = torch.stack((_squares(weights), _squares(decayed)), 1)
        if reduce_sums is not None:
            sums = reduce_sums(sums)
        scales = rate_scales(rule, sums, [part.size for part in parts], bool(decay))
    rates = scales * (lr.to(times.device) if isinstance(lr, Tensor) else lr)
    if counted is not None:
        rates = rates * counted
    torch._foreach_mul_(weights, (1.0 - rates * decay).unbind())
    torch._foreach_mul_(updates, rates.unbind())
    torch._foreach_sub_(weights, updates)
    for part in parts:
        part.step.add_(1.0 if counted is None else counted.to(part.step.device))
        if part.narrow is not None:
            part.narrow.copy_(part.weight)


def _interpolate(x: list[Tensor], to: list[Tensor] | tuple[Tensor, ...], share: float, counted: Tensor | None) -> None:
    """Move x towards `to` by `share` of the distance, times `counted`."""
    difference = torch._foreach_sub(to, x)
    torch._foreach_mul_(difference, share if counted is None else counted * share)
    torch._foreach_add_(x, difference)


def _squares(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """Return the sums of squares, fp64 (tensors,)."""
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float64)).square()
