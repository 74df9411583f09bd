"""The table and the record of the speed run, from the summaries of its runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.harness import records
from fastbert.errors import UserError

RESULTS = Path(__file__).resolve().parents[1] / "results" / "speedrun"
SCORES = ("mlm_loss", "mlm_accuracy", "blimp", "sst2", "stsb")
COLUMNS = {"mlm_loss": ("MLM loss", 3), "blimp": ("BLiMP", 1), "sst2": ("SST-2", 1), "stsb": ("STS-B", 1)}
COSTS = ("training_seconds", "command_seconds", "steps", "tokens", "tokens_per_second")


def line(summary: Mapping[str, Any]) -> str:
    """Return a run's scores in one line."""
    return (
        f"{summary['name']}, seed {summary['seed']}: MLM loss {summary['mlm_loss']:.3f}, BLiMP {summary['blimp']:.1f},"
        f" SST-2 {summary['sst2']:.1f}, STS-B {summary['stsb']:.1f}; {summary['tokens']:,} tokens in"
        f" {summary['training_seconds']:,.0f} s"
    )


def rows(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per entry: mean and sample standard deviation of each score over the seeds, and what runs cost."""
    table = []
    for name in dict.fromkeys(summary["name"] for summary in summaries):
        runs = [summary for summary in summaries if summary["name"] == name]
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
        table.append({**row, "commit": runs[-1]["commit"], "versions": runs[-1]["versions"]})
    return table


def write(logs: Path, results: Path = RESULTS) -> str:
    """Write the record of this machine's class; return the table of its rows. Raises `UserError` without logs."""
    machine = records.machine()
    kind = records.machine_class(machine)
    files = sorted((logs / kind).glob("*/seed-*/summary.json"))
    if not files:
        raise UserError(f"{logs / kind}: holds no run of this machine's class; name an entry to run")
    summaries = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    hashes = {summary["data_sha256"] for summary in summaries}
    if len(hashes) > 1:
        raise UserError(f"{logs / kind}: its runs were trained on different data ({', '.join(sorted(hashes))})")
    summaries.sort(key=lambda summary: (summary["minutes"], summary["name"], summary["seed"]))
    table = rows(summaries)
    record = records.record("speedrun", table, settings={"data_sha256": hashes.pop()})
    record["machine"] = summaries[-1]["machine_details"]
    records.write(results / f"{kind}.json", record)
    return table_of(table)


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
