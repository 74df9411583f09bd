"""`fastbert evaluate`: the metrics of a fine-tuned model or of a file of predictions, GLUE's averages, language models
without fine-tuning, retrieval and reranking."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from fastbert.cli import ranking_flags, retrieval_task
from fastbert.cli.checks import check_examples, check_file, check_folder, check_model, check_new_file, check_new_folder
from fastbert.cli.counts import counted
from fastbert.cli.language_model_tasks import (
    LANGUAGE_MODEL_TASKS,
    LanguageModelFlags,
    check_files,
    check_flags,
    evaluate,
)
from fastbert.cli.model_flags import ModelFlags
from fastbert.errors import UserError
from fastbert.flags import DATA, MODEL, OUTPUT, require, required
from fastbert.io.progress import Bars
from fastbert.tasks.metrics.glue import AVERAGED, GLUE, glue_average, glue_name, glue_numbers
from fastbert.tasks.registry import TASKS, OneOf, make_task, task_class

if TYPE_CHECKING:
    from fastbert.tasks.base import Task
    from fastbert.tasks.examples import Dataset, Prediction

EXAMPLES = (
    "fastbert evaluate --model runs/finetune --gold test.tsv",
    "fastbert evaluate --task retrieval --model MiniLM --data scifact",
)

# Without files of predictions.
_SOURCES = ("glue", "data", "text", "corpus", "qrels", "run")
Evaluated = Annotated[str, OneOf({**TASKS, **LANGUAGE_MODEL_TASKS, **ranking_flags.RETRIEVAL_TASKS})]


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The gold file, and predictions or results."""

    GROUP: ClassVar = DATA

    gold: str | None = required("the file with the correct answers", unless=_SOURCES)
    """File with the correct answers, in any form that training accepts."""
    predictions: Path | None = required("the file to score; or give a --model", unless=("model", *_SOURCES))
    """File to score: .jsonl with an id and a label, labels, score, tags or text; SQuAD's .json; CoNLL; .tsv with id and
    prediction (GLUE's submissions); or .txt, one per line in the order of the gold file."""
    no_answer: Path | None = None
    """JSON file of probabilities that a question has no answer, by id (SQuAD 2.0): adds scores at the best
    threshold."""
    label_column: str | None = None
    """Column of the label, number, tag or target."""
    glue: Path | None = None
    """Folder with the results of GLUE's tasks, TASK.json or TASK/results.json, whose averages are printed."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model or its task."""

    GROUP: ClassVar = MODEL

    task: Evaluated | None = required(f"give a --model, or one of {', '.join(TASKS)}", unless=("model", "glue", "run"))
    """Kind of the task, if no --model's folder names it. blimp, pseudo-perplexity, mlm and nsp score a pre-trained
    --model, retrieval and reranking an embedder or a cross-encoder, in fp32 unless --dtype names another."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The metrics."""

    GROUP: ClassVar = OUTPUT

    json: Path | None = None
    """File to write the metrics to."""
    report: Path | None = None
    """Folder to write what the predictions get wrong to: scores per class, confusions, errors."""


@dataclass(frozen=True, kw_only=True)
class Config(_Output, ranking_flags.RetrievalTaskFlags, LanguageModelFlags, _Data, _Model, ModelFlags):
    """Score a fine-tuned model, or the predictions of any program, against a gold file; average the results of GLUE's
    tasks; score a pre-trained language model without fine-tuning; or score retrieval and reranking."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ranking_flags.check_flags(self)
        check_flags(self, ranking_flags.task_of(self) or self.task)


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    check_new_file("--json", config.json)
    check_new_folder("--report", config.report)
    if config.task in LANGUAGE_MODEL_TASKS:
        check_files(config)
        return
    if ranking_flags.task_of(config) is not None:
        ranking_flags.check_files(config)
        return
    name = config.task
    if config.no_answer is not None and name is not None and not task_class(name).can_have_no_answer:
        raise UserError(f"--no-answer {config.no_answer}: {name} has no questions without an answer; leave it out")
    check_folder("--glue", config.glue)
    check_model("--model", config.model)
    if config.glue is not None:
        _check_glue_alone(config)
        return
    if config.model is not None and (config.predictions is not None or config.no_answer is not None):
        raise UserError("--model makes the predictions itself: leave --predictions and --no-answer out")
    task = config.find_task() if config.model is not None else _task(config)
    check_examples("--gold", config.gold, config.task, task.read_gold)
    check_file("--predictions", config.predictions)
    check_file("--no-answer", config.no_answer)


def run(config: Config, *, quiet: bool = False) -> int:
    """Print the metrics, one per line."""
    scores: Mapping[str, Any]
    if config.task in LANGUAGE_MODEL_TASKS:
        scores = evaluate(config, quiet)
    elif ranking_flags.task_of(config) is not None:
        scores = retrieval_task.evaluate(config, quiet)
    elif config.glue is not None:
        scores = _glue(config)
        width = max(map(len, scores))
        print("\n".join(f"{name:<{width}}  {value:>9.4f}" for name, value in scores.items()))
    else:
        scored = _score_model(config, quiet) if config.model is not None else _score(config)
        scores = scored.task.score(scored.dataset, scored.predictions)
        _show(config, scored, scores)
        if config.report is None and not quiet:
            hint = "--report FOLDER writes scores per class, confusions and errors"
            print(f"fastbert evaluate: {hint}", file=sys.stderr)
    if config.json is not None:
        from fastbert.io.atomic_write import write_json_atomic

        write_json_atomic(config.json, scores)
    return 0


@dataclass(frozen=True)
class _Scored:
    """Predictions, and what they are scored against."""

    task: Task[Any]
    dataset: Dataset[Any]
    predictions: list[Prediction]


def _show(config: Config, scored: _Scored, scores: Mapping[str, float]) -> None:
    """Print the scores beside their baselines, and with --report write the report and print its summary."""
    from fastbert.tasks.reports.files import contents, write_report
    from fastbert.tasks.reports.summary import beside, class_lines, warning_lines

    task, dataset = scored.task, scored.dataset
    report = task.report(dataset, scored.predictions)
    values = contents(task, report, len(dataset), scores, task.baselines(dataset))
    width = max(map(len, scores))
    print("\n".join(f"{name:<{width}}  {value:>9.4f}{beside(name, values)}" for name, value in scores.items()))
    if config.report is not None:
        write_report(config.report, report, values)
        print("\n".join([*class_lines(values), f"report: {config.report}"]))
    for line in warning_lines(Path(dataset.path).name, values):  # apart from the scores, which programs read
        print(line, file=sys.stderr)


def _task(config: Config) -> Task[Any]:
    """Return the task of --task."""
    from fastbert.tasks.settings import TaskSettings

    return make_task(require(config, "task"), TaskSettings(columns=config.columns(), skip_bad=config.skip_bad))


def _score(config: Config) -> _Scored:
    name = require(config, "task")
    gold = require(config, "gold")
    predictions = require(config, "predictions")
    from fastbert.tasks.prediction_files import read_predictions

    task = _task(config)
    dataset = task.read_gold(gold)
    predicted = read_predictions(predictions, name, dataset)
    if config.no_answer is not None:
        predicted = task.add_no_answer(config.no_answer, dataset, predicted)
    return _Scored(task, dataset, predicted)


def _score_model(config: Config, quiet: bool) -> _Scored:
    gold = require(config, "gold")
    with Bars(quiet) as bars:
        trained = config.load()
        dataset = trained.task.read_gold(gold)
        trained.task.check_labels(dataset)
        bars.message(f"{trained.task.name}, {counted(len(dataset), 'example')}, {trained.how}")
        predictions = config.predict(trained, dataset, bars.stage)
    return _Scored(trained.task, dataset, predictions)


def _check_glue_alone(config: Config) -> None:
    """Raise `UserError` for flags that --glue has no use for."""
    others = (config.task, config.gold, config.predictions, config.no_answer, config.model, config.report)
    if any(value is not None for value in others):
        raise UserError(
            "--glue averages results that exist: leave --task, --gold, --model, --predictions and --report out"
        )


def _glue(config: Config) -> dict[str, float]:
    """Return the number of every task in the folder, and the averages of the conventions whose tasks are all there."""
    assert config.glue is not None
    results = _results(config.glue)
    if not results:
        raise UserError(f"--glue {config.glue}: holds no result of a task of GLUE; name them {GLUE[0]}.json ...")
    scores: dict[str, float] = {}
    for convention, tasks in AVERAGED.items():
        available = {name: result for name, result in results.items() if name in tasks}
        scores |= {f"{convention} {name}": number for name, number in glue_numbers(available, convention).items()}
        missing = [name for name in tasks if name not in results]
        if missing:
            print(f"no {convention} average: no result for {', '.join(missing)}")
        else:
            scores[f"{convention} average"] = glue_average(available, convention)
    return scores


def _results(folder: Path) -> dict[str, Mapping[str, float]]:
    """Return the metrics of each task of GLUE with results in a folder."""
    from fastbert.tasks.readers.tables import read_json

    results: dict[str, Mapping[str, float]] = {}
    for path in sorted([*folder.glob("*.json"), *folder.glob("*/results.json")]):
        try:
            name = glue_name(path.parent.name if path.name == "results.json" and path.parent != folder else path.stem)
        except UserError:
            continue  # not a result of GLUE
        if name in results:
            raise UserError(f"{path}: a second result for {name}; leave one out")
        content = read_json(path)
        if not isinstance(content, dict):
            raise UserError(f"{path}, line 1: must be an object of metrics by name")
        if content.get("finished") is False:
            raise UserError(f"{path}: its run is not finished; continue it with --resume, or take it out of {folder}")
        files = [content]
        if isinstance(content.get("results"), dict):  # of a run, by evaluation file
            files = [each for each in content["results"].values() if isinstance(each, dict)]
        for task, metrics in zip((name, "MNLI-mm") if name == "MNLI-m" else (name,), files):
            # The mean over several seeds.
            means = {
                metric: value["mean"] if isinstance(value, dict) and "mean" in value else value
                for metric, value in metrics.items()
            }
            results[task] = {metric: float(value) for metric, value in means.items() if isinstance(value, int | float)}
    return results
