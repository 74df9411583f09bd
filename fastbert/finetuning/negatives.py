"""Hard negatives of a run: mined once, written to a file beside the run's folder, and read from it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastbert.distributed.world import World
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.tasks.examples import Dataset, TextGroup
from fastbert.tasks.readers.text_groups import read_text_groups
from fastbert.training.reporter import Reporter

if TYPE_CHECKING:
    from fastbert.tasks.retrieval.task import GroupTask


def negatives_file(config: FinetuneConfig) -> Path:
    """Return the file of --negatives-file, by default the run's folder with the suffix .negatives.jsonl. Raises
    `UserError` for a file that the run reads."""
    if config.negatives_file is None:
        out = config.out if config.out.name not in ("", "..") else Path(os.path.abspath(config.out))
        return out.with_name(f"{out.name}.negatives.jsonl")
    assert config.train is not None
    flags = [("--train", config.train), ("--mining-corpus", config.mining_corpus)]
    flags += [("--more-train", path) for path in config.more_train] + [("--eval", path) for path in config.eval]
    for name, path in flags:
        if path is not None and path.resolve() == config.negatives_file.resolve():
            raise UserError(
                f"--negatives-file {config.negatives_file}: is the file of {name}, which would be replaced; choose"
                " another"
            )
    return config.negatives_file


def with_negatives(
    task: GroupTask, paths: Sequence[str], config: FinetuneConfig, reporter: Reporter, world: World
) -> Dataset[TextGroup]:
    """Mine hard negatives for the groups of some files in the first process, as --mine-negatives says, and return the
    groups of the file that is written.

    A file that was mined from the same texts by the same model and options is used again. Raises `UserError` where
    `mine_negatives` does.
    """
    file = negatives_file(config)

    def mined() -> dict[str, str]:
        from fastbert.mining.mine import mine_negatives

        assert config.mine_negatives is not None
        report = mine_negatives(
            [task.read_groups(path) for path in paths],
            config.mine_negatives,
            file,
            config.mining_options(config.seed),
            reranker=config.mining_reranker,
            corpus=config.mining_corpus,
            device=config.device,
            overwrite=config.overwrite,
        )
        reporter.on_message(str(report))
        if not report.negatives:
            raise UserError(
                f"{file}: of {report.removed['candidates']:,} candidates, the margins and filters leave no negative;"
                " loosen them"
            )
        return {}

    world.shared("negatives", mined)
    groups = read_text_groups(str(file))
    return Dataset(groups.path, groups.examples)
