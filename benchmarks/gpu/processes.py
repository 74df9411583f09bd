"""Run separate processes beside the measuring one: compilers of many variants in parallel, and nvidia-smi."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from fastbert.kernels.tuning.processes import child_of_ours

MOST_AT_ONCE = 16
QUERY = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,memory.total,temperature.gpu,power.limit"
LAST_LINES = 8


def smi() -> dict[str, str]:
    """Return the GPU's name and clocks from the driver; empty without nvidia-smi."""
    try:
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return {}
    lines = done.stdout.splitlines()
    return dict(zip(QUERY.split(","), lines[0].split(", "))) if done.returncode == 0 and lines else {}


# Compiling


@dataclass
class _Job:
    variant: dict[str, Any]
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    began: float


def compile_all(
    variants: Sequence[dict[str, Any]], environment: Mapping[str, str], seconds: float
) -> list[dict[str, Any]]:
    """Run every variant in a process, one per core at a time; return the time of each, or its last lines."""
    at_once = min(MOST_AT_ONCE, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)
    # One thread each: a pool of compilers per process would exceed the cores.
    environment = {**os.environ, **environment, **child_of_ours(), "OMP_NUM_THREADS": "1"}
    deadline = time.monotonic() + seconds
    waiting, running = list(variants), list[_Job]()
    results: list[dict[str, Any]] = []
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.pop(0), environment))
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                results.append(_finish(job))
            time.sleep(0.05)
    finally:
        results += [_finish(job) for job in running]
    return results + [{"name": variant["name"], "error": "out of time"} for variant in waiting]


def _start(variant: dict[str, Any], environment: Mapping[str, str]) -> _Job:
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _finish
    command = [sys.executable, "-P", "-m", "fastbert.benchmarks.gpu.precompile", json.dumps(variant)]
    process = subprocess.Popen(
        command, stdout=output, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
    )
    return _Job(variant, process, output, time.monotonic())


def _finish(job: _Job) -> dict[str, Any]:
    timed_out = job.process.poll() is None
    if timed_out:
        kill(job.process)
    code = job.process.wait()
    with job.output:
        job.output.seek(0)
        lines = job.output.read().decode(errors="replace").splitlines()
    result: dict[str, Any] = {"name": job.variant["name"], "process_seconds": round(time.monotonic() - job.began, 2)}
    if timed_out:
        return {**result, "error": "out of time", "lines": lines[-LAST_LINES:]}
    if code != 0 or not lines:
        return {**result, "error": f"its process ended with code {code}", "lines": lines[-LAST_LINES:]}
    return {**result, **json.loads(lines[-1])}


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, which are a session of their own."""
    with suppress(ProcessLookupError):  # it has ended, and been waited for
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
