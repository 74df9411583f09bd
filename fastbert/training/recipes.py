"""Named recipes of pre-training: published sets of hyper-parameters, and ours for short runs. Imports no torch.

A recipe is a set of values for flags that the command line leaves out; every flag that is given replaces the recipe's.
What a recipe does not set keeps its default, which follows from the sizes of model and corpus
(`fastbert.training.defaults`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from fastbert.errors import UserError

Config = TypeVar("Config")
"""The flags of a run, a `PretrainConfig`."""
RecipeName = Literal["bert-2018", "mosaicbert", "modernbert", "short"]


@dataclass(frozen=True)
class Recipe:
    """The values of flags by field, what they are, and where they were published."""

    about: str
    source: str
    values: Mapping[str, Any]


RECIPES: dict[str, Recipe] = {
    "bert-2018": Recipe(
        "masked LM at 15 % with next-sentence prediction, 10 fixed maskings, 128 tokens and then 512, linear decay",
        "Devlin et al. 2019, section 3.1 and appendix A.2, and its released code",
        MappingProxyType(
            {
                "objective": "mlm+nsp", "mask_prob": 0.15, "static_masks": 10, "length_schedule": "128@0.9,512",
                "batch_size": 256, "lr": 1e-4, "warmup": 0.01, "schedule": "linear", "optimizer": "adamw",
                "betas": (0.9, 0.999), "weight_decay": 0.01, "dropout": 0.1, "init": "normal",
            }
        ),
    ),
    "mosaicbert": Recipe(
        "masked LM alone at 30 %, batches of 4,096 sequences of 128 tokens, linear decay to 2 %, no dropout",
        "Portes et al. 2023, section 3 and its released configuration",
        MappingProxyType(
            {
                "objective": "mlm", "mask_prob": 0.3, "max_length": 128, "batch_size": 4096, "lr": 5e-4, "warmup": 0.06,
                "schedule": "linear", "min_lr_ratio": 0.02, "optimizer": "adamw", "betas": (0.9, 0.98),
                "weight_decay": 1e-5, "dropout": 0.0, "init": "normal", "short_sequence_prob": 0.0,
            }
        ),
    ),
    "modernbert": Recipe(
        "masked LM alone at 30 %, StableAdamW, a growing batch, warm-up, constant rate and 1 - sqrt decay, 1,024 tokens"
        " and then 8,192",
        "Warner et al. 2024, section 3 and appendix A",
        MappingProxyType(
            {
                "objective": "mlm", "mask_prob": 0.3, "length_schedule": "1024@0.85,8192", "max_positions": 8192,
                "batch_schedule": "768:4608@0.03,4608@0.85,576", "lr": 8e-4, "warmup": 0.002, "schedule": "wsd",
                "decay_fraction": 0.03, "optimizer": "stableadamw", "betas": (0.9, 0.98), "weight_decay": 1e-5,
                "max_grad_norm": 1e9, "dropout": 0.0, "init": "normal", "short_sequence_prob": 0.0,
            }
        ),
    ),
    "short": Recipe(
        "for minutes to hours on a small machine: masked LM alone at 30 %, Muon at a high rate, structured initial"
        " weights, small batches, no dropout, linear decay",
        "benchmarks/speedrun/README.md",
        MappingProxyType(
            {
                "objective": "mlm", "mask_schedule": "0.3", "max_length": 128, "short_sequence_prob": 0.0,
                "batch_size": 64, "lr": 2e-3, "warmup": 0.05, "schedule": "linear", "optimizer": "muon",
                "betas": (0.9, 0.98), "weight_decay": 0.01, "dropout": 0.0, "init": "structured",
            }
        ),
    ),
}  # fmt: skip
assert RECIPES.keys() == set(get_args(RecipeName))


def with_recipe(config: Config, given: Collection[str]) -> Config:
    """Return a run's flags with the values of --recipe for those that are not `given`, by field; without a recipe they
    are unchanged, and so are those that continue a run, which has the recipe's values already. Raises `UserError` where
    a given flag and the recipe contradict each other."""
    flags: Any = config
    if flags.recipe is None or (flags.resume and _has_begun(flags.out)):
        return config
    values = RECIPES[flags.recipe].values
    chosen = {name: value for name, value in values.items() if name not in given and not _replaced(name, given)}
    try:
        changed: Config = replace(flags, **chosen)
        return changed
    except UserError as error:
        raise UserError(f"--recipe {flags.recipe} with the flags given: {error}") from None


def _has_begun(out: Path) -> bool:
    """Return whether --resume finds the flags of a run in its folder."""
    return any((out / name).exists() for name in ("config.json", "checkpoints"))


# A flag on the left, once given, takes the place of the recipe's on the right.
_INSTEAD: dict[str, tuple[str, ...]] = {
    "length_schedule": ("max_length",),
    "max_length": ("length_schedule", "max_positions"),
    "batch_schedule": ("batch_size",),
    "batch_tokens": ("batch_size", "batch_schedule"),
    "batch_size": ("batch_schedule",),
    "mask_schedule": ("mask_prob",),
    "mask_prob": ("mask_schedule",),
    "schedule": ("decay_fraction", "min_lr_ratio"),
    "optimizer": ("betas", "max_grad_norm"),
}


def _replaced(name: str, given: Collection[str]) -> bool:
    """Return whether a flag that is given takes the place of the recipe's value of another one."""
    return any(name in _INSTEAD.get(other, ()) for other in given)
