"""The charts, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fastbert.benchmarks.gpu.judging import Rows, Sections, all_rows, copy_rate
from fastbert.benchmarks.gpu.operation_goals import LENGTHS
from fastbert.benchmarks.harness import report
from fastbert.benchmarks.harness.measure import AGREEING, FASTBERT, Row
from fastbert.io.figures import bar_style, figure_file, finish_axes, legend_below

FUSED_RIVALS = ("eager", "eager compiled", "liger")


def draw(sections: Sections, folder: Path, dry_run: bool, title: str = "") -> list[str]:
    """Draw attention.png (TFLOP/s by length), fused.png (bytes per second beside a copy), layers.png and throughput.png
    (one layer; encoder and pre-training, in tokens per second); return the names."""
    written = []
    title = "dry run on a CPU: figures are meaningless" if dry_run else title or _title(sections)
    attention = all_rows(sections, "attention")
    if attention:
        _draw_attention(folder / "attention.png", attention, title)
        written.append("attention.png")
    fused = [row for row in sections.get("fused", {}).get("rows", ()) if row["gigabytes_per_second"]]
    if fused:
        _draw_fused(folder / "fused.png", fused, copy_rate(sections), title)
        written.append("fused.png")
    for name, subject, parts in (
        ("layers.png", "An encoder layer, forward and backward", ("layer",)),
        ("throughput.png", "Encoder and pre-training", ("encoder", "pretraining")),
    ):
        rows = [row for section in parts for row in sections.get(section, {}).get("rows", ())]
        # One call of one sequence is judged by its time; a picture has room for eight workloads.
        rows = [row for row in rows if not row["workload"].endswith("latency")]
        if rows:
            names = [field.name for field in fields(Row)]
            table = [Row(**{name: row[name] for name in names}) for row in rows]
            written += [path.name for path in report.chart(folder / name, table, title=f"{subject}, {title}")]
    return written


def _draw_fused(path: Path, rows: Rows, copy: float | None, title: str) -> None:
    """Draw groups of bars by pattern, direction and width, and a line at the bandwidth of a copy."""
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    with figure_file(path, 9, 1.5 + 0.42 * len(workloads)) as figure:
        axis = figure.subplots()
        styles = {FASTBERT: bar_style(0), **{name: bar_style(index) for index, name in enumerate(FUSED_RIVALS, 1)}}
        for bar, (name, style) in enumerate(styles.items()):
            by_workload = {row["workload"]: row for row in rows if row["contender"] == name}
            positions = [index + 0.2 * (bar - 1.5) for index in range(len(workloads))]
            lengths = [
                by_workload[workload]["gigabytes_per_second"] if workload in by_workload else 0.0
                for workload in workloads
            ]
            axis.barh(positions, lengths, 0.19, label=name, **style)
            for position, length, workload in zip(positions, lengths, workloads, strict=True):
                if workload in by_workload and by_workload[workload]["outputs"] not in AGREEING:
                    axis.text(length, position, f" wrong: {by_workload[workload]['outputs']}", va="center", fontsize=7)
        if copy is not None:
            axis.axvline(copy, color="black", linewidth=1, linestyle="--", label="copy")
        axis.set_yticks(range(len(workloads)), workloads, fontsize=8)
        axis.set_ylim(len(workloads) - 0.5, -0.5)
        finish_axes(axis)
        legend_below(figure, axis.get_legend_handles_labels()[0])
        axis.set_xlabel("GB/s of the minimum traffic of the pattern (more is better)", fontsize=8)
        figure.suptitle(f"Fused patterns: {title}", fontsize=11)


def _title(sections: Sections) -> str:
    environment = sections.get("environment", {})
    gpu, versions = environment.get("gpu", {}).get("name", "unknown GPU"), environment.get("versions", {})
    return f"bf16, {gpu}, torch {versions.get('torch', '?')}"


def _draw_attention(path: Path, rows: Rows, title: str) -> None:
    """Draw one panel per direction, padding and dropout: groups of bars by length; wrong results are marked."""
    plain = [row for row in rows if not any(row["details"][name] for name in ("causal", "bias", "compiled"))]
    plain = [row for row in plain if row["details"]["length"] in LENGTHS and row["details"]["head_dim"] == 64] or plain
    contenders = sorted({row["contender"] for row in plain}, key=lambda name: (name != FASTBERT, name))
    styles = {name: bar_style(index) for index, name in enumerate(contenders)}
    measured = {(row["details"]["padding"], row["details"]["dropout"]) for row in plain}
    panels = [
        panel for padding in ("full", "half") for dropout in (0.0, 0.1) if (panel := (padding, dropout)) in measured
    ]
    with figure_file(path, 4.5 * max(len(panels), 2), 8) as figure:
        axes = figure.subplots(2, len(panels), squeeze=False, sharey="row")
        for down, direction in enumerate(("forward", "backward")):
            for across, (padding, dropout) in enumerate(panels):
                filters = {"direction": direction, "padding": padding, "dropout": dropout}
                selected = [
                    row for row in plain if all(row["details"][name] == value for name, value in filters.items())
                ]
                _panel(axes[down][across], selected, f"{direction}, {padding}, dropout {dropout:g}", styles)
        handles = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
        legend_below(figure, [handles[name] for name in contenders if name in handles])
        figure.suptitle(f"Attention, TFLOP/s of real tokens (more is better; x: wrong results): {title}", fontsize=11)


def _panel(axis: Any, rows: Rows, title: str, styles: Mapping[str, Any]) -> None:
    axis.set_title(title, fontsize=9, loc="left")
    lengths = sorted({row["details"]["length"] for row in rows})
    present = [name for name in styles if any(row["contender"] == name for row in rows)]
    width = 0.85 / max(len(present), 1)
    for index, name in enumerate(present):
        by_length = {row["details"]["length"]: row for row in rows if row["contender"] == name}
        positions = [x - 0.425 + (index + 0.5) * width for x in range(len(lengths))]
        heights = [by_length[length]["tflops"] if length in by_length else 0.0 for length in lengths]
        axis.bar(positions, heights, width, label=name, **styles[name])
        for length, position, height in zip(lengths, positions, heights, strict=True):
            if length in by_length and by_length[length]["outputs"] not in AGREEING:
                axis.text(position, height, "x", ha="center", fontsize=9)
    axis.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axis.spines[["top", "right"]].set_visible(False)
