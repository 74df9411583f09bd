"""The final report: the state of the sections, measurements without a goal, and the table of goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fastbert.benchmarks.gpu.judging import Rows, Sections, Verdict
from fastbert.benchmarks.gpu.operation_goals import has_goal

MOST_FAILURES = 12  # of a section, printed; all of them are in the results


def text(sections: Sections, ratios: Rows, table: Sequence[Mapping[str, str]]) -> str:
    """Return the final report: sections that failed, throughput, cases without a goal, then the goals."""
    lines = [""]
    for name, section in sections.items():
        if section["status"] not in ("ok", "skipped") and (section.get("reason") or _failures(section)):
            lines.append(f"{name}: {section['status']}: {section.get('reason', 'the details are in the JSON')}")
        lines += [f"  {entry}" for entry in _failures(section)[:MOST_FAILURES]]
    lines += _late(sections)
    for name in ("ceilings", "encoder", "pretraining"):
        lines += [_line(row) for row in sections.get(name, {}).get("rows", ())]
    lines += [_ratio(entry) for entry in ratios if not has_goal(entry["workload"])]
    if not table:
        return "\n".join(lines)
    names = [field.name for field in fields(Verdict)]
    cells = [names, *([str(row[name]) for name in names] for row in table)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names) - 1)]
    lines += ["", *("  ".join([*map(str.ljust, row, widths), row[-1]]) for row in cells)]
    return "\n".join(lines)


def brief(result: Mapping[str, Any]) -> str:
    """Return the state of a section in one line."""
    words = [result["status"], f"{result.get('seconds', 0):g} s"]
    words += [f"{len(result[name])} {name}" for name in ("rows", "failures", "out_of_time") if result.get(name)]
    words += [str(result["counts"])] if result.get("counts") else []
    words += [f"not compiled: {', '.join(result['failed'])}"] if result.get("failed") else []
    words += [result["reason"]] if result.get("reason") else []
    return ", ".join(words)


def _late(sections: Sections) -> list[str]:
    """Return one line with everything that was not measured for lack of time."""
    late = []
    for name, section in sections.items():
        if section.get("reason") == "out of time":
            late.append(name)
        elif section.get("out_of_time"):
            late.append(f"{name} ({len(section['out_of_time'])} cases)")
    return [f"out of time: {', '.join(late)}: raise --budget-seconds, or choose sections with --only"] if late else []


def _failures(section: Mapping[str, Any]) -> list[str]:
    """Return one line per case, kernel or test of a section that failed, with the last line of its output."""
    lines = []
    for entry in section.get("failures", ()):
        if "test" in entry:
            lines.append(f"{entry['test']}: {entry['message']}"[:160])
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
