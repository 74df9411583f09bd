"""The scores of an adaptation by stage: RUN/results.json, written after each of them, and the table that is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.untrusted_input import read_json_object

FILE, FORMAT, VERSION = "results.json", "fastbert-adaptation", 1
BEFORE, PRETRAINED, ADAPTED = "before", "pretrained", "adapted"
TITLES = {BEFORE: "before", PRETRAINED: "after pre-training", ADAPTED: "after contrastive training"}
RETRIEVAL = {"ndcg@10": "nDCG@10", "mrr@10": "MRR@10", "recall@10": "recall@10"}


@dataclass
class Results:
    """Scores by stage, `BEFORE`, `PRETRAINED` and `ADAPTED`."""

    held_out: dict[str, int] = field(default_factory=dict)
    """Counts of the held-out text: documents, sentences, and queries, each with one passage to find."""
    masked_lm: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By stage: `loss` in nats, `accuracy` in percent, and `new_head`, true if the model had no trained head."""
    word_frequencies: float | None = None
    """The cross-entropy of a unigram model of the training text, in nats per token of the held-out text."""
    retrieval: dict[str, dict[str, float]] = field(default_factory=dict)
    """By stage: metrics in percent."""
    finished: bool = False

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Return the results in the folder of a run, empty ones where there are none. Raises `UserError` for a file of
        another kind or a newer version, `CheckpointError` for a damaged one."""
        path = folder / FILE
        if not path.exists():
            return cls()
        values = read_json_object(path)
        version = values.get("version")
        if values.get("format") != FORMAT or not isinstance(version, int):
            raise UserError(f"{path}: does not hold the results of an adaptation; move it, or choose another --out")
        if version > VERSION:
            raise UserError(f"{path}: written by a newer fastbert (version {version}); update fastbert")
        return cls(**{item.name: values[item.name] for item in fields(cls) if item.name in values})

    def write(self, folder: Path) -> None:
        """Write results.json to the folder of a run, atomically. Raises OSError."""
        write_json_atomic(folder / FILE, {"format": FORMAT, "version": VERSION, **asdict(self)})

    def table(self) -> str:
        """Return the scores as a table in plain text, one row per stage."""
        count = self.held_out
        lines = [
            f"held-out text: {count.get('documents', 0):,} documents, {count.get('sentences', 0):,} sentences;"
            f" {count.get('queries', 0):,} passages as queries, each for the next one",
            "",
            f"{'':<28}{'masked-LM loss':>14}{'accuracy':>10}" + "".join(f"{name:>11}" for name in RETRIEVAL.values()),
        ]
        if self.word_frequencies is not None:
            lines.append(f"{'word frequencies alone':<28}{self.word_frequencies:>14.3f}")
        for stage, title in TITLES.items():
            masked, retrieval = self.masked_lm.get(stage), self.retrieval.get(stage)
            if masked is not None or retrieval is not None:
                lines.append(f"{title:<28}{_masked_cells(masked)}{_retrieval_cells(retrieval)}".rstrip())
        if self.masked_lm.get(BEFORE, {}).get("new_head"):
            lines.append("* of a new head, since the model has no trained one")
        return "\n".join(lines)


def _masked_cells(scores: Mapping[str, Any] | None) -> str:
    if scores is None:
        return f"{'':>14}{'':>10}"
    mark = "*" if scores["new_head"] else ""
    loss, accuracy = f"{scores['loss']:.3f}", f"{scores['accuracy']:.1f} %"
    return f"{mark + loss:>14}{accuracy:>10}"


def _retrieval_cells(scores: Mapping[str, float] | None) -> str:
    return "" if scores is None else "".join(f"{scores[name]:>11.2f}" for name in RETRIEVAL)
