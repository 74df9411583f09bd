"""The commands `pretrain` and `finetune` as functions, with their options as keyword arguments. Needs no tyro."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastbert.cli import finetune as finetune_command
from fastbert.cli import pretrain as pretrain_command
from fastbert.cli.keyword_options import config_of, signature_of
from fastbert.cli.training_view import shown
from fastbert.distributed.environment import is_main_process
from fastbert.finetuning.config import FinetuneConfig
from fastbert.flags import check_required
from fastbert.training.config import PretrainConfig
from fastbert.training.recipes import with_recipe
from fastbert.training.reporter import Reporter

if TYPE_CHECKING:
    from fastbert.finetuning.run import FinetuneResult
    from fastbert.training.pretrain import PretrainResult

Config = TypeVar("Config", PretrainConfig, FinetuneConfig)
Result = TypeVar("Result")


def pretrain(
    config: PretrainConfig | None = None, reporter: Reporter | None = None, *, quiet: bool = False, **options: Any
) -> PretrainResult:
    """Pre-train a model, as `fastbert pretrain` does: `pretrain(corpus="my-text", model="mini", out="runs/mine")`.

    Args:
        config: all options in one object, instead of keyword arguments; each of its values counts as given, so that
            its recipe fills in none (`fastbert.training.recipes.with_recipe` does).
        reporter: hooks for steps, validations and messages, instead of the progress that is shown.
        quiet: show no progress; otherwise it is shown like that of the command where stderr is a terminal.
        **options: the flags of `fastbert pretrain`, as listed by its `--help-all`, with underscores: `max_length=128`.
            Paths may be strings, and an option of several values takes a list or one value.

    Returns the run's folder, its validation and the paths of its model and loss curve. Raises `TypeError` for an
    unknown option, `UserError` (one line: value, place, cure) for input that cannot be trained on, and `Stopped` after
    SIGINT or SIGTERM, when a checkpoint has been written; the same call with `resume=True` continues.

    Example:
        >>> import fastbert
        >>> result = fastbert.pretrain(
        ...     corpus="my-text.txt",
        ...     model="tiny",
        ...     vocab_size=30,
        ...     batch_size=8,
        ...     out="runs/new",
        ...     steps=2,
        ...     device="cpu",
        ...     quiet=True,
        ... )
        >>> fastbert.load(result.model).config.num_hidden_layers
        2
    """
    names = set(options)
    config = _config(PretrainConfig, config, options, "pretrain")
    config = with_recipe(config, names or set(vars(config))).marked(names)

    def run(reporter: Reporter) -> PretrainResult:
        from fastbert.training.pretrain import pretrain as train

        return train(config, reporter)

    return _run("pretrain", config, pretrain_command.check, run, reporter, quiet)


def finetune(
    config: FinetuneConfig | None = None, reporter: Reporter | None = None, *, quiet: bool = False, **options: Any
) -> FinetuneResult:
    """Fine-tune a model on a task, as `fastbert finetune` does: `finetune(task="classification", model="runs/mine",
    train="train.tsv", eval="dev.tsv", out="runs/task")`.

    Args:
        config: all options in one object, instead of keyword arguments.
        reporter: hooks for steps, validations and messages, instead of the progress that is shown.
        quiet: show no progress; otherwise it is shown like that of the command where stderr is a terminal.
        **options: the flags of `fastbert finetune`, as listed by its `--help-all`, with underscores: `batch_size=16`.
            Paths may be strings, and an option of several values takes a list or one value.

    Returns the run's folder, its trials, and the scores of the best point of the grid. Raises `TypeError` for an
    unknown option, `UserError` (one line: value, place, cure) for input that cannot be trained on, and `Stopped` after
    SIGINT or SIGTERM, when a checkpoint has been written; the same call with `resume=True` continues.

    Example:
        >>> import fastbert
        >>> result = fastbert.finetune(
        ...     task="classification",
        ...     model="runs/mine/model",
        ...     train="train.tsv",
        ...     eval="dev.tsv",
        ...     out="runs/sentiment",
        ...     steps=2,
        ...     device="cpu",
        ...     quiet=True,
        ... )
        >>> list(result.scores["dev.tsv"])
        ['accuracy', 'f1', 'macro_f1', 'matthews']
    """
    config = _config(FinetuneConfig, config, options, "finetune").marked(options)

    def run(reporter: Reporter) -> FinetuneResult:
        from fastbert.finetuning.run import finetune as train

        return train(config, reporter)

    return _run("finetune", config, finetune_command.check, run, reporter, quiet)


pretrain.__signature__ = signature_of(PretrainConfig, pretrain)  # type: ignore[attr-defined]
finetune.__signature__ = signature_of(FinetuneConfig, finetune)  # type: ignore[attr-defined]


def _config(kind: type[Config], config: Config | None, options: dict[str, Any], function: str) -> Config:
    """Return the options of a call, given as one object or as keyword arguments."""
    if config is None:
        return config_of(kind, options, function)
    if not isinstance(config, kind):
        raise TypeError(f"{function}() takes a {kind.__name__} or options by keyword, not {type(config).__name__}")
    if options:
        raise TypeError(f"{function}() takes a {kind.__name__} or options by keyword, not both: {', '.join(options)}")
    return config


def _run(
    command: str,
    config: Config,
    check: Callable[[Config], None],
    run: Callable[[Reporter], Result],
    reporter: Reporter | None,
    quiet: bool,
) -> Result:
    """Check the options as the command does, and run it."""
    check_required(config)
    if is_main_process():  # the others would see what the first one writes
        check(config)
    if reporter is not None:
        return run(reporter)
    out: Path = config.out
    # Without a terminal the command writes lines for a log file; a function leaves logs to whoever calls it.
    with shown(command, out, quiet or sys.stderr is None or not sys.stderr.isatty()) as view:
        return run(view)
