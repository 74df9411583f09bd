"""AdamW as BERT uses it, and the learning-rate schedule."""

from __future__ import annotations

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
    """Use `lr` for the next step."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients so that their joint norm is at most `max_norm`; returns the norm before, fp32 scalar."""
    return nn.utils.clip_grad_norm_(parameters, max_norm)
