"""`fastbert predict`: apply a fine-tuned model to a file, or to standard input."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fastbert.cli.checks import check_examples, check_model, check_new_file, check_new_folder, named
from fastbert.cli.counts import counted
from fastbert.cli.model_flags import ModelFlags
from fastbert.errors import UserError
from fastbert.flags import DATA, MODEL, OUTPUT, require, required
from fastbert.io.progress import Bars
from fastbert.tasks.prediction_files import file_kind
from fastbert.tasks.registry import PredictFlags

EXAMPLES = (
    "fastbert predict --model runs/finetune --text new.tsv --out labels.jsonl",
    'echo "A fine film." | fastbert predict --model runs/finetune --text -',
)


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The examples."""

    GROUP: ClassVar = DATA

    text: str | None = required("a file with the examples, or - for standard input")
    """File with the examples, as in training but without labels; - reads lines from standard input, with a tab before
    the second text of a pair."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model."""

    GROUP: ClassVar = MODEL

    model: str | None = required("the folder of a fine-tuned model")
    """Folder of a fine-tuned model, or of its run."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The predictions."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = required("with --glue the folder of the submission", when="glue")
    """File to write: .jsonl, or .tsv, .txt, .json or .conll if the task has such a form (default: standard output)."""
    glue: str | None = None
    """GLUE task whose test set --text is: writes TASK.tsv in the format of GLUE's server into the folder --out, and
    submission.zip of all tasks in it."""
    overwrite: bool = False
    """Replace the file if it exists."""


@dataclass(frozen=True, kw_only=True)
class Config(PredictFlags, _Output, _Model, _Data, ModelFlags):
    """Predict with a fine-tuned model: labels with probabilities, numbers, tags and entities, answers with their
    position in the text, choices, or generated text; one JSON object per example."""

    def settings(self) -> dict[str, Any]:
        """Return the settings of the task that may differ from those of training."""
        return {field.name: getattr(self, field.name) for field in fields(PredictFlags)}


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    model, out = require(config, "model"), config.out
    check_model("--model", model)
    task = config.find_task(**config.settings())
    check_examples("--text", require(config, "text"), None, partial(task.read, labelled=False))
    if config.glue is not None:
        if require(config, "out").is_file():
            raise UserError(f"--out {out}: is a file; --glue writes to a folder")
        check_new_folder("--out", out, parents=True)
        return
    check_new_file("--out", out)
    if out is not None and out.exists() and not config.overwrite:
        raise UserError(f"--out {out}: exists; replace it with --overwrite")
    if out is not None:
        with named("--out"):
            file_kind(out, task.name)


def run(config: Config, *, quiet: bool = False) -> int:
    """Write a prediction for each example."""
    require(config, "model")
    text = require(config, "text")
    from fastbert.tasks import glue_submission, prediction_files

    out = config.out
    with Bars(quiet) as bars:
        trained = config.load(**config.settings())
        bars.message(f"{trained.task.name}: {trained.how}")
        dataset = trained.task.read(text, labelled=False)
        predictions = config.predict(trained, dataset, bars.stage)
    if config.glue is not None and out is not None:
        archive = glue_submission.write_submission(out, {config.glue: predictions})
        print(f"{archive}: with {counted(len(predictions), 'prediction')} of {config.glue}")
        return 0
    prediction_files.write_predictions(out or "-", trained.task.name, dataset, predictions)
    if out is not None:
        print(f"{out}: {counted(len(predictions), 'prediction')}")
    return 0
