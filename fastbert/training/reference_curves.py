"""Expected losses of pre-training, of `fastbert pretrain --compare`: a shipped band, or the curve of an earlier run.

A curve is stored as nats below the cross-entropy of word frequencies alone, which differs between corpora and
vocabularies far more than the rest of the loss does; a run's own cross-entropy turns it into losses. The shipped bands
are written by benchmarks/reference_curves.py from finished runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.untrusted_input import read_json_file

FILE = Path(__file__).with_suffix(".json")
MASKED, LTR = "masked", "ltr"
KINDS = {"mlm+nsp": MASKED, "mlm": MASKED, "mlm+sop": MASKED, "ltr": LTR, "bilm": "bilm", "rtd": "rtd"}
"""The kind of an objective's loss: losses of one kind can be compared."""


@dataclass(frozen=True, kw_only=True)
class ReferenceCurve:
    """Expected validation losses by the tokens trained on, in nats below word frequencies alone.

    `low` and `high` bound the losses of the runs that the curve was made of: `low` holds the larger distances.
    """

    name: str
    about: str
    tokens: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def losses(self, tokens: float, unigram: float) -> tuple[float, float] | None:
        """Return the lowest and the highest expected loss in nats after `tokens`, None outside the curve.

        `unigram` is the cross-entropy of word frequencies alone on the run's own text, in nats.
        """
        if not self.tokens[0] <= tokens <= self.tokens[-1]:
            return None
        right = max(bisect_left(self.tokens, tokens), 1)
        left = right - 1
        share = (tokens - self.tokens[left]) / (self.tokens[right] - self.tokens[left])
        low, high = (line[left] + share * (line[right] - line[left]) for line in (self.low, self.high))
        return unigram - low, unigram - high

    def described(self, tokens: float, loss: float, unigram: float) -> str:
        """Say where a validation loss stands."""
        expected = self.losses(tokens, unigram)
        if expected is None:
            where = "begins" if tokens < self.tokens[0] else "ends"
            end = self.tokens[0] if tokens < self.tokens[0] else self.tokens[-1]
            return f"{self.name} {where} at {millions(end)} tokens"
        low, high = expected
        stands = "below" if loss < low else "above" if loss > high else "within"
        band = f"{low:.3f}" if high - low < 5e-4 else f"{low:.3f} to {high:.3f}"
        return f"{stands} {band} of {self.name}" if stands != "within" or high > low else f"as {self.name}"


def millions(tokens: float) -> str:
    """Return a number of tokens in short."""
    return f"{tokens / 1e6:.1f}M" if tokens >= 1e6 else f"{tokens / 1e3:.0f}k"


@cache
def shipped() -> Mapping[str, Mapping[str, Any]]:
    """Return the shipped curves: name -> kind of loss -> fields of `ReferenceCurve`."""
    curves: dict[str, dict[str, Any]] = read_json_file(FILE)
    return curves


def check_reference(compare: str) -> None:
    """Raise `UserError` for what is neither a shipped curve nor the folder of a run with metrics."""
    if not (Path(compare) / "metrics.jsonl").is_file() and compare not in shipped():
        raise UserError(
            f"--compare {compare}: is neither a shipped curve ({', '.join(shipped())}) nor the folder of a run of"
            " pre-training (metrics.jsonl is missing)"
        )


def find_reference(compare: str, objective: str) -> ReferenceCurve:
    """Return a shipped curve by its name, or that of a run by its folder.

    Raises `UserError` for neither, for a run without validations, and for one whose loss is that of another task.
    """
    check_reference(compare)
    kind = KINDS[objective]
    if not (Path(compare) / "metrics.jsonl").is_file():
        kinds = shipped()[compare]
        if kind not in kinds:
            raise UserError(f"--compare {compare}: has no curve for --objective {objective}; leave it out")
        fields = kinds[kind]
        return ReferenceCurve(
            name=compare,
            about=fields["about"],
            **{line: tuple(fields[line]) for line in ("tokens", "low", "high")},
        )
    run = Path(compare)
    try:
        trained, points = points_of(run)
    except UserError as error:
        raise UserError(f"--compare {error}") from None
    if KINDS[trained] != kind:
        raise UserError(f"--compare {run}: was trained with --objective {trained}, this run with {objective}")
    lines = tuple(zip(*points, strict=True))
    return ReferenceCurve(name=run.name, about=f"the run {run}", tokens=lines[0], low=lines[1], high=lines[1])


def points_of(run: Path) -> tuple[str, list[tuple[float, float]]]:
    """Return the objective of a finished run, and tokens and nats below word frequencies of each validation.

    Raises `UserError` for a run that is not finished, or with fewer than two validations.
    """
    from fastbert.training.metrics import read_metrics

    config = read_json_file(run / "config.json")
    finished = config.get("finished")
    unigram = finished.get("unigram_cross_entropy") if isinstance(finished, dict) else None
    if not isinstance(unigram, int | float):
        raise UserError(f"{run}: is not a finished run of pre-training, whose word frequencies are known")
    history = [record for record in read_metrics(run / "metrics.jsonl") if record.split == "validation"]
    by_tokens = {record.tokens: unigram - record.mlm_loss for record in history if record.tokens > 0}
    if len(by_tokens) < 2:
        raise UserError(f"{run}: has fewer than two validations, of which no curve can be made")
    return str(config["run"]["objective"]), sorted(by_tokens.items())


def band(name: str, about: str, runs: Sequence[Sequence[tuple[float, float]]], points: int = 24) -> ReferenceCurve:
    """Return the curve between the lowest and the highest of several runs' points, over the tokens that all have."""
    first, last = max(run[0][0] for run in runs), min(run[-1][0] for run in runs)
    tokens = [first + (last - first) * number / (points - 1) for number in range(points)]
    curves = [
        ReferenceCurve(name=name, about=about, tokens=tuple(t for t, _ in run), low=line, high=line)
        for run in runs
        for line in [tuple(value for _, value in run)]
    ]
    values = [[curve.losses(position, 0.0) for curve in curves] for position in tokens]
    nats = [[-each[0] for each in line if each is not None] for line in values]
    return ReferenceCurve(
        name=name,
        about=about,
        tokens=tuple(round(position) for position in tokens),
        low=tuple(round(max(line), 4) for line in nats),
        high=tuple(round(min(line), 4) for line in nats),
    )


def fields_of(curve: ReferenceCurve) -> dict[str, Any]:
    """Return a curve as the file of shipped ones holds it."""
    return {field: value for field, value in asdict(curve).items() if field != "name"}
