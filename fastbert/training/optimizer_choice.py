"""The optimiser that a run's flags choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from fastbert.training.muon import Muon, split_groups
from fastbert.training.optimizer import OPTIMIZERS, AdamW, decayed
from fastbert.training.optimizer_flags import BETAS, EPS, OptimizerFlags


def chosen_optimizer(
    groups: Iterable[dict[str, Any]],
    flags: OptimizerFlags,
    lr: float,
    *,
    betas: Sequence[float] | None = None,
    eps: float | None = None,
    masters: bool = False,
) -> AdamW:
    """Return the optimiser of `flags` for parameter groups; `betas` and `eps` are AdamW's defaults, if others."""
    usual, usual_eps = BETAS[flags.optimizer], EPS
    if flags.optimizer == "adamw":
        usual, usual_eps = (usual if betas is None else (betas[0], betas[1])), (EPS if eps is None else eps)
    first, second = usual if flags.betas is None else flags.betas
    chosen_eps = usual_eps if flags.eps is None else flags.eps
    settings: dict[str, Any] = {
        "lr": lr,
        "betas": (first, second),
        "eps": chosen_eps,
        "fused": True,
        "masters": masters,
    }
    if flags.optimizer == "muon":
        return Muon(split_groups(groups), **settings)
    return OPTIMIZERS[flags.optimizer](groups, **settings)


def pretraining_optimizer(model: nn.Module, flags: OptimizerFlags, lr: float, *, masters: bool = False) -> AdamW:
    """Return the optimiser of `flags` for the parameters that require gradients; no decay on biases and LayerNorm."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {
            "params": [(name, p) for name, p in named if decayed(name, p) == decays],
            "weight_decay": flags.weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]
    return chosen_optimizer(groups, flags, lr, masters=masters)
