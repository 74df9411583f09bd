"""`fastbert finetune`: train a pre-trained model on the examples of a task, score it, and write its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fastbert.cli.checks import (
    check_examples,
    check_exists,
    check_file,
    check_length,
    check_model,
    check_new_folder,
    check_no_run,
    check_texts,
    named,
)
from fastbert.cli.ranking_flags import is_cross_encoder
from fastbert.cli.training_view import shown
from fastbert.distributed.environment import is_main_process
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig as Config
from fastbert.flags import check_required, given_flags
from fastbert.io.output_files import check_output
from fastbert.mining.options import SUFFIX
from fastbert.reranking.settings import check_labels
from fastbert.tasks.class_weights import BALANCED, check_setting
from fastbert.tasks.registry import make_task
from fastbert.training.tracking_flags import check_tracking

if TYPE_CHECKING:
    from fastbert.finetuning.run import FinetuneResult
    from fastbert.tasks.base import Task

__all__ = ["Config", "run"]
EXAMPLES = (
    "fastbert finetune --task classification --model MiniLM --train train.tsv --eval dev.tsv",
    "fastbert finetune --task tagging --model MiniLM --train train.conll --eval dev.conll"
    " --lr 5e-5 3e-5 --seeds 3 --out runs/ner",
)


def complete(config: Config, words: Sequence[str]) -> Config:
    """Return the flags, marked with those that `words` hold."""
    return config.marked(given_flags(words, config))


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    check_tracking(config)
    if config.resume and any((config.out / name).exists() for name in ("config.json", "checkpoints")):
        return  # a finished run needs none of its inputs; any other checks them itself
    if config.resume:
        try:
            check_required(replace(config, resume=False))
        except UserError as error:
            raise UserError(f"--out {config.out}: holds no run to resume, and {error}") from None
    check_new_folder("--out", config.out, parents=True)
    if not config.overwrite:
        check_no_run(config.out, "results.json", "model")
    config.check_of_use()
    task = None if config.task is None else make_task(config.task, config.task_settings())
    if task is not None and config.metric is not None and config.metric not in task.metrics:
        raise UserError(f"--metric {config.metric}: {config.task} has {', '.join(task.metrics)}")
    learn = None if task is None else task.read if config.mine_negatives else partial(_learn, task)
    check_examples("--train", config.train, config.task, learn)
    _check_mining(config)
    for path in config.more_train:
        check_examples("--more-train", path, config.task, None if task is None else task.read)
    for path in config.eval:
        check_examples("--eval", path, config.task, None if task is None else partial(_evaluate, task))
    if config.architecture is not None:
        check_exists("--tokenizer", config.tokenizer)
        if config.model is not None and config.model.endswith(".json"):
            check_file("--model", config.model)
        return
    values = check_model("--model", config.model)
    check_model("--teacher", config.teacher)
    check_length(config.length, values, config.model)
    if config.class_weights not in (None, BALANCED):
        check_setting(config.class_weights)
        check_file("--class-weights", config.class_weights)


def _check_mining(config: Config) -> None:
    """Raise `UserError` for models and files of mining that cannot be used."""
    if is_cross_encoder(check_model("--mine-negatives", config.mine_negatives)):
        raise UserError(f"--mine-negatives {config.mine_negatives}: is a cross-encoder, which has no vectors")
    reranker = check_model("--mining-reranker", config.mining_reranker)
    if reranker:
        with named("--mining-reranker"):
            check_labels(reranker, config.mining_reranker)
    if config.mining_corpus is not None:
        check_texts("--mining-corpus", str(config.mining_corpus), None)
    if config.negatives_file is not None:  # a file that was mined before is read
        check_output(config.negatives_file, (SUFFIX,), True, "--negatives-file")


def _learn(task: Task[Any], path: str) -> None:
    task.learn_labels(task.read(path))


def _evaluate(task: Task[Any], path: str) -> None:
    dataset = task.read_gold(path)
    if task.labels is not None:  # of a small training file, which has been read
        task.check_labels(dataset)


def run(config: Config, *, quiet: bool = False) -> int:
    """Fine-tune. Raises `Stopped` after Ctrl-C and SIGTERM, with a checkpoint."""
    from fastbert.finetuning.results import point_of, settings
    from fastbert.finetuning.run import finetune

    with shown("finetune", config.out, quiet) as reporter:
        result = finetune(config, reporter)
    if not is_main_process():
        return 0
    lines = _scores(result)
    points = {(trial.trial.lr, trial.trial.batch_size, trial.trial.epochs) for trial in result.trials}
    if len(points) > 1 and result.scores:
        best = settings([trial for trial in result.trials if point_of(trial.trial) == point_of(result.best)])
        epochs = f"{best['epochs']:g} epoch{'s' * (best['epochs'] != 1)}"
        lines.append(f"best of the grid: lr {best['lr']:g}, batch {best['batch_size']}, {epochs}")
    trial = f" ({result.best_trial})" if len(result.trials) > 1 else ""
    lines.append(f"model:   {result.model}{trial}")
    if result.scores:
        lines.append(f"report:  {result.reports}")
    lines.append(f"results: {result.folder / 'results.json'}")
    print("\n".join(lines))
    return 0


def _scores(result: FinetuneResult) -> list[str]:
    """Return the scores of each file beside their baselines, and for the first file the classes of the kept model."""
    from fastbert.tasks.reports.files import read_contents
    from fastbert.tasks.reports.summary import class_lines, score_lines, warning_lines

    lines: list[str] = []
    for number, (file, metrics) in enumerate(result.scores.items()):
        shown = {
            name: f"{values['mean']:.2f}"
            + (f" ± {values['std']:.2f} over {len(values['per_seed'])} seeds" if values["std"] else "")
            for name, values in metrics.items()
        }
        report = read_contents(result.reports / file) or {"metric": result.metric}
        lines += score_lines(file, shown, report, others=number == 0)
        lines += class_lines(report) if number == 0 else []
        lines += warning_lines(file, report)
    return lines
