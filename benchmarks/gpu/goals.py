"""The goals and their measurements. An unmeasured goal has a reason, never an estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastbert.benchmarks.harness.measure import AGREEING, FASTBERT

LENGTHS = (128, 512, 2048, 8192)
FULL_GOAL, HALF_GOAL = 1.0, 1.7  # times the best fused attention of torch, full and half empty
CUDNN_GOAL = 0.75  # times cuDNN without dropout, for fastbert's backward pass with dropout
COPY_GOAL, EAGER_GOAL = 0.85, 2.5  # of the copy's bandwidth; times eager torch
WITHOUT_DROPOUT = "sdpa cudnn, no dropout"
# Patterns between matmuls and the widths at which they are judged; matmuls with GELU, by their depth.
FUSED = {
    "layer_norm": (768, 1024),
    "dropout_add_layer_norm": (768, 1024),
    "gelu_layer_norm": (768, 1024),
    "embedding_layer_norm": (768, 1024),
    "bias_gelu": (3072, 4096),
}
LINEAR_WIDTHS, LINEAR_GOAL = (768, 1024), 600.0  # TFLOP/s, which the goals of the steps below require
LOSS_ROWS, LOSS_GOAL, MEMORY_GOAL = (10_000, 4_096, 40_000), 1.0, 0.1  # times eager torch; of its logits in fp32
LAYER_GOALS = {"eager": 2.0, "eager compiled": 1.2}
# Steps of pre-training per second: sequences, or real tokens.
STEP_GOALS = {
    "pretraining base 128 full": (7_000.0, "sequences"),
    "pretraining base 512 full": (1_640.0, "sequences"),
    "pretraining large 512 packed": (263_000.0, "tokens"),
}
INFERENCE_GOAL, REAL_GOAL, LATENCY_GOAL = 22_000.0, 2.5, 5.0  # sequences per second; times transformers
RIVALS = ("transformers sdpa", "torch padded")
GRAPHS = "fastbert graphs"

Rows = Sequence[Mapping[str, Any]]
Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """One goal: the target, the measurement, and met, missed, wrong, or unmeasured with the reason."""

    goal: str
    target: str
    measured: str
    verdict: str


def verdicts(sections: Sections, dry_run: bool) -> list[dict[str, str]]:
    """Return all goals in the order of the table; figures of a dry run are not judged."""
    if dry_run:
        return [asdict(Verdict("all goals", "-", "dry run on a CPU", "unmeasured: figures of a dry run mean nothing"))]
    judges = (_attention, _cudnn, _softmax, _fused, _linear, _loss, _layer, _encoder, _pretraining)
    return [asdict(verdict) for part in judges for verdict in part(sections)]


def _attention(sections: Sections) -> Iterable[Verdict]:
    for padding, target in (("full", FULL_GOAL), ("half", HALF_GOAL)):
        for direction in ("forward", "backward"):
            for length in LENGTHS:
                for dropout in ("0.1", "0"):
                    name = f"attention {direction} {length} {padding} dropout {dropout}"
                    goal = f"{direction} {length} {padding}, dropout {dropout}"
                    yield _against(sections, "attention", name, goal, target, fused_names)


def fused_names(rows: Rows) -> list[str]:
    """Return torch's fused attention on padded tensors with the same dropout."""
    names = (str(row["contender"]) for row in rows)
    return [name for name in names if name.startswith("sdpa ") and name != WITHOUT_DROPOUT]


def _cudnn(sections: Sections) -> Iterable[Verdict]:
    for length in (2048, 8192):
        name = f"attention backward {length} full dropout 0.1"
        goal = f"backward {length}, dropout 0.1 / cuDNN without"
        yield _against(sections, "attention", name, goal, CUDNN_GOAL, lambda rows: [WITHOUT_DROPOUT])


def _softmax(sections: Sections) -> Iterable[Verdict]:
    for keys in (128, 512):
        name = f"softmax forward {keys}"
        yield _against(sections, "softmax", name, f"softmax {keys} / eager", EAGER_GOAL, lambda rows: ["eager"])
        goal, target = f"softmax {keys} / copy bandwidth", f">= {COPY_GOAL:.0%}"
        fastbert_row = _row(_rows(sections, "softmax", name), FASTBERT)
        share = None if fastbert_row is None else _share_of_copy(sections, fastbert_row)
        if fastbert_row is None or share is None:
            yield Verdict(goal, target, "-", _no_share(sections, "softmax", name, fastbert_row))
            continue
        text = f"{share:.0%} ({fastbert_row['gigabytes_per_second']:,.0f} GB/s, {fastbert_row['details']['backend']})"
        yield Verdict(goal, target, text, _judge(fastbert_row, share >= COPY_GOAL))


def _share_of_copy(sections: Sections, fastbert_row: Mapping[str, Any]) -> float | None:
    copies = [row for row in sections.get("ceilings", {}).get("rows", ()) if row["workload"] == "copy"]
    return float(fastbert_row["gigabytes_per_second"] / copies[0]["gigabytes_per_second"]) if copies else None


def _no_share(
    sections: Sections, section: str, name: str, fastbert_row: Mapping[str, Any] | None, case: str = ""
) -> str:
    reason = _reason(sections, section, name, FASTBERT, case) if fastbert_row is None else "the copy was not measured"
    return f"unmeasured: {reason}"


def _fused(sections: Sections) -> Iterable[Verdict]:
    """Judge both goals of a pattern in one line."""
    target = f">= {COPY_GOAL:.0%} of copy, {EAGER_GOAL:g}x eager"
    for operation, widths in FUSED.items():
        for direction in ("forward", "backward"):
            for width in widths:
                name, case = f"{operation} {direction} {width}", f"fused {operation} {width}"
                rows = _rows(sections, "fused", name)
                fastbert_row, eager = _row(rows, FASTBERT), _row(rows, "eager")
                share = None if fastbert_row is None else _share_of_copy(sections, fastbert_row)
                if fastbert_row is None or share is None:
                    yield Verdict(name, target, "-", _no_share(sections, "fused", name, fastbert_row, case))
                    continue
                speed, backend = fastbert_row["gigabytes_per_second"], fastbert_row["details"]["backend"]
                text = f"{share:.0%} ({speed:,.0f} GB/s, {backend})"
                if eager is None:
                    reason = _reason(sections, "fused", name, "eager", case)
                    yield Verdict(name, target, text, f"unmeasured: no eager: {reason}")
                    continue
                ratio = eager["median_ms"] / fastbert_row["median_ms"]
                reached = share >= COPY_GOAL and ratio >= EAGER_GOAL
                yield Verdict(name, target, f"{text}, {ratio:.2f}x eager", _judge(fastbert_row, reached))


def _linear(sections: Sections) -> Iterable[Verdict]:
    for direction in ("forward", "backward"):
        for width in LINEAR_WIDTHS:
            name, target = f"linear_gelu {direction} {width}", f">= {LINEAR_GOAL:g} TFLOP/s"
            rows = _rows(sections, "fused", name)
            fastbert_row = _row(rows, FASTBERT)
            if fastbert_row is None:
                yield Verdict(name, target, "-", f"unmeasured: {_reason(sections, 'fused', name, FASTBERT)}")
                continue
            rivals = [row for row in rows if row["contender"] != FASTBERT]
            multiples = "".join(
                f", {row['median_ms'] / fastbert_row['median_ms']:.2f}x {row['contender']}" for row in rivals
            )
            yield Verdict(
                name,
                target,
                f"{fastbert_row['tflops']:.0f}{multiples}",
                _judge(fastbert_row, fastbert_row["tflops"] >= LINEAR_GOAL),
            )


def _loss(sections: Sections) -> Iterable[Verdict]:
    for rows in LOSS_ROWS:
        name = f"loss {rows}"
        yield _against(sections, "loss", name, f"{name} / eager", LOSS_GOAL, lambda candidates: ["eager"])
        goal, target = f"{name}, extra memory", f"<= {MEMORY_GOAL:.0%} of fp32 logits"
        fastbert_row = _row(_rows(sections, "loss", name), FASTBERT)
        extra = None if fastbert_row is None else fastbert_row["details"]["extra_bytes"]
        if fastbert_row is None or extra is None:
            reason = (
                _reason(sections, "loss", name, FASTBERT)
                if fastbert_row is None
                else "the device does not count memory"
            )
            yield Verdict(goal, target, "-", f"unmeasured: {reason}")
            continue
        share = extra / fastbert_row["details"]["logits_bytes"]
        yield Verdict(goal, target, f"{share:.1%} ({extra / 1e6:,.0f} MB)", _judge(fastbert_row, share <= MEMORY_GOAL))


def _layer(sections: Sections) -> Iterable[Verdict]:
    for size in ("base", "large"):
        for length in (128, 512):
            name = f"layer {size} {length} half"
            for rival, target in LAYER_GOALS.items():
                yield _against(sections, "layer", name, f"{name} / {rival}", target, lambda rows, rival=rival: [rival])


def _encoder(sections: Sections) -> Iterable[Verdict]:
    yield _rate(sections, "encoder", "encoder base 128 full", INFERENCE_GOAL, "sequences")
    for name, target in (("encoder base 128 real", REAL_GOAL), ("encoder base 16 latency", LATENCY_GOAL)):
        yield _against(
            sections, "encoder", name, f"{name} / transformers", target, lambda rows: RIVALS, (FASTBERT, GRAPHS)
        )


def _pretraining(sections: Sections) -> Iterable[Verdict]:
    for name, (target, unit) in STEP_GOALS.items():
        yield _rate(sections, "pretraining", name, target, unit)


def _rate(sections: Sections, section: str, name: str, target: float, unit: str) -> Verdict:
    """Judge sequences or real tokens per second, from single kernels or from graphs, whichever is faster."""
    goal, text = f"{name}, {unit}/s", f">= {target:,.0f}"
    fastbert_row = _fastest(_rows(sections, section, name), (FASTBERT, GRAPHS))
    if fastbert_row is None:
        return Verdict(goal, text, "-", f"unmeasured: {_reason(sections, section, name, FASTBERT)}")
    rate = fastbert_row["details"][unit] / fastbert_row["median_ms"] * 1e3
    return Verdict(goal, text, f"{rate:,.0f} ({fastbert_row['contender']})", _judge(fastbert_row, rate >= target))


def _against(
    sections: Sections,
    section: str,
    name: str,
    goal: str,
    target: float,
    rivals: Callable[[Rows], Sequence[str]],
    owns: Sequence[str] = (FASTBERT,),
) -> Verdict:
    """Judge fastbert's speed as a multiple of the fastest of some contenders."""
    rows, text = _rows(sections, section, name), f">= {target:g}x"
    fastbert_row = _fastest(rows, owns)
    if fastbert_row is None:
        return Verdict(goal, text, "-", f"unmeasured: {_reason(sections, section, name, FASTBERT)}")
    wanted_names = rivals(rows)
    best = _fastest([row for row in rows if row["outputs"] in AGREEING], wanted_names)
    if best is None:
        sought = "sdpa" if section == "attention" else wanted_names[0]
        reason = _reason(sections, section, name, sought)
        return Verdict(goal, text, f"{fastbert_row['median_ms']:.4g} ms", f"unmeasured: no rival ran: {reason}")
    ratio = best["median_ms"] / fastbert_row["median_ms"]
    measured = f"{ratio:.2f}x {best['contender']} ({fastbert_row['median_ms']:.4g} ms"
    measured += f", {fastbert_row['tflops']:.0f} TFLOP/s" if fastbert_row.get("tflops") is not None else ""
    measured += f", {fastbert_row['contender']})" if fastbert_row["contender"] != FASTBERT else ")"
    return Verdict(goal, text, measured, _judge(fastbert_row, ratio >= target))


def _fastest(rows: Rows, names: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the fastest of the named contenders; one whose outputs are wrong only if there is no other."""
    candidates = [row for row in rows if row["contender"] in names]
    return min(candidates, key=lambda row: (row["outputs"] not in AGREEING, float(row["median_ms"])), default=None)


def ratios(sections: Sections) -> list[dict[str, Any]]:
    """Return fastbert's time per workload beside the fastest rival's with the same dropout."""
    entries = []
    for section in ("attention", "softmax", "fused", "loss", "layer"):
        rows = sections.get(section, {}).get("rows", ())
        for fastbert_row in (row for row in rows if row["contender"] == FASTBERT):
            name = fastbert_row["workload"]
            rivals = [
                row for row in _rows(sections, section, name) if row["contender"] not in (FASTBERT, WITHOUT_DROPOUT)
            ]
            rivals = [row for row in rivals if row["outputs"] in AGREEING]
            best = min(rivals, key=lambda row: float(row["median_ms"]), default=None)
            entry = {name: fastbert_row.get(name) for name in ("workload", "median_ms", "tflops", "host_us", "outputs")}
            entry["best"] = None if best is None else best["contender"]
            entry["ratio"] = None if best is None else float(f"{best['median_ms'] / fastbert_row['median_ms']:.4g}")
            entries.append(entry)
    return entries


def _judge(fastbert_row: Mapping[str, Any], reached: bool) -> str:
    doubt = " (Python-bound)" if fastbert_row.get("host_bound") else ""
    if fastbert_row["outputs"] not in AGREEING:
        return str(fastbert_row["outputs"])
    return ("met" if reached else "missed") + doubt


def _rows(sections: Sections, section: str, workload: str) -> Rows:
    return [row for row in sections.get(section, {}).get("rows", ()) if row["workload"] == workload]


def _row(rows: Rows, contender: str) -> Mapping[str, Any] | None:
    return next((row for row in rows if row["contender"] == contender), None)


def _reason(sections: Sections, section: str, workload: str, contender: str, case: str = "") -> str:
    """Return why there is no row, from the section's notes; `case` is the case's name if it differs."""
    result, names = sections.get(section), (workload, case)
    if result is None:
        return f"section {section} was not run"
    for failure in result.get("failures", ()):
        if failure["case"] in names:
            return str(failure["reason"])[:120]
    for entry in result.get("unmeasured", ()):
        if entry["workload"] == workload and entry["contender"].startswith(contender):
            return str(entry["reason"])[:120]
    if set(result.get("out_of_time", ())) & set(names):
        return "out of time"
    return str(result.get("reason", "no such case"))[:120]


def has_goal(workload: str) -> bool:
    """Return whether the table has a line for the workload."""
    words = workload.split()
    if words[0] == "softmax":
        return words[1] == "forward"
    if words[0] == "attention":
        return len(words) == 6 and words[2] in map(str, LENGTHS) and words[3] != "lognormal"
    return words[-1] not in ("inference", "frequent", "full")
