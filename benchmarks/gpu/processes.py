"""Sections that run in separate processes: compiling many variants in parallel, the tests, and nvidia-smi."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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
    environment = {**os.environ, **environment, "OMP_NUM_THREADS": "1"}
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
        _kill(job.process)
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


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, which are a session of their own."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# Tests


def run_tests(root: Path, out: Path, environment: Mapping[str, str], seconds: float, dry: bool) -> dict[str, Any]:
    """Run `pytest -m gpu`; return the counts and one line per failure. tests.txt has the whole output."""
    folder = root / "tests"
    if not folder.is_dir():
        return {"status": "failed", "reason": f"{folder} is absent: run from a clone"}
    command = [sys.executable, "-P", "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "--tb=short"]
    # A module that cannot be imported here, because a package is missing, only costs itself.
    command.append("--continue-on-collection-errors")
    command.append(str(folder / "ops" if dry else folder))
    # The tests must run on the real device: the interpreter of a dry run would change what they test.
    test_environment = {name: value for name, value in environment.items() if name != "TRITON_INTERPRET"}
    output = out / "tests.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=root,
            env={**os.environ, **test_environment},
            start_new_session=True,
        )
        code = None
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            print(f"pytest was stopped after {seconds:.0f} s", file=sys.stderr)
        finally:
            if code is None:
                _kill(process)
    return {"exit_code": code, **read_tests(output.read_text(errors="replace"), code)}


def read_tests(text: str, code: int | None) -> dict[str, Any]:
    """Return status, counts and failures from pytest's output; `code` None: stopped, 5: no test was selected."""
    lines = text.splitlines()
    last = next((line for line in reversed(lines) if re.search(r"\d+ (passed|failed|error|skipped|desel)", line)), "")
    counts = {name: int(number) for number, name in re.findall(r"(\d+) ([a-z]+)", last)}
    failures = [line[:300] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    result: dict[str, Any] = {"counts": counts, "failures": failures[:40]}
    if code in (0, 5):
        reason = "no test is marked gpu" if code == 5 else ""
        return {"status": "ok", **result, **({"reason": reason} if reason else {})}
    reason = "out of time" if code is None else f"pytest ended with code {code}"
    return {"status": "failed", **result, "reason": reason, "lines": lines[-LAST_LINES:]}
