"""Measure the memory and the time of a training step under each mode of activation checkpointing, by model size.

    python benchmarks/bench_checkpointing.py --quick
    python benchmarks/bench_checkpointing.py --models mini small base --threads 2 --json rows.json

Each mode trains in a process of its own, through `fastbert pretrain` on Python's documentation; the modes take turns.
Memory is the peak of the process above that of one which has run a toy model in the same mode, beside what
`fastbert plan` predicts without measuring. `none` saves all activations, `selective` recomputes what is cheap next to
matmuls, `layer` saves the input of each layer.
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
from fastbert.benchmarks.training.planned_options import Options, options_of, parser, run
from fastbert.benchmarks.training.planned_run import prepare_shards
from fastbert.planning.flags import PlanFlags
from fastbert.planning.plan import make_plan

MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"checkpoint_activations": True, "checkpoint_mode": "selective"},
    "layer": {"checkpoint_activations": True, "checkpoint_mode": "layer"},
}


def measure(options: Options, folder: Path, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Return a row per model and mode; ratios are to the mode none."""
    say("preparing the text")
    shards = prepare_shards(folder)
    rows: list[dict[str, Any]] = []
    for model in options.models:
        runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
        for _ in range(options.rounds):
            for mode, flags in MODES.items():
                runs[mode].append(run(model, options, shards, folder, **flags))
        plain: dict[str, Any] | None = None
        for mode, measured in runs.items():
            row = _row(model, mode, options, measured, shards, plain)
            plain = plain or row
            rows.append(row)
            say(shown(row))
    return rows


def _row(
    model: str,
    mode: str,
    options: Options,
    measured: Sequence[dict[str, Any]],
    shards: Path,
    plain: dict[str, Any] | None,
) -> dict[str, Any]:
    seconds = statistics.median(each["seconds"] for each in measured)
    tokens = statistics.mean(each["tokens"] for each in measured)
    peaks = [each["peak_bytes"] for each in measured if each["peak_bytes"] is not None]
    peak = round(statistics.median(peaks)) if peaks else None
    common = options.flags(model)
    plan = make_plan(
        PlanFlags(
            data=shards, device="cpu", utilisation="1", vocab_size=planned_run.VOCABULARY, **common, **MODES[mode]
        )
    )
    return {
        "workload": f"{model} {options.batch_size}x{options.max_length}",
        "mode": mode,
        "threads": options.threads,
        "dtype": plan.dtype,
        "median_ms": round(1e3 * seconds, 2),
        "tokens_per_second": round(tokens / seconds, 1),
        "ratio_to_none": 1.0 if plain is None else round(1e3 * seconds / plain["median_ms"], 4),
        "peak_bytes": peak,
        "predicted_peak_bytes": plan.memory.total - plan.memory.parts.get("framework", 0),
        "activations_bytes": plan.memory.activations,
        "details": {
            "rounds_ms": [round(1e3 * each["seconds"], 2) for each in measured],
            "processor_time": options.processor_time,
        },
    }


def shown(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    peak = "" if row["peak_bytes"] is None else f", {row['peak_bytes'] / 1e6:,.0f} MB"
    return (
        f"{row['workload']:<16} {row['mode']:<10} {row['median_ms']:>9,.1f} ms, {row['ratio_to_none']:.2f} x{peak}"
        f" ({row['predicted_peak_bytes'] / 1e6:,.0f} predicted, {row['activations_bytes'] / 1e6:,.0f} of activations)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options, flags = options_of(parser(__doc__, rounds="runs per mode"), arguments)
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
        rows = measure(options, Path(folder))
    if flags.json is not None:
        records.write(flags.json, records.record("checkpointing", rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
