"""Recipes: what they set, and that flags which are given replace it."""

from pathlib import Path
from typing import get_args

import pytest

import fastbert
from fastbert.cli import flags
from fastbert.errors import UserError
from fastbert.flags import given_flags
from fastbert.training.config import PretrainConfig
from fastbert.training.recipes import RECIPES, RecipeName, with_recipe
from fastbert.training.run_folder import read_run


def parsed(*words: str) -> PretrainConfig:
    config = flags.parse(PretrainConfig, "pretrain", list(words), dict)
    return with_recipe(config, given_flags(words, config))


def test_every_recipe_sets_what_it_says() -> None:
    for name in get_args(RecipeName):
        config = parsed("--recipe", name, "--corpus", "text")
        for field, value in RECIPES[name].values.items():
            assert getattr(config, field) == value, (name, field)
    assert with_recipe(PretrainConfig(), ()) == PretrainConfig()


def test_flags_that_are_given_replace_those_of_a_recipe() -> None:
    """Also with a flag's default as its value, and where another flag stands for the recipe's."""
    config = parsed("--recipe=mosaicbert", "--mask-prob", "0.15", "--batch-schedule=8:16", "--corpus", "text")
    assert config.mask_prob == 0.15
    assert config.batch_size is None
    assert config.lr == RECIPES["mosaicbert"].values["lr"]
    config = parsed("--recipe", "bert-2018", "--max-length", "64", "--corpus", "text")
    assert config.lengths == [(1.0, 64)]
    assert parsed("--recipe", "modernbert", "--optimizer=adamw", "--corpus=text").betas is None
    assert parsed("--recipe", "short", "--overwrite", "--corpus", "text").init == "structured"
    with pytest.raises(UserError, match=r"--recipe bert-2018 with the flags given: --micro-batch 512 is larger"):
        parsed("--recipe", "bert-2018", "--micro-batch", "512", "--corpus", "text")
    with pytest.raises(UserError, match="--recipe best: choose one of bert-2018"):
        PretrainConfig(recipe="best")  # type: ignore[arg-type]


def test_a_run_keeps_the_values_of_its_recipe(corpus: Path, tmp_path: Path) -> None:
    """From Python too; a resumed run has them, whatever the recipe has become since."""
    shape = {"model": "tiny", "vocab_size": 256, "max_length": 32, "steps": 2, "eval_samples": 8, "quiet": True}
    fastbert.pretrain(corpus=corpus, out=tmp_path / "run", recipe="mosaicbert", batch_size=4, **shape)
    config = read_run(tmp_path / "run")
    assert (config.recipe, config.mask_prob, config.batch_size, config.min_lr_ratio) == ("mosaicbert", 0.3, 4, 0.02)
    fastbert.pretrain(out=tmp_path / "run", resume=True, steps=3, quiet=True)
    assert read_run(tmp_path / "run").mask_prob == 0.3


def test_a_run_that_is_repeated_until_it_ends_has_its_recipe(corpus: Path, tmp_path: Path) -> None:
    """--resume from the first start: the recipe applies where there is no run yet, and continues one as it began."""
    flags = {
        "model": "tiny", "vocab_size": 256, "max_length": 32, "eval_samples": 8, "recipe": "mosaicbert",
        "batch_size": 4, "out": tmp_path / "run", "corpus": corpus, "resume": True, "quiet": True,
    }  # fmt: skip
    fastbert.pretrain(steps=2, **flags)
    config = read_run(tmp_path / "run")
    assert (config.mask_prob, config.objective, config.min_lr_ratio) == (0.3, "mlm", 0.02)
    # A rate that is not the recipe's stays, with the recipe named again or not.
    fastbert.pretrain(steps=2, **{**flags, "lr": 1e-3, "out": tmp_path / "other"})
    fastbert.pretrain(steps=3, **{**flags, "out": tmp_path / "other"})
    assert read_run(tmp_path / "other").lr == 1e-3
