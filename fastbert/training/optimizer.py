"""AdamW as BERT uses it, and the learning-rate schedule."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def decayed(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: not to biases and LayerNorm (Devlin et al. 2019, appendix A.2 and its code)."""
    return parameter.dim() > 1 and "LayerNorm" not in name and not name.endswith("bias")


def adamw(model: nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with betas 0.9 and 0.999, eps 1e-6, decay on matrices only; torch's fused kernel."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for name, p in named if decayed(name, p)], "weight_decay": weight_decay},
        {"params": [p for name, p in named if not decayed(name, p)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=1e-6, fused=True)


def learning_rate_factor(progress: float, warmup: float) -> float:
    """Linear warm-up over the first `warmup` of the run, then linear decay to zero; `progress` from 0 to 1."""
    if progress < warmup:
        return progress / warmup
    return (1.0 - progress) / (1.0 - warmup)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr`, rounded to fp32, for the next step.

    A step in a CUDA graph reads its rate from an fp32 tensor: rounded everywhere, both kinds of step give equal bits.
    """
    (rounded,) = struct.unpack("f", struct.pack("f", lr))
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rounded)
        else:
            group["lr"] = rounded


def make_capturable(optimizer: torch.optim.AdamW, device: torch.device) -> tuple[Tensor, Tensor]:
    """Prepare AdamW for CUDA graphs: its rate becomes a tensor on the device, shared by all groups.

    Returns the fp32 scalar that makes a step change nothing while it is 1 (for a gradient that is not finite), and the
    rate.
    """
    lr = torch.tensor(float(optimizer.param_groups[0]["lr"]), dtype=torch.float32, device=device)
    for group in optimizer.param_groups:
        group["lr"], group["capturable"] = lr, True
    skip = torch.zeros((), dtype=torch.float32, device=device)
    optimizer.found_inf = skip  # type: ignore[attr-defined]  # where torch's fused step looks for it
    return skip, lr


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint norm is at most `max_norm`; returns the norm before, fp32 scalar."""
    return nn.utils.clip_grad_norm_(parameters, max_norm)
