"""Goals and what was measured for them, as a table; and the charts. What was not measured says why, never a guess."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fastbert.benchmarks import report
from fastbert.benchmarks.harness import AGREEING, OWN, Row

LENGTHS = (128, 512, 2048, 8192)
FULL_GOAL, HALF_GOAL = 1.0, 1.7  # times the best fused attention of torch, full and half empty
CUDNN_GOAL = 0.75  # times cuDNN without dropout, for our backward pass with it
COPY_GOAL, EAGER_GOAL = 0.85, 2.5  # of the copy's bandwidth; times eager torch
MOST_FAILURES = 12  # of a section, printed; all of them are in the results
WITHOUT_DROPOUT = "sdpa cudnn, no dropout"

Rows = Sequence[Mapping[str, Any]]
Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """One goal: what is to be reached, what was measured, and met, missed, wrong, or unmeasured with the reason."""

    goal: str
    wanted: str
    measured: str
    verdict: str


def verdicts(sections: Sections, dry_run: bool) -> list[dict[str, str]]:
    """All goals in the order of the table; figures of a dry run judge nothing."""
    if dry_run:
        return [asdict(Verdict("all goals", "-", "dry run on a CPU", "unmeasured: figures of a dry run mean nothing"))]
    found = [*_attention(sections), *_cudnn(sections), *_softmax(sections)]
    return [asdict(verdict) for verdict in found]


def _attention(sections: Sections) -> Iterable[Verdict]:
    for padding, wanted in (("full", FULL_GOAL), ("half", HALF_GOAL)):
        for direction in ("forward", "backward"):
            for length in LENGTHS:
                for dropout in ("0.1", "0"):
                    name = f"attention {direction} {length} {padding} dropout {dropout}"
                    goal = f"{direction} {length} {padding}, dropout {dropout}"
                    yield _against(sections, "attention", name, goal, wanted, fused_names)


def fused_names(rows: Rows) -> list[str]:
    """torch's fused attention on padded tensors with the same dropout."""
    names = (str(row["contender"]) for row in rows)
    return [name for name in names if name.startswith("sdpa ") and name != WITHOUT_DROPOUT]


def _cudnn(sections: Sections) -> Iterable[Verdict]:
    for length in (2048, 8192):
        name = f"attention backward {length} full dropout 0.1"
        goal = f"backward {length}, dropout 0.1 / cuDNN without"
        yield _against(sections, "attention", name, goal, CUDNN_GOAL, lambda rows: [WITHOUT_DROPOUT])


def _softmax(sections: Sections) -> Iterable[Verdict]:
    copies = [row for row in sections.get("ceilings", {}).get("rows", ()) if row["workload"] == "copy"]
    for keys in (128, 512):
        name = f"softmax forward {keys}"
        yield _against(sections, "softmax", name, f"softmax {keys} / eager", EAGER_GOAL, lambda rows: ["eager"])
        goal, wanted = f"softmax {keys} / copy bandwidth", f">= {COPY_GOAL:.0%}"
        own = _row(_rows(sections, "softmax", name), OWN)
        if own is None or not copies:
            reason = _reason(sections, "softmax", name, OWN) if own is None else "the copy was not measured"
            yield Verdict(goal, wanted, "-", f"unmeasured: {reason}")
            continue
        share = own["gigabytes_per_second"] / copies[0]["gigabytes_per_second"]
        text = f"{share:.0%} ({own['gigabytes_per_second']:,.0f} GB/s, {own['details']['backend']})"
        yield Verdict(goal, wanted, text, _judge(own, share >= COPY_GOAL))


def _against(sections: Sections, section: str, name: str, goal: str, wanted: float, rivals: Any) -> Verdict:
    """Our speed as a multiple of the fastest of some contenders."""
    rows, text = _rows(sections, section, name), f">= {wanted:g}x"
    own = _row(rows, OWN)
    if own is None:
        return Verdict(goal, text, "-", f"unmeasured: {_reason(sections, section, name, OWN)}")
    others = [row for row in rows if row["contender"] in rivals(rows) and row["outputs"] in AGREEING]
    if not others:
        reason = _reason(sections, section, name, "sdpa" if section == "attention" else "eager")
        return Verdict(goal, text, f"{own['median_ms']:.4g} ms", f"unmeasured: no rival took it: {reason}")
    best = min(others, key=lambda row: float(row["median_ms"]))
    ratio = best["median_ms"] / own["median_ms"]
    measured = f"{ratio:.2f}x {best['contender']} ({own['median_ms']:.4g} ms"
    measured += f", {own['tflops']:.0f} TFLOP/s)" if own.get("tflops") is not None else ")"
    return Verdict(goal, text, measured, _judge(own, ratio >= wanted))


def ratios(sections: Sections) -> list[dict[str, Any]]:
    """Of every workload of attention and softmax: our time beside the fastest of all others with the same dropout."""
    found = []
    for section in ("attention", "softmax"):
        rows = sections.get(section, {}).get("rows", ())
        for own in (row for row in rows if row["contender"] == OWN):
            name = own["workload"]
            rivals = [row for row in _rows(sections, section, name) if row["contender"] not in (OWN, WITHOUT_DROPOUT)]
            rivals = [row for row in rivals if row["outputs"] in AGREEING]
            best = min(rivals, key=lambda row: float(row["median_ms"]), default=None)
            one = {name: own.get(name) for name in ("workload", "median_ms", "tflops", "host_us", "outputs")}
            one["best"] = None if best is None else best["contender"]
            one["ratio"] = None if best is None else float(f"{best['median_ms'] / own['median_ms']:.4g}")
            found.append(one)
    return found


def _judge(own: Mapping[str, Any], reached: bool) -> str:
    doubt = " (Python-bound)" if own.get("host_bound") else ""
    if own["outputs"] not in AGREEING:
        return str(own["outputs"])
    return ("met" if reached else "missed") + doubt


def _rows(sections: Sections, section: str, workload: str) -> Rows:
    return [row for row in sections.get(section, {}).get("rows", ()) if row["workload"] == workload]


def _row(rows: Rows, contender: str) -> Mapping[str, Any] | None:
    return next((row for row in rows if row["contender"] == contender), None)


def _reason(sections: Sections, section: str, workload: str, contender: str) -> str:
    """Why there is no row, from what the section wrote down."""
    found = sections.get(section)
    if found is None:
        return f"section {section} was not run"
    for failure in found.get("failures", ()):
        if failure["case"] == workload:
            return str(failure["reason"])[:120]
    for one in found.get("unmeasured", ()):
        if one["workload"] == workload and one["contender"].startswith(contender):
            return str(one["reason"])[:120]
    if workload in found.get("out_of_time", ()):
        return "out of time"
    return str(found.get("reason", "no such case"))[:120]


def text(sections: Sections, beside: Rows, table: Sequence[Mapping[str, str]]) -> str:
    """What is printed last: sections that did not end well, throughput, cases without a goal, then the goals."""
    lines = [""]
    for name, section in sections.items():
        if section["status"] not in ("ok", "skipped"):
            lines.append(f"{name}: {section['status']}: {section.get('reason', 'see results.json')}")
        lines += [f"  {one}" for one in _failures(section)[:MOST_FAILURES]]
        if section.get("out_of_time"):
            lines.append(f"  out of time: {', '.join(section['out_of_time'])}"[:300])
    for name in ("ceilings", "encoder", "pretraining"):
        lines += [_line(row) for row in sections.get(name, {}).get("rows", ())]
    lines += [_ratio(one) for one in beside if not _has_goal(one["workload"])]
    names = [field.name for field in fields(Verdict)]
    cells = [names, *([str(row[name]) for name in names] for row in table)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names) - 1)]
    lines += ["", *("  ".join([*map(str.ljust, row, widths), row[-1]]) for row in cells)]
    return "\n".join(lines)


def _failures(section: Mapping[str, Any]) -> list[str]:
    """A line for each case, kernel or test of a section that failed, and the last line of what it said."""
    found = []
    for one in section.get("failures", ()):
        if isinstance(one, str):  # pytest's own
            found.append(one[:160])
            continue
        attempted = f" (attempting {one['attempted']})" if one.get("attempted") else ""
        found.append(f"{one['case']}{attempted}: {one['reason']}"[:160])
    for variant in section.get("variants", ()):
        if "error" in variant:
            last = (variant.get("lines") or [variant["error"]])[-1]
            found.append(f"{variant['name']}: {last}"[:160])
    return found


def _has_goal(workload: str) -> bool:
    """Whether the table below has a line for it."""
    words = workload.split()
    if words[0] == "softmax":
        return words[1] == "forward"
    return len(words) == 6 and words[2] in map(str, LENGTHS) and words[3] != "lognormal"


def _ratio(one: Mapping[str, Any]) -> str:
    beside = "nobody else took it" if one["best"] is None else f"{one['ratio']:.2f}x {one['best']}"
    rate = "" if one["tflops"] is None else f", {one['tflops']:,.0f} TFLOP/s"
    return f"{one['workload']}: {one['median_ms']:.4g} ms{rate}, {beside}; {one['outputs']}"


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


# Charts


def draw(sections: Sections, folder: Path, dry_run: bool) -> list[str]:
    """attention.png: TFLOP/s of each contender over the lengths; throughput.png: encoder and pre-training."""
    written = []
    title = "dry run on a CPU: figures mean nothing" if dry_run else _title(sections)
    attention = sections.get("attention", {}).get("rows", ())
    if attention:
        _draw_attention(folder / "attention.png", attention, title)
        written.append("attention.png")
    models = [row for name in ("encoder", "pretraining") for row in sections.get(name, {}).get("rows", ())]
    if models:
        names = [field.name for field in fields(Row)]
        table = [Row(**{name: row[name] for name in names}) for row in models]
        report.chart(folder / "throughput.png", table, title=f"Encoder and pre-training, {title}")
        written.append("throughput.png")
    return written


def _title(sections: Sections) -> str:
    found = sections.get("environment", {})
    gpu, versions = found.get("gpu", {}).get("name", "unknown GPU"), found.get("versions", {})
    return f"bf16, {gpu}, torch {versions.get('torch', '?')}"


def _draw_attention(path: Path, rows: Rows, title: str) -> None:
    """A panel for each direction, padding and dropout: groups of bars by length."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plain = [row for row in rows if not any(row["details"][name] for name in ("causal", "bias", "compiled"))]
    panels = [(padding, dropout) for padding in ("full", "half") for dropout in (0.0, 0.1)]
    figure, axes = plt.subplots(2, len(panels), figsize=(20, 8), squeeze=False, layout="constrained")
    for down, direction in enumerate(("forward", "backward")):
        for across, (padding, dropout) in enumerate(panels):
            chosen = {"direction": direction, "padding": padding, "dropout": dropout}
            mine = [row for row in plain if all(row["details"][name] == value for name, value in chosen.items())]
            _panel(axes[down][across], mine, f"{direction}, {padding}, dropout {dropout:g}")
    figure.suptitle(f"Attention, TFLOP/s of real tokens (more is better): {title}", fontsize=11)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _panel(axis: Any, rows: Rows, title: str) -> None:
    axis.set_title(title, fontsize=9, loc="left")
    rows = [row for row in rows if row["details"]["length"] in LENGTHS and row["details"]["head_dim"] == 64] or rows
    lengths = sorted({row["details"]["length"] for row in rows})
    contenders = sorted({row["contender"] for row in rows}, key=lambda name: (name != OWN, name))
    greys = [str(0.3 + 0.5 * place / max(len(contenders), 1)) for place in range(len(contenders))]
    for place, name in enumerate(contenders):
        heights = [next((r["tflops"] for r in rows if r["contender"] == name and r["details"]["length"] == n), 0.0)
                   for n in lengths]  # fmt: skip
        width = 0.85 / len(contenders)
        places = [x - 0.425 + (place + 0.5) * width for x in range(len(lengths))]
        color = report.OWN_COLOR if name == OWN else greys[place]
        axis.bar(places, heights, width, label=name, color=color)
    axis.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axis.spines[["top", "right"]].set_visible(False)
    if contenders:
        axis.legend(fontsize=6)
