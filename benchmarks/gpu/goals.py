"""The figures that decide whether the GPU path is fast, and their measurements; then those of single operations.

An unmeasured figure has a reason, never an estimate. Steps are judged by the goals of an H100, on an H200 by goals 10 %
above, and on other GPUs by those of an H100 too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from fastbert.benchmarks.gpu import operation_goals
from fastbert.benchmarks.gpu.judging import (
    FASTBERT,
    OURS,
    Sections,
    Verdict,
    against,
    judge,
    rate,
    reason_without,
    row_of,
    rows_of,
    share_of_copy,
    unmeasured,
)
from fastbert.benchmarks.gpu.operation_goals import has_goal, ratios

__all__ = ["figures", "has_goal", "ratios", "verdicts"]

# Instructions per score in the inner loop with dropout, on sm_90: at most 70 % of those counted before.
INSTRUCTIONS = {
    "forward_long": 0.7 * 553 / 32,
    "backward_queries": 0.7 * 634 / 32,
    "backward_keys": 0.7 * 696 / 32,
    # In place of both.
    "backward_medium": 0.7 * (634 + 696) / 32,
}
PROGRAMS = 3  # per multiprocessor, of forward with dropout at 64 columns per head
# Sequences per second of a step of 32,768 tokens of base on an H100: at the first run, and with tuned kernels.
STEPS = {
    "pretraining base 128 full": (("first run", 6_200.0), ("tuned", 7_000.0)),
    "pretraining base 512 full": (("first run", 1_310.0), ("tuned", 1_640.0)),
}
H200_FACTOR = 1.1
LARGE, LARGE_TOKENS = "pretraining large 512 packed", 263_000.0
# Times as fast as the same step in plain torch on padded tensors: workload, rivals, multiple.
STEP_RIVALS = (
    ("eager bf16", "pretraining base 128 full", ("eager",), 2.5),
    ("torch.compile", "pretraining base 128 full", ("eager compiled",), 1.3),
    ("padded, real lengths", "pretraining base 128 real", ("eager", "eager compiled"), 2.0),
)
EARLIER_GOAL = 1.3  # times the backward pass of the kernels before, at 512 with dropout
CUDNN_GOAL, HALF_GOAL = 0.75, 1.7  # times cuDNN's backward without dropout at 512, full and half empty
GELU_GOAL = 1.1  # times the library's matmul and one pass
COPY_GOAL = 0.8
NORMS = ("layer_norm", "dropout_add_layer_norm", "gelu_layer_norm", "embedding_layer_norm")
LOSS_GOAL, MEMORY_GOAL = 1.0, 0.1  # times eager torch, at this share of its memory


def verdicts(sections: Sections, dry_run: bool) -> list[dict[str, str]]:
    """Return all goals in the order of the table; figures of a dry run are not judged."""
    if dry_run:
        return [asdict(Verdict("all goals", "-", "dry run on a CPU", "unmeasured: figures of a dry run mean nothing"))]
    return [asdict(verdict) for verdict in (*figures(sections), *operation_goals.verdicts(sections))]


def figures(sections: Sections) -> list[Verdict]:
    """Return the figures that decide."""
    parts = (_resources, _steps, _attention, _gelu, _norms, _loss)
    return [verdict for part in parts for verdict in part(sections)]


def _resources(sections: Sections) -> Iterable[Verdict]:
    for kernel, most in INSTRUCTIONS.items():
        yield _compiled(sections, kernel, "instructions per score", "per_score", f"<= {most:.1f}", most)
    yield _compiled(sections, "forward_long", "programs per multiprocessor", "programs", f">= {PROGRAMS}", PROGRAMS)


def _compiled(sections: Sections, kernel: str, what: str, name: str, target: str, bound: float) -> Verdict:
    goal = f"{what}, {kernel} with dropout"
    section = sections.get("resources", {})
    values = [entry[name] for entry in section.get("kernels", ()) if entry["kernel"] == kernel and entry.get(name)]
    if not values:
        reason = str(section.get("reason", "no such kernel")) if section else "section resources was not run"
        return unmeasured(goal, target, reason)
    value = float(values[0])
    met = value <= bound if target.startswith("<=") else value >= bound
    return Verdict(goal, target, f"{value:.1f}".removesuffix(".0"), "met" if met else "missed")


def _steps(sections: Sections) -> Iterable[Verdict]:
    name_of_gpu = str(sections.get("environment", {}).get("gpu", {}).get("name", ""))
    factor = H200_FACTOR if "H200" in name_of_gpu else 1.0
    for workload, stages in STEPS.items():
        for stage, target in stages:
            goal = f"{workload}, sequences/s, {stage}"
            yield rate(sections, "pretraining", workload, goal, factor * target, "sequences")
    yield rate(sections, "pretraining", LARGE, f"{LARGE}, tokens/s", LARGE_TOKENS, "tokens")
    for rival, workload, names, target in STEP_RIVALS:
        goal = f"{workload} / {rival}"
        yield against(sections, "pretraining", workload, goal, target, lambda rows, names=names: names, OURS)  # type: ignore[misc]


def _attention(sections: Sections) -> Iterable[Verdict]:
    name = "attention backward 512 full dropout 0.1"
    row = row_of(rows_of(sections, "attention", name), FASTBERT)
    reason = (
        reason_without(sections, "attention", name, FASTBERT)
        if row is None
        else "the earlier kernels were not measured"
    )
    measured = "-" if row is None else f"{row['median_ms']:.4g} ms"
    yield unmeasured("attention backward 512, dropout / earlier kernels", f">= {EARLIER_GOAL:g}x", reason, measured)
    for padding, target in (("full", CUDNN_GOAL), ("half", HALF_GOAL)):
        name = f"attention backward 512 {padding} dropout 0"
        goal = f"attention backward 512 {padding} / cuDNN"
        yield against(sections, "attention", name, goal, target, lambda rows: ["sdpa cudnn"])


def _gelu(sections: Sections) -> Iterable[Verdict]:
    for direction in ("forward", "backward"):
        name = f"linear_gelu {direction} 768"
        goal = f"{name} / matmul and one pass"
        yield against(sections, "linear", name, goal, GELU_GOAL, lambda rows: ["matmul, bias_gelu"])


def _norms(sections: Sections) -> Iterable[Verdict]:
    goal, target = "LayerNorm family 768 / copy bandwidth, the lowest", f">= {COPY_GOAL:.0%}"
    shares: list[tuple[float, Mapping[str, Any]]] = []
    for operation in NORMS:
        for direction in ("forward", "backward"):
            name = f"{operation} {direction} 768"
            row = row_of(rows_of(sections, "fused", name), FASTBERT)
            share = None if row is None else share_of_copy(sections, row)
            if row is None or share is None:
                case = f"fused {operation} 768"
                reason = reason_without(sections, "fused", name, FASTBERT, case) if row is None else "no copy"
                yield unmeasured(goal, target, reason)
                return
            shares.append((share, row))
    share, row = min(shares, key=lambda pair: pair[0])
    yield Verdict(goal, target, f"{share:.0%} ({row['workload']})", judge(row, share >= COPY_GOAL))


def _loss(sections: Sections) -> Iterable[Verdict]:
    """Judge time and memory beside eager torch at the number of rows of a step."""
    name, goal = "loss 4096", "loss 4096 / eager, at its memory"
    target = f">= {LOSS_GOAL:g}x at <= {MEMORY_GOAL:.0%}"
    rows = rows_of(sections, "loss", name)
    ours, eager = row_of(rows, FASTBERT), row_of(rows, "eager")
    if ours is None or eager is None:
        yield unmeasured(goal, target, reason_without(sections, "loss", name, FASTBERT if ours is None else "eager"))
        return
    ratio = eager["median_ms"] / ours["median_ms"]
    extra = [row["details"]["extra_bytes"] for row in (ours, eager)]
    if None in extra:
        yield unmeasured(goal, target, "the device does not count memory", f"{ratio:.2f}x")
        return
    share = extra[0] / max(extra[1], 1)
    reached = ratio >= LOSS_GOAL and share <= MEMORY_GOAL
    yield Verdict(goal, target, f"{ratio:.2f}x at {share:.1%}", judge(ours, reached))
