"""The goals of single operations, of a layer and of inference, and their measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastbert.benchmarks.gpu.judging import (
    GRAPHS,
    Rows,
    Sections,
    Verdict,
    against,
    all_rows,
    judge,
    rate,
    reason_without,
    row_of,
    rows_of,
    share_of_copy,
    unmeasured,
)
from fastbert.benchmarks.harness.measure import AGREEING, FASTBERT

LENGTHS = (128, 512, 2048, 8192)
FULL_GOAL, HALF_GOAL = 1.0, 1.7  # times the best fused attention of torch, full and half empty
CUDNN_GOAL = 0.75  # times cuDNN without dropout, for fastbert's backward pass with dropout
COPY_GOAL, EAGER_GOAL = 0.8, 2.5  # of the copy's bandwidth; times eager torch
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
# Times transformers' eager class, or the faster of torch's implementations.
POSITION_GOALS = {
    "disentangled step 128": 1.5,
    "disentangled step 512": 1.75,
    "disentangled step 2048": 1.75,
    "windowed step 512": 1.1,
    "windowed step 8192": 1.1,
    "rotary step 1024": 1.1,
}
LAYER_GOALS = {"eager": 2.0, "eager compiled": 1.2}
INFERENCE_GOAL, REAL_GOAL, LATENCY_GOAL = 22_000.0, 2.5, 5.0  # sequences per second; times transformers
RIVALS = ("transformers sdpa", "torch padded")


def verdicts(sections: Sections) -> list[Verdict]:
    """Return all goals in the order of the table."""
    judges = (_attention, _cudnn, _positions, _softmax, _fused, _linear, _loss, _layer, _encoder)
    return [verdict for part in judges for verdict in part(sections)]


def _attention(sections: Sections) -> Iterable[Verdict]:
    for padding, target in (("full", FULL_GOAL), ("half", HALF_GOAL)):
        for direction in ("forward", "backward"):
            for length in LENGTHS:
                for dropout in ("0.1", "0"):
                    name = f"attention {direction} {length} {padding} dropout {dropout}"
                    goal = f"{direction} {length} {padding}, dropout {dropout}"
                    yield against(sections, "attention", name, goal, target, fused_names)


def fused_names(rows: Rows) -> list[str]:
    """Return torch's fused attention on padded tensors with the same dropout."""
    names = (str(row["contender"]) for row in rows)
    return [name for name in names if name.startswith("sdpa ") and name != WITHOUT_DROPOUT]


def _cudnn(sections: Sections) -> Iterable[Verdict]:
    for length in (2048, 8192):
        name = f"attention backward {length} full dropout 0.1"
        goal = f"backward {length}, dropout 0.1 / cuDNN without"
        yield against(sections, "attention", name, goal, CUDNN_GOAL, lambda rows: [WITHOUT_DROPOUT])


def _positions(sections: Sections) -> Iterable[Verdict]:
    for name, target in POSITION_GOALS.items():
        yield against(sections, "positions", name, name, target, lambda rows: ("transformers eager", "flex", "sdpa"))


def _softmax(sections: Sections) -> Iterable[Verdict]:
    for keys in (128, 512):
        name = f"softmax forward {keys}"
        yield against(sections, "softmax", name, f"softmax {keys} / eager", EAGER_GOAL, lambda rows: ["eager"])
        goal, target = f"softmax {keys} / copy bandwidth", f">= {COPY_GOAL:.0%}"
        fastbert_row = row_of(rows_of(sections, "softmax", name), FASTBERT)
        share = None if fastbert_row is None else share_of_copy(sections, fastbert_row)
        if fastbert_row is None or share is None:
            yield unmeasured(goal, target, _no_share(sections, "softmax", name, fastbert_row))
            continue
        text = f"{share:.0%} ({fastbert_row['gigabytes_per_second']:,.0f} GB/s, {fastbert_row['details']['backend']})"
        yield Verdict(goal, target, text, judge(fastbert_row, share >= COPY_GOAL))


def _no_share(
    sections: Sections, section: str, name: str, fastbert_row: Mapping[str, Any] | None, case: str = ""
) -> str:
    if fastbert_row is not None:
        return "the copy was not measured"
    return reason_without(sections, section, name, FASTBERT, case)


def _fused(sections: Sections) -> Iterable[Verdict]:
    """Judge both goals of a pattern in one line."""
    target = f">= {COPY_GOAL:.0%} of copy, {EAGER_GOAL:g}x eager"
    for operation, widths in FUSED.items():
        for direction in ("forward", "backward"):
            for width in widths:
                name, case = f"{operation} {direction} {width}", f"fused {operation} {width}"
                rows = rows_of(sections, "fused", name)
                fastbert_row, eager = row_of(rows, FASTBERT), row_of(rows, "eager")
                share = None if fastbert_row is None else share_of_copy(sections, fastbert_row)
                if fastbert_row is None or share is None:
                    yield unmeasured(name, target, _no_share(sections, "fused", name, fastbert_row, case))
                    continue
                speed, backend = fastbert_row["gigabytes_per_second"], fastbert_row["details"]["backend"]
                text = f"{share:.0%} ({speed:,.0f} GB/s, {backend})"
                if eager is None:
                    reason = reason_without(sections, "fused", name, "eager", case)
                    yield unmeasured(name, target, f"no eager: {reason}", text)
                    continue
                ratio = eager["median_ms"] / fastbert_row["median_ms"]
                reached = share >= COPY_GOAL and ratio >= EAGER_GOAL
                yield Verdict(name, target, f"{text}, {ratio:.2f}x eager", judge(fastbert_row, reached))


def _linear(sections: Sections) -> Iterable[Verdict]:
    for direction in ("forward", "backward"):
        for width in LINEAR_WIDTHS:
            name, target = f"linear_gelu {direction} {width}", f">= {LINEAR_GOAL:g} TFLOP/s"
            rows = rows_of(sections, "linear", name)
            fastbert_row = row_of(rows, FASTBERT)
            if fastbert_row is None:
                yield unmeasured(name, target, reason_without(sections, "linear", name, FASTBERT))
                continue
            rivals = [row for row in rows if row["contender"] != FASTBERT]
            multiples = "".join(
                f", {row['median_ms'] / fastbert_row['median_ms']:.2f}x {row['contender']}" for row in rivals
            )
            yield Verdict(
                name,
                target,
                f"{fastbert_row['tflops']:.0f}{multiples}",
                judge(fastbert_row, fastbert_row["tflops"] >= LINEAR_GOAL),
            )


def _loss(sections: Sections) -> Iterable[Verdict]:
    for rows in LOSS_ROWS:
        name = f"loss {rows}"
        yield against(sections, "loss", name, f"{name} / eager", LOSS_GOAL, lambda candidates: ["eager"])
        goal, target = f"{name}, extra memory", f"<= {MEMORY_GOAL:.0%} of fp32 logits"
        fastbert_row = row_of(rows_of(sections, "loss", name), FASTBERT)
        extra = None if fastbert_row is None else fastbert_row["details"]["extra_bytes"]
        if fastbert_row is None or extra is None:
            reason = (
                reason_without(sections, "loss", name, FASTBERT)
                if fastbert_row is None
                else "the device does not count memory"
            )
            yield unmeasured(goal, target, reason)
            continue
        share = extra / fastbert_row["details"]["logits_bytes"]
        yield Verdict(goal, target, f"{share:.1%} ({extra / 1e6:,.0f} MB)", judge(fastbert_row, share <= MEMORY_GOAL))


def _layer(sections: Sections) -> Iterable[Verdict]:
    for size in ("base", "large"):
        for length in (128, 512):
            name = f"layer {size} {length} half"
            for rival, target in LAYER_GOALS.items():
                yield against(sections, "layer", name, f"{name} / {rival}", target, lambda rows, rival=rival: [rival])


def _encoder(sections: Sections) -> Iterable[Verdict]:
    name = "encoder base 128 full"
    yield rate(sections, "encoder", name, f"{name}, sequences/s", INFERENCE_GOAL, "sequences")
    for name, target in (("encoder base 128 real", REAL_GOAL), ("encoder base 16 latency", LATENCY_GOAL)):
        yield against(
            sections, "encoder", name, f"{name} / transformers", target, lambda rows: RIVALS, (FASTBERT, GRAPHS)
        )


def ratios(sections: Sections) -> list[dict[str, Any]]:
    """Return fastbert's time per workload beside the fastest rival's with the same dropout."""
    entries = []
    for section in ("attention", "positions", "softmax", "fused", "linear", "loss", "layer"):
        rows = all_rows(sections, section)
        for fastbert_row in (row for row in rows if row["contender"] == FASTBERT):
            name = fastbert_row["workload"]
            rivals = [
                row for row in rows_of(sections, section, name) if row["contender"] not in (FASTBERT, WITHOUT_DROPOUT)
            ]
            rivals = [row for row in rivals if row["outputs"] in AGREEING]
            best = min(rivals, key=lambda row: float(row["median_ms"]), default=None)
            entry = {name: fastbert_row.get(name) for name in ("workload", "median_ms", "tflops", "host_us", "outputs")}
            entry["best"] = None if best is None else best["contender"]
            entry["ratio"] = None if best is None else float(f"{best['median_ms'] / fastbert_row['median_ms']:.4g}")
            entries.append(entry)
    return entries


def has_goal(workload: str) -> bool:
    """Return whether the table has a line for the workload."""
    words = workload.split()
    if words[0] == "softmax":
        return words[1] == "forward"
    if words[0] == "attention":
        return len(words) == 6 and words[2] in map(str, LENGTHS) and words[3] != "lognormal"
    return words[-1] not in ("inference", "frequent", "full")
