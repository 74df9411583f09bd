"""Compare what `fastbert plan` predicts with runs of `fastbert pretrain`: the time of a step, and the peak of memory.

    python benchmarks/bench_plan.py --quick
    python benchmarks/bench_plan.py --models mini small base --threads 2 --json rows.json

A prediction measures steps of models with fewer layers, on random tokens, in a process of its own; the run trains the
whole model on Python's documentation, through `pretrain`. They take turns. Memory is the peak above that of a process
which has run a toy model. With --processor-time, for one thread on a machine that others use, seconds are those of the
processor.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.training import planned_run
from fastbert.benchmarks.training.planned_options import Options, call, options_of, parser, run
from fastbert.benchmarks.training.planned_run import prepare_shards

GOAL = 0.15  # of the issue: predictions within 15 % of measurements


def measure(options: Options, folder: Path, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Return a row per model, with predictions, measurements and their ratios."""
    say("preparing the text")
    shards = prepare_shards(folder)
    rows = []
    for model in options.models:
        predictions, runs = [], []
        for _ in range(options.rounds):
            predictions.append(predict(model, options, shards))
            runs.append(run(model, options, shards, folder))
        rows.append(_row(model, options, predictions, runs))
        say(shown(rows[-1]))
    return rows


def predict(model: str, options: Options, shards: Path, **flags: Any) -> dict[str, Any]:
    """Return a prediction, from a process of its own."""
    arguments = {"shards": str(shards), "threads": options.threads, "processor_time": options.processor_time}
    flags = {**options.flags(model), "vocab_size": planned_run.VOCABULARY, **flags}
    return call("Prediction", "predict", {**arguments, "flags": flags}, options.threads)


def _row(
    model: str, options: Options, predictions: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the medians of a model's rounds; rates are compared, since batches of text differ in their tokens."""
    predicted, measured = (
        statistics.median(each["tokens"] / each["seconds"] for each in group) for group in (predictions, runs)
    )
    peaks = [each["peak_bytes"] for each in runs if each["peak_bytes"] is not None]
    peak = statistics.median(peaks) if peaks else None
    expected = statistics.median(each["peak_bytes"] for each in predictions)
    return {
        "workload": f"{model} {options.batch_size}x{options.max_length}",
        "threads": options.threads,
        "dtype": options.dtype,
        "predicted_tokens_per_second": round(predicted, 1),
        "tokens_per_second": round(measured, 1),
        "ratio": round(predicted / measured, 4),
        "predicted_peak_bytes": round(expected),
        "peak_bytes": None if peak is None else round(peak),
        "memory_ratio": None if peak is None else round(expected / peak, 4),
        "median_ms": round(1e3 * statistics.median(each["seconds"] for each in runs), 2),
        "details": {
            "predictions": [round(each["tokens"] / each["seconds"], 1) for each in predictions],
            "runs": [round(each["tokens"] / each["seconds"], 1) for each in runs],
            "parts_bytes": predictions[0]["parts_bytes"],
            "layers_measured": predictions[0]["layers_measured"],
            "processor_time": options.processor_time,
        },
    }


def shown(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    memory = ""
    if row["memory_ratio"] is not None:
        predicted, peak = row["predicted_peak_bytes"] / 1e6, row["peak_bytes"] / 1e6
        memory = f"; {predicted:,.0f} MB predicted, {peak:,.0f} measured, {row['memory_ratio'] - 1:+.1%}"
    rates = f"{row['predicted_tokens_per_second']:,.0f} tokens/s predicted, {row['tokens_per_second']:,.0f} measured"
    within = all(abs(row[name] - 1) <= GOAL for name in ("ratio", "memory_ratio") if row[name] is not None)
    return f"{row['workload']:<16} {rates}, {row['ratio'] - 1:+.1%}{memory}{'' if within else '  (not within 15 %)'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 1 if a prediction is more than 15 % off."""
    options, flags = options_of(parser(__doc__, rounds="predictions and runs per model"), arguments)
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
        rows = measure(options, Path(folder))
    if flags.json is not None:
        records.write(flags.json, records.record("plan", rows))
    off = [row for row in rows if abs(row["ratio"] - 1) > GOAL or abs((row["memory_ratio"] or 1) - 1) > GOAL]
    return 1 if off and not flags.quick else 0


if __name__ == "__main__":
    sys.exit(main())
