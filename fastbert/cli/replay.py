"""`fastbert replay`: compute steps of a pre-training run again, and compare them bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fastbert.cli.checks import check_file, check_folder
from fastbert.distributed.environment import is_main_process
from fastbert.errors import UserError
from fastbert.flags import rare, require, required

EXAMPLES = (
    "fastbert replay runs/mine --steps 100:110",
    "fastbert replay runs/mine --steps 5000",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Compute steps of a pre-training run again, from the newest checkpoint before them, and compare the loss and
    the norm of the gradient with those that the run recorded, for runs on CPUs without FSDP2 also the sum of all
    weights. Nothing is written. The exit code is 1 at the first difference."""

    run: Annotated[tuple[Path, ...], tyro.conf.Positional] = required(
        "the folder of a run of `fastbert pretrain`", name="RUN", default=()
    )
    """Folder of the run, one."""
    steps: str | None = required("the first and the last step, such as 100:110")
    """Steps to compare, FIRST:LAST or a single one."""
    data: tuple[str, ...] = rare(())
    """Where the run's token shards are now, if they were moved: a folder or a URL, several in the run's order."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    from fastbert.training.replay_steps import parse_steps

    (folder, *others) = require(config, "run")
    if others:
        raise UserError(f"RUN {others[0]}: is one folder too many; name one run")
    check_folder("RUN", folder, "name the --out of a run of `fastbert pretrain`")
    check_file("RUN", folder / "config.json")
    parse_steps(require(config, "steps"))


def run(config: Config, *, quiet: bool = False) -> int:
    """Print a line per step; return 1 at the first difference."""
    from fastbert.io.progress import Bars
    from fastbert.training.replay import replay
    from fastbert.training.replay_steps import parse_steps
    from fastbert.training.reporter import Reporter

    first, last = parse_steps(require(config, "steps"))
    with Bars(quiet) as bars:
        reporter = Reporter(on_message=bars.message)
        for step in replay(require(config, "run")[0], first, last, reporter, data=config.data):
            if is_main_process():
                print(step.describe())
            if step.is_equal is False:
                return 1
    return 0
