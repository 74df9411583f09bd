"""Compare a model of transformers with its accelerated form on the user's own text."""

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
SECONDS_PER_PASS = 3.0
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One side: medians over the rounds, without tokenizing, and the peak memory of its process."""

    seconds: float
    texts_per_second: float
    tokens_per_second: float
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The result of `verify`. Differences are those of outputs at real tokens; cosines are those of token vectors and
    of each text's mean vector (both are the outputs themselves if the model returns one vector per text)."""

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
    """The parts that were not accelerated, with reasons."""
    tolerance: float
    """The bound of the largest difference, for fp32."""
    min_cosine: float
    """The bound of the lowest cosine of a token vector, for bf16 and fp16."""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Return whether the outputs are equal within the tolerance of the dtype; a NaN on one side is a difference."""
        if self.dtype == "fp32":
            return self.max_abs_difference <= self.tolerance
        return self.min_token_cosine >= self.min_cosine

    @property
    def speedup(self) -> float:
        """Return the speed-up of the accelerated model."""
        return self.original.seconds / self.accelerated.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and properties, for JSON."""
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
    """Compare the outputs and the speed of a model of transformers with those of its accelerated form.

    `model` is a folder, or the id of a model in the local Hub cache; nothing is downloaded. Each side runs
    in its own process, on the same padded batches of `batch_size` texts in their order, truncated to `max_length`
    tokens. All outputs are compared; then both sides are timed in turn, `rounds` times. `progress` receives the stage,
    the completed steps and their total. Raises UserError for wrong input, and for a model that cannot be accelerated.
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
    report = progress or (lambda *_: None)
    settings = {
        "model": os.fspath(model), "task": task, "max_length": max_length, "batch_size": batch_size, "dtype": dtype,
        "device": device, "threads": threads,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="fastbert-verify-") as folder,
        _Worker(settings, folder, accelerate=False) as original,
        _Worker(settings, folder, accelerate=True) as accelerated,
    ):
        report("loading", 0, 2)
        facts = original.call("load", settings=original.settings, texts=texts)
        report("loading", 1, 2)
        accelerated.call("load", settings=accelerated.settings, texts=texts)
        report("loading", 2, 2)
        differences = _compare(original, accelerated, facts["lengths"], report)
        seconds, share = _time(original, accelerated, differences.seconds, rounds, report)
        ends = [side.call("finish") for side in (original, accelerated)]
    tokens = sum(map(sum, facts["lengths"]))
    timed = sum(sum(facts["lengths"][batch]) for batch in share), sum(len(facts["lengths"][batch]) for batch in share)
    sides = [
        Measured(
            seconds=median,
            tokens_per_second=timed[0] / median,
            texts_per_second=timed[1] / median,
            peak_bytes=end["peak_bytes"],
        )
        for median, end in zip(seconds, ends, strict=True)
    ]
    return VerifyReport(
        model=os.fspath(model), architecture=facts["architecture"], parameters=facts["parameters"], task=task,
        dtype=dtype, device=device, threads=threads, batch_size=batch_size, texts=len(texts), tokens=tokens,
        padding_share=1 - tokens / facts["slots"], original=sides[0], accelerated=sides[1],
        notes=tuple(ends[1]["notes"]), tolerance=tolerance, min_cosine=min_cosine,
        versions={name: version(package) for name, package in PACKAGES.items()},
        **differences.summary(),
    )  # fmt: skip


class _Worker:
    """The process of one side, called over a pipe."""

    def __init__(self, settings: dict[str, Any], folder: str, *, accelerate: bool) -> None:
        self.settings = {**settings, "accelerate": accelerate}
        self.output = Path(folder) / ("accelerated" if accelerate else "original")
        self.log = self.output.with_suffix(".log")
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
            stdout=subprocess.PIPE, stderr=self.log.open("wb"), env=environment, text=True, encoding="utf-8",
        )  # fmt: skip

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def compute(self, batch: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the outputs of a batch, fp32 (rows, width), and their details: shape, seconds, `of_tokens`."""
        details = self.call("compute", batch=batch, file=str(self.output))
        return np.fromfile(self.output, dtype=np.float32).reshape(details["shape"]), details

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the process. Raises UserError with its error, or the last line of a process that ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"method": method, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self.process.wait()
            last = self.log.read_text(errors="replace").strip().splitlines() or ["no message"]
            which = "accelerated" if self.settings["accelerate"] else "original"
            raise UserError(f"the process of the {which} model ended with code {code}: {last[-1]}")
        response = json.loads(line)
        if "error" in response:
            raise UserError(response["error"])
        return response["result"]


@dataclass
class _Differences:
    """Differences and cosines of the outputs, accumulated over batches."""

    largest: float = 0.0
    total: float = 0.0
    values: int = 0
    tokens: list[np.ndarray] = field(default_factory=list)
    texts: list[np.ndarray] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, original: np.ndarray, accelerated: np.ndarray, lengths: Sequence[int] | None) -> None:
        """Add rows of both sides; `lengths` are the numbers of rows per text, None for one row per text."""
        original, accelerated = original.astype(np.float64), accelerated.astype(np.float64)
        # The same infinity on both sides is not a difference.
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.where(original == accelerated, 0.0, original - accelerated))
        self.largest = float(np.maximum(self.largest, difference.max(initial=0.0)))  # keeps a NaN
        self.total, self.values = self.total + float(difference.sum()), self.values + difference.size
        self.tokens.append(_cosines(original, accelerated))
        if lengths is None:
            self.texts.append(self.tokens[-1])
            return
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        count = np.asarray(lengths)[:, None]
        means = (np.add.reduceat(rows, starts) / count for rows in (original, accelerated))
        self.texts.append(_cosines(*means))

    def summary(self) -> dict[str, float]:
        """Return the fields of the report."""
        tokens, texts = np.concatenate(self.tokens), np.concatenate(self.texts)
        return {
            "max_abs_difference": self.largest,
            "mean_abs_difference": self.total / max(self.values, 1),
            "min_token_cosine": float(tokens.min()),
            "mean_token_cosine": float(tokens.mean()),
            "min_text_cosine": float(texts.min()),
            "mean_text_cosine": float(texts.mean()),
        }


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of rows; that of equal rows, also of zeros, is 1."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))
    result: np.ndarray = np.where((a == b).all(-1), 1.0, cosines)
    return result


def _compare(original: _Worker, accelerated: _Worker, lengths: list[list[int]], report: Progress) -> _Differences:
    differences = _Differences()
    for batch, text_lengths in enumerate(lengths):
        report("comparing", batch, len(lengths))
        (expected, details), (actual, _) = original.compute(batch), accelerated.compute(batch)
        if expected.shape != actual.shape:
            shapes = f"{expected.shape} and {actual.shape}"
            raise UserError(f"batch {batch}: the outputs have shapes {shapes}: they are not from the same model")
        differences.add(expected, actual, text_lengths if details["of_tokens"] else None)
        differences.seconds.append(details["seconds"])
    report("comparing", len(lengths), len(lengths))
    return differences


def _time(
    original: _Worker, accelerated: _Worker, seconds: list[float], rounds: int, report: Progress
) -> tuple[list[float], list[int]]:
    """Return the median seconds of each side for a selection of batches, timed in turn, and the selection."""
    step = max(1, round(sum(seconds) / SECONDS_PER_PASS))
    batches = list(range(0, len(seconds), step))
    times: tuple[list[float], list[float]] = ([], [])
    for done in range(rounds):
        report("timing", done, rounds)
        for side, durations in zip((original, accelerated), times, strict=True):
            durations.append(side.call("time", batches=batches))
    report("timing", rounds, rounds)
    return [statistics.median(durations) for durations in times], batches
