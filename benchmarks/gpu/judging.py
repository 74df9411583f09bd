"""Judge a goal: a row of fastbert's beside its rival, a rate, or a share; or give the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastbert.benchmarks.harness.measure import AGREEING, FASTBERT

__all__ = [
    "AGREEING",
    "FASTBERT",
    "GRAPHS",
    "OURS",
    "Rows",
    "Sections",
    "Verdict",
    "against",
    "all_rows",
    "copy_rate",
    "fastest",
    "judge",
    "rate",
    "reason_without",
    "row_of",
    "rows_of",
    "share_of_copy",
    "unmeasured",
]

Rows = Sequence[Mapping[str, Any]]
Sections = Mapping[str, Mapping[str, Any]]
GRAPHS = "fastbert graphs"
OURS = (FASTBERT, GRAPHS)


@dataclass(frozen=True)
class Verdict:
    """One goal: the target, the measurement, and met, missed, wrong, or unmeasured with the reason."""

    goal: str
    target: str
    measured: str
    verdict: str


def unmeasured(goal: str, target: str, reason: str, measured: str = "-") -> Verdict:
    """Return the verdict of a goal without a measurement."""
    return Verdict(goal, target, measured, f"unmeasured: {reason}")


def all_rows(sections: Sections, section: str) -> list[Mapping[str, Any]]:
    """Return the rows of a section and of the one with its less important cases."""
    return [row for name in (section, f"{section}-rest") for row in sections.get(name, {}).get("rows", ())]


def rows_of(sections: Sections, section: str, workload: str) -> Rows:
    """Return the rows of one workload."""
    return [row for row in all_rows(sections, section) if row["workload"] == workload]


def row_of(rows: Rows, contender: str) -> Mapping[str, Any] | None:
    """Return a contender's row."""
    return next((row for row in rows if row["contender"] == contender), None)


def fastest(rows: Rows, names: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the fastest of the named contenders; one whose outputs are wrong only if there is no other."""
    candidates = [row for row in rows if row["contender"] in names]
    return min(candidates, key=lambda row: (row["outputs"] not in AGREEING, float(row["median_ms"])), default=None)


def judge(fastbert_row: Mapping[str, Any], reached: bool) -> str:
    """Return met or missed, with a doubt if Python was the limit; or what is wrong with the outputs."""
    doubt = " (Python-bound)" if fastbert_row.get("host_bound") else ""
    if fastbert_row["outputs"] not in AGREEING:
        return str(fastbert_row["outputs"])
    return ("met" if reached else "missed") + doubt


def copy_rate(sections: Sections) -> float | None:
    """Return the bandwidth of a copy in GB/s."""
    copies = [row for row in all_rows(sections, "ceilings") if row["workload"] == "copy"]
    return float(copies[0]["gigabytes_per_second"]) if copies else None


def share_of_copy(sections: Sections, fastbert_row: Mapping[str, Any]) -> float | None:
    """Return a row's bytes per second relative to a copy's."""
    copy = copy_rate(sections)
    return None if copy is None else float(fastbert_row["gigabytes_per_second"]) / copy


def reason_without(sections: Sections, section: str, workload: str, contender: str, case: str = "") -> str:
    """Return why there is no row, from the sections' notes; `case` is the case's name if it differs."""
    parts = [sections[name] for name in (section, f"{section}-rest") if name in sections]
    names = (workload, case)
    if not parts:
        return f"section {section} was not run"
    for result in parts:
        for failure in result.get("failures", ()):
            if failure["case"] in names:
                return str(failure["reason"])[:120]
        for entry in result.get("unmeasured", ()):
            if entry["workload"] == workload and entry["contender"].startswith(contender):
                return str(entry["reason"])[:120]
        if set(result.get("out_of_time", ())) & set(names):
            return "out of time"
    return next((str(result["reason"])[:120] for result in parts if result.get("reason")), "no such case")


def rate(sections: Sections, section: str, name: str, goal: str, target: float, unit: str) -> Verdict:
    """Judge sequences or real tokens per second, from single kernels or from graphs, whichever is faster."""
    text = f">= {target:,.0f}"
    row = fastest(rows_of(sections, section, name), OURS)
    if row is None:
        return unmeasured(goal, text, reason_without(sections, section, name, FASTBERT))
    value = row["details"][unit] / row["median_ms"] * 1e3
    return Verdict(goal, text, f"{value:,.0f} ({row['contender']})", judge(row, value >= target))


def against(
    sections: Sections,
    section: str,
    name: str,
    goal: str,
    target: float,
    rivals: Callable[[Rows], Sequence[str]],
    owns: Sequence[str] = (FASTBERT,),
) -> Verdict:
    """Judge fastbert's speed as a multiple of the fastest of some contenders."""
    rows, text = rows_of(sections, section, name), f">= {target:g}x"
    row = fastest(rows, owns)
    if row is None:
        return unmeasured(goal, text, reason_without(sections, section, name, FASTBERT))
    names = rivals(rows)
    best = fastest([other for other in rows if other["outputs"] in AGREEING], names)
    if best is None:
        sought = "sdpa" if section == "attention" else names[0]
        reason = reason_without(sections, section, name, sought)
        return unmeasured(goal, text, f"no rival ran: {reason}", f"{row['median_ms']:.4g} ms")
    ratio = best["median_ms"] / row["median_ms"]
    measured = f"{ratio:.2f}x {best['contender']} ({row['median_ms']:.4g} ms"
    measured += f", {row['tflops']:.0f} TFLOP/s" if row.get("tflops") is not None else ""
    measured += f", {row['contender']})" if row["contender"] != FASTBERT else ")"
    return Verdict(goal, text, measured, judge(row, ratio >= target))
