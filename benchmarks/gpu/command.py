"""The command line of `benchmarks/gpu.py`, and the build: needs nothing but Python.

Commands: measure (check and time every operation, layer and step beside its alternatives), tests (`pytest -m gpu`, in
parallel), tune (measure kernel configurations and save the fastest). Each writes DIR/<results|tests|tune>.json after
every row, test or trial, so that a run that is killed keeps what it had.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENTRY = ROOT / "benchmarks" / "gpu.py"
# The results of each command.
RESULTS = {"measure": "results.json", "tests": "tests.json", "tune": "tune.json"}
BUILD_SECONDS = 240
PACKAGES = ("fastbert-engine", "torch", "triton", "numpy", "transformers", "liger-kernel", "flash-attn")
# Passed to the process that replaces this one after building: the start time, and the result of the build.
STARTED, BUILT = "FASTBERT_GPU_STARTED", "FASTBERT_GPU_BUILT"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; refuse flags that contradict each other."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/gpu.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=RESULTS, help="what to do on a machine with a GPU")
    parser.add_argument("--plan", action="store_true", help="print three commands for a GPU machine, ready to paste")
    parser.add_argument(
        "--import",
        dest="imported",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="keep returned results.json (tests.json, tune.json) as a record, and put them into the documentation",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for results, log and charts")
    parser.add_argument("--budget-seconds", type=float, default=520.0, help="for everything (default: %(default)s)")
    parser.add_argument(
        "--seconds-per-measure", type=float, default=0.4, help="of timing one case (default: %(default)s)"
    )
    parser.add_argument("--only", metavar="SECTION,...", help="sections of the command, with commas between them")
    parser.add_argument("--tuning", type=Path, metavar="FILE", help="measure with the tuning.json that `tune` wrote")
    parser.add_argument("--profile", action="store_true", help="also run Nsight Compute on three kernels")
    parser.add_argument("--commit", help="what is measured, where .git is absent (default: $FASTBERT_COMMIT)")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on a CPU, to test this program")
    arguments = parser.parse_args(argv)
    if sum((arguments.command is not None, arguments.plan, arguments.imported is not None)) != 1:
        parser.error("give one of measure, tests, tune, --plan and --import FILE")
    if arguments.command and arguments.out is None:
        parser.error(f"{arguments.command} needs --out DIR")
    if arguments.imported and arguments.dry_run:
        parser.error("--import keeps figures, and those of --dry-run are meaningless: omit one of them")
    if not arguments.budget_seconds > 0:
        parser.error(f"--budget-seconds {arguments.budget_seconds:g} must be above 0")
    if arguments.tuning and not arguments.tuning.is_file():
        parser.error(f"--tuning {arguments.tuning} does not exist: copy the tuning.json of `tune` there")
    arguments.only = tuple(arguments.only.split(",")) if arguments.only else ()
    return arguments


def commit() -> str:
    """Return the commit of the clone, "-dirty" if tracked files differ; "" without git or its data."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def leave_the_tree() -> None:
    """Remove the clone from sys.path, here and in child processes: its sources are not compiled, and `kernels` would
    shadow an unrelated package."""
    hidden = {ROOT, ROOT / "benchmarks"}
    sys.path[:] = [entry for entry in sys.path if Path(entry or os.getcwd()).resolve() not in hidden]
    os.environ["PYTHONSAFEPATH"] = "1"


def problem_of_import() -> str | None:
    """Return why fastbert cannot be imported, or None if it can."""
    try:
        import fastbert  # noqa: F401
    except ImportError as error:
        return str(error)
    return None


def build() -> dict[str, Any]:
    """Install the clone in editable mode and return status, seconds and the last lines of output."""
    command = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "-e", str(ROOT)]
    began = time.time()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
        lines, code = (done.stdout + done.stderr).splitlines(), done.returncode
    except subprocess.TimeoutExpired:
        lines, code = [f"pip needed more than {BUILD_SECONDS} s"], -1
    status = "ok" if code == 0 else "failed"
    return {"status": status, "seconds": round(time.time() - began, 1), "lines": lines[-15:]}


def versions() -> dict[str, str]:
    """Return the versions of Python and of installed packages, without importing them."""
    installed = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def first_results(arguments: argparse.Namespace, sections: dict[str, Any]) -> dict[str, Any]:
    """Write what is known before anything is imported, which may take a minute on a new machine; return it."""
    results = {
        "command": arguments.command,
        "dry_run": arguments.dry_run,
        "commit": arguments.commit or os.environ.get("FASTBERT_COMMIT") or commit() or None,
        "versions": versions(),
        "sections": sections,
        "table": [],
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / RESULTS[arguments.command]
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return results


def give_up(arguments: argparse.Namespace, built: dict[str, Any], reason: str) -> int:
    """Write the reason into the results: without the package nothing can be measured."""
    first_results(arguments, {"build": {**built, "status": "failed", "reason": reason}})
    print(*built.get("lines", ()), f"everything: unmeasured: fastbert was not built: {reason}", sep="\n")
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    arguments = parse(argv)
    if arguments.plan:
        plan = runpy.run_path(str(Path(__file__).with_name("plan.py")))
        print(plan["text"](commit(), arguments.dry_run))
        return 0
    leave_the_tree()
    started = float(os.environ.pop(STARTED, time.time()))
    inherited = os.environ.pop(BUILT, None)
    built = json.loads(inherited) if inherited else {"status": "ok", "lines": ["fastbert was installed before"]}
    results = first_results(arguments, {"build": built}) if arguments.command else {}
    problem = problem_of_import()
    if problem is not None:
        if arguments.imported:
            print(f"error: fastbert cannot be imported: {problem}", file=sys.stderr)
            return 1
        if inherited is not None:
            return give_up(arguments, built, problem)
        built = build()
        if built["status"] != "ok":
            return give_up(arguments, built, problem)
        # A new process: this one has cached its failed imports.
        os.environ[STARTED], os.environ[BUILT] = str(started), json.dumps(built)
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, str(ENTRY), *(argv or sys.argv[1:])])

    from fastbert.errors import UserError

    try:
        return imported(arguments) if arguments.imported else run(arguments, results, started)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def imported(arguments: argparse.Namespace) -> int:
    """Keep returned results in the repository; return 1 if an estimate needs an explanation."""
    from fastbert.benchmarks.gpu.record import keep

    lines, unexplained = keep(arguments.imported, ROOT)
    print(*lines, *unexplained, sep="\n")
    return int(bool(unexplained))


def run(arguments: argparse.Namespace, results: dict[str, Any], started: float) -> int:
    """Run the sections of a command."""
    from fastbert.benchmarks.gpu import sections
    from fastbert.benchmarks.gpu.session import Options

    options = Options(
        command=arguments.command,
        out=arguments.out.resolve(),
        results=RESULTS[arguments.command],
        root=ROOT,
        started=started,
        budget_seconds=arguments.budget_seconds,
        seconds_per_measure=arguments.seconds_per_measure,
        only=arguments.only,
        dry_run=arguments.dry_run,
        tuning=arguments.tuning.resolve() if arguments.tuning else None,
        profile=arguments.profile,
    )
    return sections.run(options, results)


if __name__ == "__main__":
    raise SystemExit(main())
