"""The final report: the state of the sections, measurements without a goal, and the table of goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fastbert.benchmarks.gpu.goals import Rows, Sections, Verdict, has_goal

MOST_FAILURES = 12  # of a section, printed; all of them are in the results


def text(sections: Sections, ratios: Rows, table: Sequence[Mapping[str, str]]) -> str:
    """Return the final report: sections that failed, throughput, cases without a goal, then the goals."""
    lines = [""]
    for name, section in sections.items():
        if section["status"] not in ("ok", "skipped"):
            lines.append(f"{name}: {section['status']}: {section.get('reason', 'see results.json')}")
        lines += [f"  {entry}" for entry in _failures(section)[:MOST_FAILURES]]
        if section.get("out_of_time"):
            lines.append(f"  out of time: {', '.join(section['out_of_time'])}"[:300])
    for name in ("ceilings", "encoder", "pretraining"):
        lines += [_line(row) for row in sections.get(name, {}).get("rows", ())]
    lines += [_ratio(entry) for entry in ratios if not has_goal(entry["workload"])]
    names = [field.name for field in fields(Verdict)]
    cells = [names, *([str(row[name]) for name in names] for row in table)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names) - 1)]
    lines += ["", *("  ".join([*map(str.ljust, row, widths), row[-1]]) for row in cells)]
    return "\n".join(lines)


def _failures(section: Mapping[str, Any]) -> list[str]:
    """Return one line per case, kernel or test of a section that failed, with the last line of its output."""
    lines = []
    for entry in section.get("failures", ()):
        if isinstance(entry, str):  # pytest's own
            lines.append(entry[:160])
            continue
        attempted = f" (attempting {entry['attempted']})" if entry.get("attempted") else ""
        lines.append(f"{entry['case']}{attempted}: {entry['reason']}"[:160])
    for variant in section.get("variants", ()):
        if "error" in variant:
            last = (variant.get("lines") or [variant["error"]])[-1]
            lines.append(f"{variant['name']}: {last}"[:160])
    return lines


def _ratio(entry: Mapping[str, Any]) -> str:
    ratios = "no other contender" if entry["best"] is None else f"{entry['ratio']:.2f}x {entry['best']}"
    rate = "" if entry["tflops"] is None else f", {entry['tflops']:,.0f} TFLOP/s"
    return f"{entry['workload']}: {entry['median_ms']:.4g} ms{rate}, {ratios}; {entry['outputs']}"


def _line(row: Mapping[str, Any]) -> str:
    rates = []
    if row.get("tokens_per_second"):
        rates.append(f"{row['tokens_per_second']:,.0f} tokens/s")
    if row["details"].get("sequences"):
        rates.append(f"{row['details']['sequences'] / row['median_ms'] * 1e3:,.0f} sequences/s")
    if row.get("tflops"):
        rates.append(f"{row['tflops']:,.0f} TFLOP/s")
    if row.get("gigabytes_per_second"):
        rates.append(f"{row['gigabytes_per_second']:,.0f} GB/s")
    return f"{row['workload']}, {row['contender']}: {row['median_ms']:.4g} ms, {', '.join(rates)}; {row['outputs']}"
