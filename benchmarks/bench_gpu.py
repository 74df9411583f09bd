"""Build, test and measure everything that needs a GPU machine, in one command of under nine minutes.

    python benchmarks/bench_gpu.py --out DIR                      # on a GPU; builds the project if it must
    python benchmarks/bench_gpu.py --out DIR --dry-run            # on a CPU, tiny shapes, meaningless figures

DIR/results.json is written after each section and each case, so that results survive a failure or the time limit. Only
torch, triton, numpy and safetensors are needed; transformers and matplotlib are used if present.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = (
    "environment",
    "build",
    "compile",
    "tune",
    "tests",
    "ceilings",
    "attention",
    "softmax",
    "fused",
    "loss",
    "layer",
    "encoder",
    "pretraining",
    "charts",
)
BUILD_SECONDS = 240
# Passed to the process that replaces this one after building: the start time, and the result of the build.
STARTED, BUILT = "FASTBERT_GPU_STARTED", "FASTBERT_GPU_BUILT"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; refuse unknown sections, and a record of a dry run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results.json, log and charts")
    parser.add_argument("--budget-seconds", type=float, default=520.0, help="for everything (default: %(default)s)")
    parser.add_argument(
        "--seconds-per-measure", type=float, default=0.4, help="of timing a case (default: %(default)s)"
    )
    parser.add_argument("--only", help=f"sections, with commas between them: {','.join(SECTIONS)}")
    parser.add_argument("--tune", action="store_true", help="measure kernel configurations before the rest")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on a CPU, to test this program")
    parser.add_argument("--record", action="store_true", help="also write benchmarks/results/gpu/<architecture>.json")
    arguments = parser.parse_args(argv)
    arguments.only = tuple(arguments.only.split(",")) if arguments.only else SECTIONS
    unknown = sorted(set(arguments.only) - set(SECTIONS))
    if unknown:
        parser.error(f"--only names {', '.join(unknown)}: choose among {', '.join(SECTIONS)}")
    if arguments.record and arguments.dry_run:
        parser.error("--record keeps figures, and those of --dry-run are meaningless: omit one of them")
    return arguments


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


def build() -> dict[str, object]:
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


def give_up(out: Path, built: dict[str, object], reason: str) -> int:
    """Write the reason into results.json: without the package nothing can be measured."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"sections": {"build": {**built, "status": "failed", "reason": reason}}, "table": []}, indent=1)
    (out / "results.json").write_text(text + "\n")
    print(*built.get("lines", ()), f"everything: unmeasured: fastbert was not built: {reason}", sep="\n")  # type: ignore[misc]
    return 1


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    leave_the_tree()
    started = float(os.environ.pop(STARTED, time.time()))
    inherited = os.environ.pop(BUILT, None)
    built = json.loads(inherited) if inherited else {"status": "ok", "lines": ["fastbert was installed before"]}
    problem = problem_of_import()
    if problem is not None:
        if inherited is not None:
            return give_up(arguments.out, built, problem)
        built = build()
        if built["status"] != "ok":
            return give_up(arguments.out, built, problem)
        # A new process: this one has cached its failed imports.
        os.environ[STARTED], os.environ[BUILT] = str(started), json.dumps(built)
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, str(Path(__file__).resolve()), *(argv or sys.argv[1:])])

    from fastbert.benchmarks.gpu import sections

    options = sections.Options(
        out=arguments.out.resolve(),
        root=ROOT,
        started=started,
        budget_seconds=arguments.budget_seconds,
        seconds_per_measure=arguments.seconds_per_measure,
        only=tuple(name for name in arguments.only if name != "tune" or arguments.tune),
        dry_run=arguments.dry_run,
        record=arguments.record,
        tune=arguments.tune,
        built=built,
    )
    return sections.run(options)


if __name__ == "__main__":
    raise SystemExit(main())
