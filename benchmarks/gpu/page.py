"""The measured part of docs/performance-gpu.md, from the records in benchmarks/results/gpu/: tables, and links to the
charts. Everything outside the markers is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastbert.benchmarks.gpu import goals
from fastbert.benchmarks.gpu.estimates import ESTIMATES, EXPLAINED_ABOVE, Estimate
from fastbert.benchmarks.gpu.judging import AGREEING, FASTBERT, GRAPHS, Verdict
from fastbert.errors import UserError

PAGE, IMAGES, RECORDS = "docs/performance-gpu.md", "docs/images", "benchmarks/results/gpu"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SECTIONS = {
    "pretraining": "Training steps",
    "encoder": "Inference",
    "layer": "One encoder layer, forward and backward",
    "attention": "Attention",
    "linear": "Matmuls with GELU",
    "loss": "Loss",
    "fused": "Fused patterns",
    "softmax": "Softmax",
    "positions": "Attention with positions, forward and backward",
}
UNMEASURED = "unmeasured"

Record = Mapping[str, Any]


def sections_of(record: Record) -> dict[str, dict[str, Any]]:
    """Return a record's results by section, as they were measured."""
    sections = {name: dict(section) for name, section in record["settings"]["sections"].items()}
    sections["environment"] = {"gpu": record["machine"]}
    for row in record["rows"]:
        sections.setdefault(row["section"], {}).setdefault("rows", []).append(row)
    return sections


def render(records: Mapping[str, Record], explanations: Mapping[str, str], charts: Mapping[str, Sequence[str]]) -> str:
    """Return the measured part of the page, without its markers.

    `records` and `charts` are by device; `explanations` by the key of an estimate (`explanation_key`).
    """
    parts = [*_figures(records), *_estimates(records, explanations)]
    for device, record in records.items():
        parts += _device(device, record, charts.get(device, ()))
    return "\n".join(parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["", *("| " + " | ".join(map(_in_table, line)) + " |" for line in lines), ""]


def _in_table(text: str) -> str:
    """Return the text of a cell without what would end the cell or the table: names come from returned files."""
    return text.replace("|", "/").replace("\n", " ")


def _figures(records: Mapping[str, Record]) -> list[str]:
    """Return the table of the figures that decide, one column per device."""
    columns = {device: goals.figures(sections_of(record)) for device, record in records.items()}
    rows = []
    for index, figure in enumerate(goals.figures({})):
        cells = [_cell(verdicts[index]) for verdicts in columns.values()]
        targets = list(dict.fromkeys(verdicts[index].target for verdicts in columns.values())) or [figure.target]
        rows.append([figure.goal, ", ".join(targets), *(cells or [UNMEASURED])])
    names = [str(record["machine"]["name"]) for record in records.values()] or ["measured"]
    return ["", "### The figures that decide", *_table(["figure", "goal", *names], rows)]


def _cell(verdict: Verdict) -> str:
    if verdict.verdict.startswith(UNMEASURED):
        return verdict.verdict
    return f"{verdict.measured}: {verdict.verdict}"


def explanation_key(estimate: Estimate) -> str:
    """Return the name that an explanation on the page begins with."""
    return f"{estimate.name}, {estimate.gpu}"


def compared(records: Mapping[str, Record]) -> list[tuple[Estimate, str, float | None, float | None]]:
    """Return each estimate with the device, milliseconds and deviation of its measurement, None without one."""
    results: list[tuple[Estimate, str, float | None, float | None]] = []
    for estimate in ESTIMATES:
        devices = [name for name, record in records.items() if estimate.gpu in str(record["machine"]["name"])]
        for device in devices or [""]:
            rows = records[device]["rows"] if device else ()
            results.append((estimate, device, estimate.measured(rows), estimate.deviation(rows)))
    return results


def unexplained(records: Mapping[str, Record], explanations: Mapping[str, str]) -> list[str]:
    """Return one line per estimate that is off by more than 20 % and has no explanation on the page."""
    lines = []
    for estimate, _, _, deviation in compared(records):
        key = explanation_key(estimate)
        if deviation is not None and abs(deviation) > EXPLAINED_ABOVE and key not in explanations:
            lines.append(
                f"{PAGE}: the estimate of {key} is off by {deviation:+.0%}: explain it in a line '- {key}: ...'"
            )
    return lines


def _estimates(records: Mapping[str, Record], explanations: Mapping[str, str]) -> list[str]:
    rows = []
    for estimate, _, measured, deviation in compared(records):
        key = explanation_key(estimate)
        if measured is None or deviation is None:
            cells = [UNMEASURED, ""]
        else:
            large = abs(deviation) > EXPLAINED_ABOVE
            note = (", explained below" if key in explanations else ", **to be explained**") if large else ""
            cells = [f"{measured:.3g} ms", f"off by {deviation:+.0%}{note}"]
        rows.append([estimate.name, estimate.gpu, f"{estimate.milliseconds:g} ms", *cells])
    header = ["part of a step of base, 32,768 tokens", "GPU", "estimate", "measured", "difference"]
    return ["### Estimates and measurements", *_table(header, rows)]


def _device(device: str, record: Record, charts: Sequence[str]) -> list[str]:
    machine, versions = record["machine"], record["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "triton", "transformers") if name in versions)
    lines = [
        f"### {machine['name']}",
        "",
        f"Commit {record['commit'] or 'unknown'}, {named}, driver {machine.get('driver', 'unknown')};"
        f" [record](../{RECORDS}/{device}.json). Medians; [how](benchmarks.md#on-a-gpu) they were measured.",
        "",
    ]
    lines += [f"![{name}](images/{name})" for name in charts]
    for section, title in SECTIONS.items():
        rows = [row for row in record["rows"] if row["section"] in (section, f"{section}-rest")]
        if rows:
            lines += ["", f"**{title}**", *_measurements(rows)[:-1]]
    return lines


def _measurements(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per workload: fastbert's time and rates, and every rival's time as a multiple of it."""
    table = []
    for workload in dict.fromkeys(str(row["workload"]) for row in rows):
        group = [row for row in rows if row["workload"] == workload]
        ours = {row["contender"]: row for row in group if row["contender"] in (FASTBERT, GRAPHS)}
        best = min(ours.values(), key=lambda row: float(row["median_ms"]), default=None)
        others = [row for row in group if row["contender"] not in ours]
        time = "-" if best is None else f"{best['median_ms']:.4g}{_notes(best)}"
        cells = [_relative(row, best) for row in others]
        table.append([workload, time, "" if best is None else _rate(best), ", ".join(cells) or "-"])
    return _table(["workload", "fastbert, ms", "rate", "others, times fastbert's time"], table)


def _notes(row: Mapping[str, Any]) -> str:
    """Return what must be known about fastbert's time."""
    notes = [
        *(["graphs"] if row["contender"] == GRAPHS else []),
        *(["bound by Python"] if row.get("host_bound") else []),
        *([] if row["outputs"] in AGREEING else ["wrong"]),
    ]
    return f" ({', '.join(notes)})" if notes else ""


def _relative(row: Mapping[str, Any], best: Mapping[str, Any] | None) -> str:
    doubt = "" if row["outputs"] in AGREEING else " (wrong)"
    if best is None:
        return f"{row['contender']} {row['median_ms']:.4g} ms{doubt}"
    return f"{row['contender']} {row['median_ms'] / best['median_ms']:.2f}x{doubt}"


def _rate(row: Mapping[str, Any]) -> str:
    sequences = row.get("details", {}).get("sequences")
    if row["section"] in ("pretraining", "encoder") and sequences:
        return f"{sequences / row['median_ms'] * 1e3:,.0f} sequences/s, {row['tflops']:,.0f} TFLOP/s"
    if row.get("tflops"):
        return f"{row['tflops']:,.0f} TFLOP/s"
    return f"{row['gigabytes_per_second']:,.0f} GB/s" if row.get("gigabytes_per_second") else ""


def explanations_on(text: str) -> dict[str, str]:
    """Return the explanations on a page: lines '- <part>, <GPU>: <text>'."""
    keys = "|".join(re.escape(explanation_key(estimate)) for estimate in ESTIMATES)
    return dict(re.findall(rf"^- ({keys}): (\S.*)", text, flags=re.MULTILINE))


def replaced(text: str, measured: str) -> str:
    """Return a page with its measured part replaced. Raises UserError without the markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{PAGE} lacks {BEGIN} or {END}: add both, each on a line of its own")
    return f"{before}{BEGIN}\n{measured.strip()}\n{END}{after}"


def measured_part(text: str) -> str:
    """Return the measured part of a page."""
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def charts_of(root: Path, device: str) -> list[str]:
    """Return the names of a device's charts in the documentation."""
    return sorted(path.name for path in (root / IMAGES).glob(f"gpu_{device}_*.png"))
