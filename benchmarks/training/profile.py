"""Profile a training step: its phases by the clock, and its operations by torch's profiler.

While it runs, calls into the extension are announced to the profiler by name, so the time of native kernels is
attributed like that of torch's operations, wherever they are called from.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fastbert import _C
from fastbert.benchmarks.harness.measure import clock

EXTENSION = "fastbert._C."
REST = "rest"
# The first pattern that matches an operation's name, without "aten::" or "fastbert._C.", gets its time.
OPERATIONS = (
    ("optimizer", r"_fused_adam|adam|Optimizer\."),
    ("clip", r"linalg_vector_norm|_foreach_norm|_foreach_mul_|gradient_norm|clip"),
    ("loss", r"_?log_softmax|nll_loss|cross_entropy|argmax"),
    ("embeddings", r"embedding|index_select"),
    ("attention", r"attention|_?(safe_)?softmax|bmm|baddbmm"),
    ("matmuls", r"mm$|addmm|matmul|weight_gradient|mkldnn.*linear|linear$|quantize_rows|(re)?pack"),
    ("norms", r"norm"),
    ("GELU", r"gelu"),
    ("dropout", r"bernoulli|dropout"),
    ("casts", r"copy_|_to_copy|clone|cat$|contiguous"),
    ("elementwise", r"(add|sub|mul|div|sum|where|pow|clamp|neg|masked_fill|index|gather|scatter)"),
    ("memory", r"fill_|zero_|zeros|empty|resize_"),
)
PATTERNS = [(name, re.compile(pattern)) for name, pattern in OPERATIONS]


def profile(phases: Callable[[], dict[str, Callable[[], Any]]], rounds: int) -> dict[str, Any]:
    """Return `phases_ms`, the median milliseconds of each phase over `rounds` steps; `operations_ms`, the times of the
    operations of one more step, with `rest` for autograd, Python and everything else; and `profiled_ms`, the time of
    that step, which the profiler makes longer."""
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, phase in phases().items():
            times.setdefault(name, []).append(clock(phase).seconds)
    step = phases()

    def run() -> None:
        for phase in step.values():
            phase()

    with watched_extension(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        whole = clock(run).seconds * 1e3
    times_by_kind = dict.fromkeys((name for name, _ in OPERATIONS), 0.0)
    for event in profiler.key_averages():
        name = operation_of(event.key)
        if name != REST:
            times_by_kind[name] += event.self_cpu_time_total / 1e3
    times_by_kind[REST] = max(0.0, whole - sum(times_by_kind.values()))
    return {
        "phases_ms": {name: _rounded(statistics.median(seconds) * 1e3) for name, seconds in times.items()},
        "operations_ms": {name: _rounded(value) for name, value in times_by_kind.items() if value > 0},
        "profiled_ms": _rounded(whole),
    }


def operation_of(event: str) -> str:
    """Return the kind of operation of a profiler event."""
    if event.startswith(EXTENSION):
        name = event.removeprefix(EXTENSION)
    elif event.startswith(("aten::", "fastbert::", "Optimizer.")):
        name = event.removeprefix("aten::").removeprefix("fastbert::")
    else:
        return REST  # autograd's own bookkeeping
    return next((kind for kind, pattern in PATTERNS if pattern.search(name)), REST)


@contextmanager
def watched_extension() -> Iterator[None]:
    """Announce every function of the extension to torch's profiler until the end of the block."""
    functions = {name: value for name, value in vars(_C).items() if callable(value) and not isinstance(value, type)}
    announced = {id(function): _announced(name, function) for name, function in functions.items()}
    originals = []
    # In every module: some have imported functions from the extension.
    modules = [entry for name, entry in list(sys.modules.items()) if name.split(".")[0] == "fastbert"]
    for module in modules:
        for name, value in list(vars(module).items()):
            if id(value) in announced:
                originals.append((module, name, value))
                setattr(module, name, announced[id(value)])
    try:
        yield
    finally:
        for module, name, value in originals:
            setattr(module, name, value)


def _announced(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(f"{EXTENSION}{name}"):
            return function(*args, **kwargs)

    return call


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
