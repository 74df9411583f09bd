"""A model of transformers and the same model accelerated, side by side on the user's own text."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fastbert.errors import UserError

Task = Literal["base", "fill-mask", "text-classification", "token-classification"]
DType = Literal["fp32", "bf16", "fp16"]
TOLERANCE, MIN_COSINE = 2e-5, 0.999
PACKAGES = {"fastbert": "fastbert-engine", "torch": "torch", "transformers": "transformers"}
# A pass over the text that takes longer is timed on a part of it, spread evenly.
SECONDS_A_PASS = 3.0
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One side: medians over the rounds of the model alone, tokenizing not counted, and its process's peak memory."""

    seconds: float
    texts_per_second: float
    tokens_per_second: float
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What came out. Differences are those of the outputs at real tokens; cosines of token vectors, and of the means
    of each text's tokens (both are the outputs of texts where the model gives one vector a text)."""

    model: str
    architecture: str
    parameters: int
    task: str
    dtype: str
    device: str
    threads: int | None
    batch_size: int
    texts: int
    tokens: int
    padding_share: float
    max_abs_difference: float
    mean_abs_difference: float
    min_token_cosine: float
    mean_token_cosine: float
    min_text_cosine: float
    mean_text_cosine: float
    original: Measured
    accelerated: Measured
    notes: tuple[str, ...]
    """What was not accelerated, and why."""
    tolerance: float
    """Of the largest difference, in fp32."""
    min_cosine: float
    """Of the lowest cosine of a token vector, in bf16 and fp16."""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Return whether the outputs are the same within the tolerance of the dtype; a NaN on one side is not."""
        if self.dtype == "fp32":
            return self.max_abs_difference <= self.tolerance
        return self.min_token_cosine >= self.min_cosine

    @property
    def speedup(self) -> float:
        """Return the speed-up of the accelerated model."""
        return self.original.seconds / self.accelerated.seconds

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**asdict(self), "agrees": self.agrees, "speedup": self.speedup}


def verify(
    model: str | Path,
    texts: Sequence[str],
    *,
    task: Task = "base",
    max_length: int = 512,
    batch_size: int = 32,
    dtype: DType = "fp32",
    device: Literal["cpu", "cuda"] = "cpu",
    threads: int | None = None,
    tolerance: float = TOLERANCE,
    min_cosine: float = MIN_COSINE,
    rounds: int = 5,
    progress: Progress | None = None,
) -> VerifyReport:
    """Run `texts` through a model of transformers as it is and through the same model accelerated, and compare.

    `model` is a folder, or the id of a model in the local Hub cache; nothing is downloaded. Each side is a process of
    its own; batches are of `batch_size` texts in the order given, cut to `max_length` tokens, padded, for both alike.
    All outputs are compared; then both sides are timed in turn, `rounds` times. `progress` is told what is done, how
    far it is, and of how much. Raises UserError for wrong input, and for a model that cannot be accelerated.
    """
    texts = [text for text in texts if text.strip()]
    if importlib.util.find_spec("transformers") is None:
        raise UserError("verify compares with transformers, which is not installed: `pip install 'transformers>=5.10'`")
    if not texts:
        raise UserError("there is no text to verify with: give at least one line that is not empty")
    for name, value, low in (("max_length", max_length, 3), ("batch_size", batch_size, 1), ("rounds", rounds, 1)):
        if value < low:
            raise UserError(f"{name}={value} must be at least {low}")
    if threads is not None and threads < 1:
        raise UserError(f"threads={threads} must be at least 1")
    tell = progress or (lambda *_: None)
    settings = {
        "model": os.fspath(model), "task": task, "max_length": max_length, "batch_size": batch_size, "dtype": dtype,
        "device": device, "threads": threads,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="fastbert-verify-") as folder,
        _Worker(settings, folder, accelerate=False) as original,
        _Worker(settings, folder, accelerate=True) as accelerated,
    ):
        tell("loading", 0, 2)
        facts = original.ask("load", settings=original.settings, texts=texts)
        tell("loading", 1, 2)
        accelerated.ask("load", settings=accelerated.settings, texts=texts)
        tell("loading", 2, 2)
        found = _compare(original, accelerated, facts["lengths"], tell)
        seconds, share = _time(original, accelerated, found.seconds, rounds, tell)
        ends = [side.ask("finish") for side in (original, accelerated)]
    tokens = sum(map(sum, facts["lengths"]))
    timed = sum(sum(facts["lengths"][batch]) for batch in share), sum(len(facts["lengths"][batch]) for batch in share)
    sides = [
        Measured(
            seconds=one, tokens_per_second=timed[0] / one, texts_per_second=timed[1] / one, peak_bytes=end["peak_bytes"]
        )
        for one, end in zip(seconds, ends, strict=True)
    ]
    return VerifyReport(
        model=os.fspath(model), architecture=facts["architecture"], parameters=facts["parameters"], task=task,
        dtype=dtype, device=device, threads=threads, batch_size=batch_size, texts=len(texts), tokens=tokens,
        padding_share=1 - tokens / facts["slots"], original=sides[0], accelerated=sides[1],
        notes=tuple(ends[1]["notes"]), tolerance=tolerance, min_cosine=min_cosine,
        versions={name: version(package) for name, package in PACKAGES.items()},
        **found.summary(),
    )  # fmt: skip


class _Worker:
    """One side's process, asked over a pipe."""

    def __init__(self, settings: dict[str, Any], folder: str, *, accelerate: bool) -> None:
        self.settings = {**settings, "accelerate": accelerate}
        self.output = Path(folder) / ("accelerated" if accelerate else "original")
        self.said = self.output.with_suffix(".log")
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "PYTHONIOENCODING": "utf-8",
        }
        if settings["threads"]:
            environment["OMP_NUM_THREADS"] = str(settings["threads"])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fastbert.integrations.verify_worker"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.said.open("wb"), env=environment, text=True, encoding="utf-8",
        )  # fmt: skip

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def compute(self, batch: int) -> tuple[np.ndarray, dict[str, Any]]:
        """The outputs of a batch, fp32 (rows, width), with their shape and seconds."""
        answer = self.ask("compute", batch=batch, file=str(self.output))
        return np.fromfile(self.output, dtype=np.float32).reshape(answer["shape"]), answer

    def ask(self, method: str, **arguments: Any) -> Any:
        """The answer to a question. Raises UserError with what is wrong, or the last line of a process that died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": method, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self.process.wait()
            last = self.said.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            which = "accelerated" if self.settings["accelerate"] else "original"
            raise UserError(f"the process of the {which} model ended with code {code}: {last[-1]}")
        answer = json.loads(line)
        if "wrong" in answer:
            raise UserError(answer["wrong"])
        return answer["result"]


@dataclass
class _Found:
    """Differences and cosines, batch after batch."""

    largest: float = 0.0
    total: float = 0.0
    values: int = 0
    tokens: list[np.ndarray] = field(default_factory=list)
    texts: list[np.ndarray] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, one: np.ndarray, other: np.ndarray, lengths: Sequence[int] | None) -> None:
        """Rows of both sides; `lengths`: how many of them are each text's, None for one a text."""
        one, other = one.astype(np.float64), other.astype(np.float64)
        # The same infinity on both sides is no difference.
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.where(one == other, 0.0, one - other))
        self.largest = float(np.maximum(self.largest, difference.max(initial=0.0)))  # a NaN stays one
        self.total, self.values = self.total + float(difference.sum()), self.values + difference.size
        self.tokens.append(_cosines(one, other))
        if lengths is None:
            self.texts.append(self.tokens[-1])
            return
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        count = np.asarray(lengths)[:, None]
        self.texts.append(_cosines(np.add.reduceat(one, starts) / count, np.add.reduceat(other, starts) / count))

    def summary(self) -> dict[str, float]:
        """The numbers of the report."""
        tokens, texts = np.concatenate(self.tokens), np.concatenate(self.texts)
        return {
            "max_abs_difference": self.largest,
            "mean_abs_difference": self.total / max(self.values, 1),
            "min_token_cosine": float(tokens.min()),
            "mean_token_cosine": float(tokens.mean()),
            "min_text_cosine": float(texts.min()),
            "mean_text_cosine": float(texts.mean()),
        }


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The cosine of each pair of rows; equal rows, also of zeros, have 1."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = (one * other).sum(-1) / (np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1))
    result: np.ndarray = np.where((one == other).all(-1), 1.0, cosines)
    return result


def _compare(original: _Worker, accelerated: _Worker, lengths: list[list[int]], tell: Progress) -> _Found:
    found = _Found()
    for batch, of_texts in enumerate(lengths):
        tell("comparing", batch, len(lengths))
        (one, answer), (other, _) = original.compute(batch), accelerated.compute(batch)
        if one.shape != other.shape:
            raise UserError(f"batch {batch}: the outputs have shapes {one.shape} and {other.shape}: not one model")
        found.add(one, other, of_texts if answer["of_tokens"] else None)
        found.seconds.append(answer["seconds"])
    tell("comparing", len(lengths), len(lengths))
    return found


def _time(
    original: _Worker, accelerated: _Worker, seconds: list[float], rounds: int, tell: Progress
) -> tuple[list[float], list[int]]:
    """The median seconds of each side for some batches, asked in turn, and which batches these are."""
    step = max(1, round(sum(seconds) / SECONDS_A_PASS))
    batches = list(range(0, len(seconds), step))
    times: tuple[list[float], list[float]] = ([], [])
    for done in range(rounds):
        tell("timing", done, rounds)
        for side, taken in zip((original, accelerated), times, strict=True):
            taken.append(side.ask("time", batches=batches))
    tell("timing", rounds, rounds)
    return [statistics.median(taken) for taken in times], batches
