"""The tables and the records of the speed run, from the summaries of its runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.quietness import BUSY_SHARE
from fastbert.errors import UserError

RESULTS = Path(__file__).resolve().parents[1] / "results" / "speedrun"
SCORES = ("mlm_loss", "mlm_accuracy", "blimp", "sst2", "stsb")
COLUMNS = {"mlm_loss": ("MLM loss", 3), "blimp": ("BLiMP", 1), "sst2": ("SST-2", 1), "stsb": ("STS-B", 1)}
COSTS = ("training_seconds", "command_seconds", "steps", "tokens", "tokens_per_second")
SETTINGS = ("minutes", "machine", "flags", "processes", "threads")


def line(summary: Mapping[str, Any]) -> str:
    """Return a run's scores in one line."""
    return (
        f"{summary['name']}, seed {summary['seed']}: MLM loss {summary['mlm_loss']:.3f}, BLiMP {summary['blimp']:.1f},"
        f" SST-2 {summary['sst2']:.1f}, STS-B {summary['stsb']:.1f}; {summary['tokens']:,} tokens in"
        f" {summary['training_seconds']:,.0f} s"
    )


def rows(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per entry: mean and sample standard deviation of each score over the seeds, and what runs cost.

    Raises `UserError` for runs of one entry that differ in more than their seed."""
    table = []
    for name in dict.fromkeys(summary["name"] for summary in summaries):
        runs = [summary for summary in summaries if summary["name"] == name]
        for other in runs[1:]:
            _require_same_settings(runs[0], other)
        row: dict[str, Any] = {
            "workload": f"{runs[0]['minutes']:g} minutes on {runs[0]['machine']}",
            "contender": name,
            "flags": runs[0]["flags"],
            "processes": runs[0]["processes"],
            "threads": runs[0]["threads"],
            "seeds": [summary["seed"] for summary in runs],
        }
        for key in SCORES:
            values = [summary[key] for summary in runs]
            row[key] = round(statistics.fmean(values), 4)
            row[f"{key}_std"] = round(statistics.stdev(values), 4) if len(values) > 1 else None
            row[f"{key}_per_seed"] = [round(value, 4) for value in values]
        for key in COSTS:
            row[key] = round(statistics.fmean(summary[key] for summary in runs), 1)
        row["busy_before"] = max(summary["busy_before"] for summary in runs)
        row["commit_per_seed"] = [summary["commit"] for summary in runs]
        table.append({**row, "commit": runs[-1]["commit"], "versions": runs[-1]["versions"]})
    return table


def _require_same_settings(first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise `UserError` for two runs of one entry whose scores must not be averaged."""
    pairs = [(key, first[key], other[key]) for key in SETTINGS]
    pairs.append(("fine-tuning seeds", len(first["sst2_seeds"]), len(other["sst2_seeds"])))
    for key, value, differing in pairs:
        if value != differing:
            raise UserError(
                f"{other['name']}: seed {other['seed']} has {key} {differing}, but seed {first['seed']} has {value};"
                " repeat one of them with --again"
            )


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the summaries in the logs of a machine class, in the order of the table. Raises `UserError` for runs that
    were trained on different data."""
    files = sorted(folder.glob("*/seed-*/summary.json"))
    summaries: list[dict[str, Any]] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    hashes = {summary["data_sha256"] for summary in summaries}
    if len(hashes) > 1:
        raise UserError(f"{folder}: its runs were trained on different data ({', '.join(sorted(hashes))})")
    return sorted(summaries, key=lambda summary: (summary["minutes"], summary["name"], summary["seed"]))


def write(logs: Path, results: Path = RESULTS) -> str:
    """Write the record of each machine class that has logs; return the tables of their rows. Raises `UserError` without
    logs, and as `rows` and `read` do."""
    texts = []
    for folder in sorted({file.parents[2] for file in logs.glob("*/*/seed-*/summary.json")}):
        summaries = read(folder)
        table, last = rows(summaries), summaries[-1]
        record = records.record("speedrun", table, settings={"data_sha256": last["data_sha256"]})
        # Those of the runs, which may be of other machines than this one.
        record |= {"machine": last["machine_details"], "versions": last["versions"], "commit": last["commit"]}
        records.write(results / f"{folder.name}.json", record)
        texts.append("\n\n".join([f"{folder.name}:", table_of(table), *_busy(table)]))
    if not texts:
        raise UserError(f"{logs}: holds no run; name an entry to run")
    return "\n\n".join(texts)


def _busy(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line per entry with a run that did not have the machine to itself."""
    return [
        f"{row['contender']}: other programs took {row['busy_before']:.0%} of the cores' time before a run began"
        for row in rows
        if row["busy_before"] >= BUSY_SHARE
    ]


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table: means, with standard deviations where there are several seeds."""
    names = (
        "entry",
        "seeds",
        *(name for name, _ in COLUMNS.values()),
        "tokens",
        "tokens/s",
        "training, s",
        "command, s",
    )
    lines = ["| " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) - 1)]
    for row in rows:
        cells = [f"`{row['contender']}`", str(len(row["seeds"]))]
        for key, (_, digits) in COLUMNS.items():
            deviation = row[f"{key}_std"]
            cells.append(f"{row[key]:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}"))
        cells += [f"{row['tokens'] / 1e6:.1f} M", f"{row['tokens_per_second']:,.0f}"]
        cells += [f"{row[key]:,.0f}" for key in ("training_seconds", "command_seconds")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
