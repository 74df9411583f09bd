"""`fastbert predict`: a fine-tuned model on a file, or on standard input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastbert.cli.common import Bars, output, require
from fastbert.errors import UserError
from fastbert.finetuning.config import TaskName


@dataclass(frozen=True, kw_only=True)
class Config:
    """Predict with a fine-tuned model: labels with probabilities, numbers, tags and entities, answers with their
    place in the text, choices, or written text; a JSON object an example."""

    model: str | None = None
    """Folder of a fine-tuned model (RUN/model)."""
    text: str | None = None
    """File with the examples, as in training but without labels; - for lines from standard input, the second text of a
    pair behind a tab."""
    out: Path | None = None
    """File to write, .jsonl, or .json, .conll or .tsv where the task has such a form (default: standard output)."""
    task: TaskName | None = None
    """Kind of the task, where the folder does not say."""
    text_column: str | None = None
    """Column or key of the text (the first of a pair, the question, the prompt, the source)."""
    pair_column: str | None = None
    """Column or key of the second text of a pair."""
    id_column: str | None = None
    """Column or key that names an example."""
    n_best: int | None = None
    """Span: answers written for each question (default: as in training)."""
    null_threshold: float | None = None
    """Span: how much better than the best answer no answer must score to be given (default: as in training)."""
    beams: int | None = None
    """Sequence to sequence: hypotheses that beam search keeps (default: as in training)."""
    batch_tokens: int | None = None
    """Tokens to compute at a time (default: 4096, on a GPU 65536)."""
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """What to multiply: auto is the fastest of fp32 and bf16 here; int8, on CPUs, is faster still and less exact."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute: auto takes a GPU if there is one."""
    glue: str | None = None
    """Name of the GLUE task whose test set --text is: writes TASK.tsv as GLUE's server wants it into the folder --out,
    and submission.zip of all tasks that are there."""
    overwrite: bool = False
    """Replace the file if it exists."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Write a prediction for each example."""
    source = require(config.model, "--model", "the folder of a fine-tuned model")
    text = require(config.text, "--text", "a file with the examples, or - for standard input")
    from fastbert.tasks.glue_submission import write_submission
    from fastbert.tasks.predicting import predict
    from fastbert.tasks.prediction_files import file_kind, write_predictions
    from fastbert.tasks.task import Columns
    from fastbert.tasks.trained import load_trained

    out = config.out
    if config.glue is not None:
        out = require(out, "--out", "with --glue the folder of the submission")
        if out.is_file():
            raise UserError(f"--out {out}: is a file; --glue writes to a folder")
    elif out is not None and out.exists() and not config.overwrite:
        raise UserError(f"--out {out}: exists; replace it with --overwrite")
    with Bars(quiet) as bars:
        trained = load_trained(
            source,
            task=config.task,
            device=config.device,
            dtype=config.dtype,
            columns=Columns(text=config.text_column, pair=config.pair_column, id=config.id_column),
            n_best=config.n_best,
            null_threshold=config.null_threshold,
            beams=config.beams,
        )
        bars.message(f"{trained.task.name}: {trained.how}")
        if out is not None and config.glue is None:
            file_kind(out, trained.task.name)
        dataset = trained.task.read(text, labelled=False)
        update = bars.stage("predicting", None)
        predictions = predict(
            trained.task,
            trained.model,
            trained.tokenizer,
            dataset,
            batch_tokens=config.batch_tokens,
            progress=lambda rows: update(rows, f"{rows:,} rows"),
        )
    if config.glue is not None and out is not None:
        archive = write_submission(out, {config.glue: predictions})
        output(f"{archive}: with {len(predictions):,} predictions of {config.glue}")
        return 0
    write_predictions(out or "-", trained.task.name, dataset, predictions)
    if out is not None:
        output(f"{out}: {len(predictions):,} predictions")
    return 0
