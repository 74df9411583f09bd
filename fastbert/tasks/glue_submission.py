"""Write predictions of GLUE's test sets in the format of its server: one file per task, and all of them zipped."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tasks.examples import Prediction
from fastbert.tasks.metrics.glue import GLUE, glue_name
from fastbert.tasks.readers.cells import number

ARCHIVE = "submission.zip"
# Examples of the official test sets.
ROWS = {
    "CoLA": 1063,
    "SST-2": 1821,
    "MRPC": 1725,
    "STS-B": 1379,
    "QQP": 390965,
    "MNLI-m": 9796,
    "MNLI-mm": 9847,
    "QNLI": 5463,
    "RTE": 3000,
    "WNLI": 146,
    "AX": 1104,
}
_THREE = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")
# Labels on the server, by task; for the others they are 0 and 1, for STS-B numbers.
WORDS: dict[str, tuple[str, ...]] = {"MNLI-m": _THREE, "MNLI-mm": _THREE, "AX": _THREE, "QNLI": _TWO, "RTE": _TWO}
LOWEST, HIGHEST = 0.0, 5.0  # of STS-B


def write_submission(folder: str | Path, predictions: Mapping[str, Sequence[Prediction]]) -> Path:
    """Write `CoLA.tsv`, `MNLI-m.tsv` ... and `submission.zip` with all of them; return the path of the archive.

    `predictions` are those of the official test sets, in their order, by task. Rows are numbered from 0. STS-B's scores
    are clipped to 0 to 5 and have three decimals. Files of other tasks in the folder are zipped too. A file whose
    length is not the official one, and a missing task, are logged as warnings. Raises UserError for a label that the
    server does not accept.
    """
    texts: dict[str, str] = {}
    for name, items in predictions.items():
        task = glue_name(name)
        if f"{task}.tsv" in texts:
            raise UserError(f"two sets of predictions for {task}: leave one out")
        if len(items) != ROWS[task]:
            logger.warning("%s.tsv: has %d rows, the official test set %d", task, len(items), ROWS[task])
        rows = [f"{i}\t{_cell(task, item, f'{task}.tsv, line {i + 2}')}\n" for i, item in enumerate(items)]
        texts[f"{task}.tsv"] = "index\tprediction\n" + "".join(rows)
    before = [Path(folder) / f"{task}.tsv" for task in GLUE if f"{task}.tsv" not in texts]
    texts |= {path.name: path.read_text(encoding="utf-8") for path in before if path.is_file()}
    missing = [task for task in GLUE if f"{task}.tsv" not in texts]
    if missing:
        logger.warning("%s: without %s; the server requires a file for every task", folder, ", ".join(missing))
    with atomic_folder(Path(folder)) as partial:
        for name, text in texts.items():
            (partial / name).write_text(text, encoding="utf-8")
        with zipfile.ZipFile(partial / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in texts.items():
                entry = zipfile.ZipInfo(name)  # without the hour, so that the same predictions give the same bytes
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, text, zipfile.ZIP_DEFLATED)
    return Path(folder) / ARCHIVE


def _cell(task: str, prediction: Mapping[str, Any], where: str) -> str:
    """Return a prediction in the server's form."""
    if task == "STS-B":
        score = number(prediction.get("score", prediction.get("label")), where, "the predicted score")
        return f"{min(max(score, LOWEST), HIGHEST):.3f}"
    known = WORDS.get(task, ("0", "1"))
    label = str(prediction.get("label"))
    if label not in known:
        raise UserError(f"{where}: {label!r} is not a label of {task} on the server, which accepts {', '.join(known)}")
    return label
