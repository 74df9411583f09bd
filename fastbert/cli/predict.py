"""`fastbert predict`: a fine-tuned model on a file, or on standard input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastbert.cli.common import Bars, output, require
from fastbert.cli.model_flags import ModelFlags
from fastbert.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Config(ModelFlags):
    """Predict with a fine-tuned model: labels with probabilities, numbers, tags and entities, answers with their
    place in the text, choices, or written text; a JSON object an example."""

    text: str | None = None
    """File with the examples, as in training but without labels; - for lines from standard input, the second text of a
    pair behind a tab."""
    out: Path | None = None
    """File to write, .jsonl, or .json, .conll or .tsv where the task has such a form (default: standard output)."""
    n_best: int | None = None
    """Span: answers written for each question (default: as in training)."""
    null_threshold: float | None = None
    """Span: how much better than the best answer no answer must score to be given (default: as in training)."""
    num_beams: int | None = None
    """Sequence to sequence: hypotheses that beam search keeps (default: as in training)."""
    glue: str | None = None
    """Name of the GLUE task whose test set --text is: writes TASK.tsv as GLUE's server wants it into the folder --out,
    and submission.zip of all tasks that are there."""
    overwrite: bool = False
    """Replace the file if it exists."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Write a prediction for each example."""
    require(config.model, "--model", "the folder of a fine-tuned model")
    text = require(config.text, "--text", "a file with the examples, or - for standard input")
    from fastbert.tasks.glue_submission import write_submission
    from fastbert.tasks.prediction_files import file_kind, write_predictions

    out = config.out
    if config.glue is not None:
        out = require(out, "--out", "with --glue the folder of the submission")
        if out.is_file():
            raise UserError(f"--out {out}: is a file; --glue writes to a folder")
    elif out is not None and not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: no such folder {out.parent}; make it first")
    elif out is not None and out.exists() and not config.overwrite:
        raise UserError(f"--out {out}: exists; replace it with --overwrite")
    with Bars(quiet) as bars:
        trained = config.load(n_best=config.n_best, null_threshold=config.null_threshold, beams=config.num_beams)
        bars.message(f"{trained.task.name}: {trained.how}")
        if out is not None and config.glue is None:
            file_kind(out, trained.task.name)
        dataset = trained.task.read(text, labelled=False)
        predictions = config.predict(trained, dataset, bars.stage)
    if config.glue is not None and out is not None:
        archive = write_submission(out, {config.glue: predictions})
        output(f"{archive}: with {len(predictions):,} predictions of {config.glue}")
        return 0
    write_predictions(out or "-", trained.task.name, dataset, predictions)
    if out is not None:
        output(f"{out}: {len(predictions):,} predictions")
    return 0
