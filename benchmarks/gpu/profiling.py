"""Nsight Compute on three kernels, where it is installed: how busy the matrix units and the memory are.

python -P -m fastbert.benchmarks.gpu.profiling NAME      # one of WORKLOADS, in the process that `ncu` watches
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fastbert.benchmarks.gpu import attention, fused, linear
from fastbert.benchmarks.gpu.device import Device, open_device
from fastbert.benchmarks.gpu.session import Session
from fastbert.kernels.tuning.processes import end_with_parent

PROFILED_SECONDS = 90.0  # for one workload
SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy")
LAST_LINES = 8


def _attention(device: Device) -> Callable[[], Any]:
    shape = attention.Shape(length=512, sequences=64, dropout=0.1, direction="backward")
    inputs = attention.make_inputs(device, shape, 0)
    out = attention.run_fastbert(inputs)
    return lambda: torch.autograd.grad(out, inputs.leaves(False), inputs.gradient, retain_graph=True)


def _linear(device: Device) -> Callable[[], Any]:
    inputs = linear.draw(device, *linear.SHAPES[0], 0)
    return lambda: linear.contenders("forward")[linear.TRITON_MATMUL](inputs)


def _norm(device: Device) -> Callable[[], Any]:
    pattern = fused.PATTERNS["dropout_add_layer_norm"]
    inputs = fused.draw(device, pattern, fused.TOKENS, 768, 0)
    return lambda: pattern.fastbert(inputs)


WORKLOADS: dict[str, Callable[[Device], Callable[[], Any]]] = {
    "attention backward 512 full dropout 0.1": _attention,
    "linear_gelu forward 768": _linear,
    "dropout_add_layer_norm forward 768": _norm,
}


def profile(session: Session, seconds: float) -> dict[str, Any]:
    """Profile every workload; the section's result. ncu.txt has the whole reports."""
    tool = shutil.which("ncu")
    if not session.options.profile:
        return {"status": "skipped", "reason": "without --profile"}
    if tool is None:
        return {"status": "skipped", "reason": "Nsight Compute (ncu) is not installed"}
    if session.options.dry_run:
        return {"status": "skipped", "reason": "a dry run has no GPU"}
    session.worker.close()  # its memory, and its share of the GPU
    deadline, result = time.monotonic() + seconds, {"status": "ok", "kernels": [], "failures": []}
    report = session.options.out / "ncu.txt"
    for name in WORKLOADS:
        command = [
            tool, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "details",
            *(word for section in SECTIONS for word in ("--section", section)),
            sys.executable, "-P", "-m", "fastbert.benchmarks.gpu.profiling", name,
        ]  # fmt: skip
        allowed = min(PROFILED_SECONDS, deadline - time.monotonic())
        text, reason = _output(command, {**os.environ, **session.environment}, allowed)
        with report.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n{text}\n")
        kernels = read_report(text.splitlines())
        if reason or not kernels:
            lines = text.splitlines()[-LAST_LINES:]
            result["failures"].append({"case": name, "reason": reason or "no kernel was profiled", "lines": lines})
            result["status"] = "partial"
        result["kernels"] += [
            {"workload": name, "kernel": kernel, "metrics": values} for kernel, values in kernels.items()
        ]
        session.show("profile", result)
    return result


def _output(command: list[str], environment: dict[str, str], seconds: float) -> tuple[str, str]:
    """Return what a command printed, and why it failed."""
    if seconds < 1.0:
        return "", "out of time"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        return "", f"no report within {seconds:.0f} s"
    reason = f"ncu ended with code {done.returncode}" if done.returncode else ""
    return done.stdout + done.stderr, reason


def read_report(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the metrics with their units, by kernel, of a report in CSV among other lines."""
    table = io.StringIO("\n".join(line for line in lines if line.startswith('"')))
    kernels: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(table):
        if row.get("Metric Name"):
            values = kernels.setdefault(row["Kernel Name"], {})
            values[row["Metric Name"]] = f"{row['Metric Value']} {row['Metric Unit']}".strip()
    return kernels


def main(name: str) -> None:
    """Run a workload twice, the second time under the profiler."""
    end_with_parent()
    call = WORKLOADS[name](open_device(False))
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
