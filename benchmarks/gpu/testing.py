"""`pytest -m gpu` in parallel processes: with pytest-xdist where it is installed, else several pytests of some files
each. Results are kept test by test, as JSON and as JUnit XML, so that a run that is stopped names what failed before.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fastbert.benchmarks.gpu.processes import kill
from fastbert.benchmarks.gpu.pytest_lines import VARIABLE
from fastbert.benchmarks.gpu.session import Session
from fastbert.kernels.tuning.processes import child_of_ours

MOST_PROCESSES = 8
LAST_LINES = 8
SAVE_SECONDS = 2.0
DRY_FILES = ("tests/benchmarks/gpu/test_gpu_workloads.py", "tests/fastbert_kernels/test_kernel_parts.py")
NOT_FINISHED = "still running when the tests were stopped"


def gpu_files(root: Path) -> list[str]:
    """Return the test files that have tests for GPUs, the largest first."""
    files = [path for path in (root / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text(encoding="utf-8")]
    return [str(path.relative_to(root)) for path in sorted(files, key=lambda path: -path.stat().st_size)]


def commands(files: Sequence[str], processes: int, xdist: bool) -> list[list[str]]:
    """Return the command lines: one with pytest-xdist, else one for each process with its share of the files."""
    # A module that cannot be imported here, because a package is missing, only costs itself.
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", "--continue-on-collection-errors"]
    start = [sys.executable, "-P", "-m", "pytest", "-m", "gpu", *options, "-p", "fastbert.benchmarks.gpu.pytest_lines"]
    if xdist:
        return [[*start, "-n", str(processes), *files]]
    return [[*start, *files[shard::processes]] for shard in range(min(processes, len(files)))]


def tests(session: Session, seconds: float) -> dict[str, Any]:
    """Run the tests for at most `seconds`; the section's result."""
    options = session.options
    if not (options.root / "tests").is_dir():
        return {"status": "failed", "reason": f"{options.root / 'tests'} is absent: run from a clone"}
    if importlib.util.find_spec("pytest") is None:
        return {"status": "failed", "reason": "pytest is not installed"}
    files = list(DRY_FILES) if options.dry_run else gpu_files(options.root)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4
    processes = max(1, min(MOST_PROCESSES, cores // 2))
    xdist = importlib.util.find_spec("xdist") is not None
    lines = commands(files, processes, xdist)
    how = f"pytest-xdist, {processes} processes" if xdist else f"{len(lines)} processes of pytest, by file"
    folder = Path(tempfile.mkdtemp(prefix="fastbert-tests-"))
    try:
        return {"how": how, **_run(session, lines, folder, seconds)}
    finally:
        shutil.rmtree(folder)


def _run(session: Session, commands: Sequence[Sequence[str]], folder: Path, seconds: float) -> dict[str, Any]:
    options, output = session.options, session.options.out / "tests.txt"
    deadline, saved = time.monotonic() + seconds, 0.0
    running: list[subprocess.Popen[bytes]] = []
    try:
        with output.open("wb") as file:
            for index, command in enumerate(commands):
                environment = {
                    **os.environ,
                    **session.environment,
                    VARIABLE: str(folder / f"{index}.jsonl"),
                    **child_of_ours(),
                }
                # A process and its workers are a session of their own, which is ended as one.
                running.append(
                    subprocess.Popen(
                        command,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        cwd=options.root,
                        env=environment,
                        start_new_session=True,
                    )
                )
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(0.1)
            if time.monotonic() - saved > SAVE_SECONDS:
                session.show("tests", _results(folder, options.out))
                saved = time.monotonic()
        codes = [process.poll() for process in running]
    finally:
        for process in running:
            kill(process)
    result = _results(folder, options.out)
    lines = output.read_text(errors="replace").splitlines()
    return {"exit_codes": codes, **judged(result, codes, lines)}


def judged(result: dict[str, Any], codes: Sequence[int | None], lines: Sequence[str]) -> dict[str, Any]:
    """Return the result with its status, by the exit codes of pytest: None was stopped, 5 had no test for GPUs."""
    if None in codes:
        return {**result, "status": "failed", "reason": "out of time"}
    bad = [code for code in codes if code not in (0, 5)]
    if bad:
        return {
            **result,
            "status": "failed",
            "reason": f"pytest ended with code {bad[0]}",
            "lines": lines[-LAST_LINES:],
        }
    return {**result, "status": "ok", **({} if result["counts"] else {"reason": "no test is marked gpu"})}


def _results(folder: Path, out: Path) -> dict[str, Any]:
    """Read what the processes have written so far; write tests.xml, and return counts, failures and running tests."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]
    # The last line of a process that was killed may be incomplete.
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    result = summary(entries)
    write_junit(out / "tests.xml", [*result.pop("tests"), *result["unfinished"]])
    return result


def summary(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return counts by outcome, failures with their messages, unfinished tests, and all tests, from the plugin's
    lines."""
    started: list[str] = []
    tests: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if "started" in entry:
            started.append(entry["started"])
        elif tests.get(entry["test"], {}).get("outcome") != "failed":  # a failed call, not its passed teardown
            tests[entry["test"]] = dict(entry)
    counts: dict[str, int] = {}
    for test in tests.values():
        counts[test["outcome"]] = counts.get(test["outcome"], 0) + 1
    failures = [test for test in tests.values() if test["outcome"] == "failed"]
    unfinished = [
        {"test": name, "outcome": "unfinished", "seconds": 0.0, "message": NOT_FINISHED, "text": ""}
        for name in started
        if name not in tests
    ]
    return {
        "counts": counts,
        "failures": [{"test": test["test"], "message": test["message"]} for test in failures],
        "unfinished": unfinished,
        "tests": list(tests.values()),
    }


def write_junit(path: Path, tests: Sequence[Mapping[str, Any]]) -> None:
    """Write tests as JUnit XML, atomically."""
    outcomes = [test["outcome"] for test in tests]
    suite = ElementTree.Element(
        "testsuite",
        name="gpu",
        tests=str(len(tests)),
        failures=str(outcomes.count("failed")),
        errors=str(outcomes.count("unfinished")),
        skipped=str(outcomes.count("skipped")),
    )
    tags = {"failed": "failure", "unfinished": "error", "skipped": "skipped"}
    for test in tests:
        file, _, name = test["test"].partition("::")
        case = ElementTree.SubElement(suite, "testcase", classname=file, name=name, time=f"{test['seconds']:g}")
        if test["outcome"] in tags:
            ElementTree.SubElement(case, tags[test["outcome"]], message=test["message"]).text = test["text"]
    partial = path.with_name(path.name + ".tmp")
    ElementTree.ElementTree(suite).write(partial, encoding="utf-8", xml_declaration=True)
    partial.replace(path)
