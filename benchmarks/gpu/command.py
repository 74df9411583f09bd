"""The command line of `benchmarks/gpu.py`, and the build: needs nothing but Python.

Commands: measure (check and time every operation, layer and step beside its alternatives), tests (`pytest -m gpu`, in
parallel), tune (measure kernel configurations and save the fastest), sanitize (tests of kernels under sanitizers, and
a run that is resumed to the bit). Each writes DIR/<results|tests|tune|sanitize>.json after every row, test, trial or
tool, so that a run that is killed keeps what it had.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import runpy
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
ENTRY = ROOT / "benchmarks" / "gpu.py"
# The results of each command.
RESULTS = {"measure": "results.json", "tests": "tests.json", "tune": "tune.json", "sanitize": "sanitize.json"}
# The sections that --only selects, listed here because a typing error must be found before anything is built.
SECTIONS: dict[str, tuple[str, ...]] = {
    "measure": (
        "build", "environment", "ceilings", "compile", "pretraining", "encoder", "compile-kernels", "layer",
        "attention", "linear", "loss", "fused", "compile-rest", "softmax", "positions", "attention-rest", "resources",
        "profile", "charts",
    ),
    "tune": ("build", "environment", "tune"),
    "sanitize": (
        "build", "environment", "memcheck", "initcheck", "racecheck", "synccheck", "debug", "consan", "resume",
    ),
}  # fmt: skip
# The commands in which a flag has an effect.
EFFECTIVE: dict[str, tuple[str, ...]] = {
    "--out": tuple(RESULTS),
    "--budget-seconds": tuple(RESULTS),
    "--commit": tuple(RESULTS),
    "--only": tuple(SECTIONS),
    "--seconds-per-measure": ("measure",),
    "--tuning": ("measure",),
    "--profile": ("measure",),
}
SECONDS = {"--budget-seconds": 520.0, "--seconds-per-measure": 0.4}
# Lists in a section's result that take time to measure again.
MEASUREMENTS = ("rows", "tests", "trials")
BUILD_SECONDS = 240
PACKAGES = ("fastbert-engine", "torch", "triton", "numpy", "transformers", "liger-kernel", "flash-attn")
# Passed to the process that replaces this one after building: the start time, and the result of the build.
STARTED, BUILT = "FASTBERT_GPU_STARTED", "FASTBERT_GPU_BUILT"


class CommandError(Exception):
    """A mistake of the user's that is found before fastbert can be imported, in one line."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; refuse flags that contradict each other, have no effect or cannot be used."""
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
    parser.add_argument("--out", metavar="DIR", help="folder for results, log and charts; earlier results are kept")
    budget, each = SECONDS.values()
    parser.add_argument("--budget-seconds", type=float, help=f"for everything (default: {budget:g})")
    parser.add_argument("--seconds-per-measure", type=float, help=f"of timing one case (default: {each:g})")
    parser.add_argument(
        "--only", metavar="SECTION,...", help="sections of measure, tune or sanitize, with commas between them"
    )
    parser.add_argument("--tuning", type=Path, metavar="FILE", help="measure with the tuning.json that `tune` wrote")
    parser.add_argument("--profile", action="store_true", default=None, help="also run Nsight Compute on three kernels")
    parser.add_argument("--commit", help="what is measured, where .git is absent (default: $FASTBERT_COMMIT)")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on a CPU, to test this program")
    arguments = parser.parse_args(argv)
    try:
        check(arguments)
    except CommandError as error:
        parser.error(str(error))
    return arguments


def check(arguments: argparse.Namespace) -> None:
    """Check the flags beside each other, and put defaults in place of absent ones. Raises CommandError."""
    if sum((arguments.command is not None, arguments.plan, arguments.imported is not None)) != 1:
        raise CommandError(f"give one of {', '.join(RESULTS)}, --plan and --import FILE")
    if arguments.imported and arguments.dry_run:
        raise CommandError("--import keeps figures, and those of --dry-run are meaningless: omit one of them")
    command = arguments.command or ("--plan" if arguments.plan else "--import")
    for flag, commands in EFFECTIVE.items():
        if _value(arguments, flag) is not None and command not in commands:
            raise CommandError(f"{flag} has no effect with {command}: omit it, or use it with {' or '.join(commands)}")
    for flag, default in SECONDS.items():
        value = _value(arguments, flag)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise CommandError(f"{flag} {value:g} must be a finite number above 0")
        setattr(arguments, _name(flag), default if value is None else value)
    if arguments.command:
        if not arguments.out:
            raise CommandError(f"{command} needs --out DIR" + (", which is empty" if arguments.out == "" else ""))
        arguments.out = Path(arguments.out)
    arguments.only = sections_of(command, arguments.only) if arguments.only is not None else ()
    arguments.profile = bool(arguments.profile)
    if arguments.tuning is not None:
        check_tuning(arguments.tuning)


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _value(arguments: argparse.Namespace, flag: str) -> Any:
    return getattr(arguments, _name(flag))


def sections_of(command: str, only: str) -> tuple[str, ...]:
    """Return the sections that --only names. Raises CommandError for a name that the command does not have."""
    selected = tuple(name.strip() for name in only.split(",") if name.strip())
    names = SECTIONS[command]
    if not selected:
        raise CommandError(f"--only {only!r} names no section: choose among {', '.join(names)}")
    unknown = sorted(set(selected) - set(names))
    if unknown:
        raise CommandError(f"--only names {', '.join(unknown)}: choose among {', '.join(names)}")
    return selected


def check_tuning(path: Path) -> None:
    """Check what can be checked without fastbert: that a file is there. Raises CommandError."""
    cure = "copy the tuning.json of `tune` there"
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise CommandError(f"--tuning {path} does not exist: {cure}") from None
    except OSError as error:
        raise CommandError(f"--tuning {path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise CommandError(f"--tuning {path} is {kind}: name the tuning.json that `tune` wrote")


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


def prepare(arguments: argparse.Namespace) -> None:
    """Create the folder of the results; rename results of an earlier run. Raises CommandError if it cannot be used."""
    out = arguments.out
    try:
        if out.exists() and not out.is_dir():
            raise CommandError(f"--out {out} is a file: name a folder")
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
        keep_earlier(out / RESULTS[arguments.command])
    except OSError as error:
        raise CommandError(f"--out {out} cannot be written: {error.strerror}: name another folder") from None


def keep_earlier(path: Path) -> None:
    """Rename a file with measurements of an earlier run to the next free number."""
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise CommandError(f"{path} is not a regular file: remove it, or name another folder with --out")
    if not has_measurements(path):
        return
    number = 1
    while os.path.lexists(kept := path.with_name(f"{path.stem}-{number}{path.suffix}")):
        number += 1
    path.rename(kept)
    print(f"{path} has measurements of an earlier run: kept as {kept.name}", flush=True)


def has_measurements(path: Path) -> bool:
    """Return whether a file has anything that must not be lost, which is assumed of a file that cannot be parsed."""
    data = path.read_bytes()
    try:
        sections = json.loads(data)["sections"].values()
        return any(section.get(name) for section in sections for name in MEASUREMENTS)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return bool(data.strip())


def first_results(arguments: argparse.Namespace, sections: dict[str, Any]) -> dict[str, Any]:
    """Write what is known before anything is imported, which may take a minute on a new machine; return it.

    Raises CommandError if the folder cannot be used.
    """
    prepare(arguments)
    results = {
        "command": arguments.command,
        "dry_run": arguments.dry_run,
        "commit": arguments.commit or os.environ.get("FASTBERT_COMMIT") or commit() or None,
        "versions": versions(),
        "sections": sections,
        "table": [],
    }
    path = arguments.out / RESULTS[arguments.command]
    partial = path.with_name(path.name + ".tmp")
    try:
        partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}: name another folder with --out") from None
    return results


def give_up(arguments: argparse.Namespace, built: dict[str, Any], reason: str) -> int:
    """Write the reason into the results: without the package nothing can be measured."""
    first_results(arguments, {"build": {**built, "status": "failed", "reason": reason}})
    print(*built.get("lines", ()), f"everything: unmeasured: fastbert was not built: {reason}", sep="\n")
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 2 for mistakes of the user, 130 after Ctrl-C."""
    arguments = parse(argv)
    try:
        return execute(arguments, argv)
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = f": what was measured before is in {arguments.out}" if arguments.command else ""
        print(f"interrupted{kept}", file=sys.stderr)
        return 130


def execute(arguments: argparse.Namespace, argv: Sequence[str] | None) -> int:
    """Build where fastbert cannot be imported, then run the command; return its exit code."""
    if arguments.plan:
        plan = runpy.run_path(str(Path(__file__).with_name("plan.py")))
        print(plan["text"](commit(), arguments.dry_run))
        return 0
    leave_the_tree()
    started = float(os.environ.pop(STARTED, time.time()))
    inherited = os.environ.pop(BUILT, None)
    built = json.loads(inherited) if inherited else {"status": "ok", "lines": ["fastbert was installed before"]}
    problem = problem_of_import()
    if problem is None:
        return ready(arguments, built, started)
    if arguments.imported:
        print(f"error: fastbert cannot be imported: {problem}", file=sys.stderr)
        return 1
    if inherited is not None:
        return give_up(arguments, built, problem)
    first_results(arguments, {"build": built})
    built = build()
    if built["status"] == "ok":
        restart(sys.argv[1:] if argv is None else argv, built, started)
    return give_up(arguments, built, problem)


def restart(argv: Sequence[str], built: dict[str, Any], started: float) -> NoReturn:
    """Replace this process, which has cached its failed imports, by one with the same arguments."""
    os.environ[STARTED], os.environ[BUILT] = str(started), json.dumps(built)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(ENTRY), *argv])


def ready(arguments: argparse.Namespace, built: dict[str, Any], started: float) -> int:
    """Run the command where fastbert can be imported; return its exit code."""
    from fastbert.errors import UserError

    try:
        if arguments.imported:
            return imported(arguments)
        if arguments.tuning is not None:
            # Before the results, although it imports torch: a table that is refused must not start a run.
            from fastbert.kernels.tuning import tables

            tables.load(arguments.tuning)
        return run(arguments, first_results(arguments, {"build": built}), started)
    except UserError as error:
        raise CommandError(str(error)) from None


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
