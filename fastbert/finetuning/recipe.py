"""Learning-rate schedules, layer-wise decay, freezing and re-initialisation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import torch
from torch import nn

from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.models.encoder import EncoderModel
from fastbert.models.loading import initialise
from fastbert.training.optimizer import AdamW, decayed
from fastbert.training.optimizer_choice import chosen_optimizer
from fastbert.training.schedules import DECAY_FRACTION, Schedule, learning_rate_factor

_LAYER = re.compile(r"(?:^|\.)encoder\.layer\.(\d+)\.")
_FINAL_NORM = re.compile(r"(?:^|\.)encoder\.LayerNorm\.")  # of pre-LN layers
CUT_FRACTION, RATIO = 0.1, 32.0  # of ULMFiT's schedule (Howard and Ruder 2018, section 3.2)


def factor(
    schedule: str | None,
    warmup: float,
    step: int,
    total: int,
    *,
    decay_fraction: float = DECAY_FRACTION,
    min_ratio: float = 0.0,
) -> float:
    """Return the learning rate of a step, counted from 0, as a fraction of the peak.

    linear (or None): rises over the first `warmup` of the steps, then falls to zero; constant: does not fall;
    inverse-sqrt: falls with the inverse square root of the step (Vaswani et al. 2017, section 5.3); slanted-triangular:
    rises over the first tenth to the peak and falls to 1/32 of it; cosine, wsd: those of pre-training. linear, cosine
    and wsd fall to `min_ratio` of the peak.
    """
    if schedule == "slanted-triangular":
        cut = max(math.floor(total * CUT_FRACTION), 1)
        part = step / cut if step < cut else 1 - (step - cut) / (cut * (1 / CUT_FRACTION - 1))
        return (1 + max(part, 0.0) * (RATIO - 1)) / RATIO
    rising = min(math.ceil(total * warmup), total - 1)  # the last step always trains
    if step < rising:
        return step / rising
    if schedule in ("cosine", "wsd"):
        shape: Schedule = "cosine" if schedule == "cosine" else "wsd"
        return learning_rate_factor(
            step / total, rising / total, shape, decay_fraction=decay_fraction, min_ratio=min_ratio
        )
    if schedule == "inverse-sqrt":
        return math.sqrt(max(rising, 1) / max(step, 1))
    if schedule == "constant":
        return 1.0
    remaining = max(0.0, (total - step) / max(1, total - rising))
    return min_ratio + (1.0 - min_ratio) * remaining


def factor_of(config: FinetuneConfig, step: int, total: int) -> float:
    """Return `factor` with the flags of a run."""
    fraction, least = config.decay_fraction, config.min_lr_ratio
    return factor(config.schedule, config.warmup, step, total, decay_fraction=fraction, min_ratio=least)


def group_of(name: str, layers: int) -> int:
    """Return a parameter's group of layers: 0 for the embeddings, 1 to `layers` for the layers (the last with the norm
    behind it), `layers` + 1 for head, pooler, BiLSTM and decoder."""
    if name.startswith("decoder."):
        return layers + 1
    match = _LAYER.search(name)
    if match:
        return int(match[1]) + 1
    if _FINAL_NORM.search(name):
        return layers
    return 0 if "embeddings." in name else layers + 1


def optimizer(model: nn.Module, config: FinetuneConfig, lr: float) -> AdamW:
    """Return the optimiser of the flags with parameter groups by weight decay and, with `layer_decay`, by depth. For
    new models AdamW has the betas and the epsilon of Vaswani et al. 2017 (section 5.3), for others those of BERT."""
    betas, eps = (None, None) if config.architecture is None else ((0.9, 0.98), 1e-9)
    layers: int = model.config.num_hidden_layers  # type: ignore[union-attr,assignment]
    groups: dict[tuple[int, bool], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or config.gradual_unfreezing:
            depth = layers + 1 - group_of(name, layers) if config.layer_decay < 1 else 0
            groups.setdefault((depth, decayed(name, parameter)), []).append((name, parameter))
    by_decay = [
        {"params": named, "weight_decay": config.weight_decay if decays else 0.0, "share": config.layer_decay**depth}
        for (depth, decays), named in sorted(groups.items())
    ]
    return chosen_optimizer(by_decay, config, lr, betas=betas, eps=eps)


def set_rates(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of each group to its share of `lr`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["share"]


def freeze(model: nn.Module, trained: Iterable[int]) -> None:
    """Freeze all parameters but those of the given groups (`group_of`)."""
    layers: int = model.config.num_hidden_layers  # type: ignore[union-attr,assignment]
    groups = set(trained)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(group_of(name, layers) in groups)


def stage(step: int, per_epoch: int, total: int, layers: int) -> int:
    """Return the stage of gradual unfreezing, from 0, of a step of `total`, counted from 0. A stage is an epoch, or
    shorter, so that every group of layers has a stage in runs of fewer epochs."""
    return step // max(min(per_epoch, total // (layers + 2)), 1)


def unfrozen(stage: int, layers: int) -> range:
    """Return the groups that are trained in a stage of gradual unfreezing: the head, then one more per stage."""
    return range(max(layers + 1 - stage, 0), layers + 2)


def reinitialise(model: nn.Module, names: Iterable[str], std: float, seed: int) -> None:
    """Initialise the named weights like those of a new model, from `seed` alone."""
    initialise(model, names, std, torch.Generator().manual_seed(seed))


def top_layers(model: nn.Module, count: int) -> list[str]:
    """Return the names of the parameters of the encoder's top layers and of its pooler."""
    layers: int = model.config.num_hidden_layers  # type: ignore[union-attr,assignment]
    if count > layers:
        raise UserError(f"--reinit-layers {count}: the model has {layers} layers")
    first = layers - count
    encoders = [name for name, module in model.named_modules() if isinstance(module, EncoderModel)]
    return [
        name
        for name, _ in model.named_parameters()
        if any(
            name.startswith(f"{encoder}.pooler.") or first < group_of(name, layers) <= layers for encoder in encoders
        )
    ]
