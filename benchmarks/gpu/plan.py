"""Three commands for a machine with a GPU, each under nine minutes: `benchmarks/gpu.py --plan`.

Needs nothing but Python.
"""

from __future__ import annotations

# A folder of the clone for what travels with it: wheels, and the table that the second command measured.
CARRIED = "gpu-carry"
SECONDS = 540
INSTALL = (
    f"if ls {CARRIED}/*.whl >/dev/null 2>&1; then python3 -m pip install -q --no-index --no-deps {CARRIED}/*.whl; fi"
)
TEXT = """\
Three commands for a machine with a GPU, to run in the root of a copy of this clone, in this order. Each ends by itself
within {seconds} s, builds the project first where it is not installed, and needs no network: Python 3.11 or newer with
torch, triton, numpy, setuptools, ninja and pybind11. $OUT is the folder that takes the results, at most seven files
below 16 MiB each; set it to an empty one. A command that is stopped early keeps all that it had measured.

Before: packages that are missing there travel as wheels in {carried}/, and are installed from it. Liger-Kernel is
compared with where it is installed, and pytest-xdist shares out the tests (they also need pytest and hypothesis):

    python3 -m pip download --no-deps -d {carried} liger-kernel pytest-xdist execnet

1. Measure: results.json, log.txt, charts.

    {measure}

2. Test and tune: tests.json, tests.xml, tests.txt, tune.json, tuning.json, log.txt.

    {check}

3. Copy tuning.json to {carried}/tuning.json here, so that it is part of the next copy, and leave the kernels as they
   are: the table holds for these alone. Then measure again with it, and profile three kernels with Nsight Compute where
   `ncu` is installed: results.json, log.txt, ncu.txt, charts.

    {again}

After each: `python benchmarks/gpu.py --import results.json tests.json tune.json`, with those that have come back,
writes the record, and the tables and charts of docs/performance-gpu.md. The figures of a tuned run replace those of the
first.
"""


def commands(commit: str, dry_run: bool = False) -> list[str]:
    """Return the three command lines for bash, which record `commit`; with `dry_run` on a CPU, with tiny shapes."""
    flags = ["--out", '"$OUT"', *(["--commit", commit] if commit else []), *(["--dry-run"] if dry_run else [])]

    def call(command: str, seconds: int, *more: str) -> str:
        words = ["python3", "benchmarks/gpu.py", command, *flags, "--budget-seconds", str(seconds), *more]
        return " ".join(words)

    tuned = ["--tuning", f"{CARRIED}/tuning.json", "--profile"]
    return [
        f"{INSTALL}; {call('measure', SECONDS - 20)}",
        f"{INSTALL}; {call('tests', 250)}; {call('tune', SECONDS - 20 - 250)}",
        f"{INSTALL}; {call('measure', SECONDS - 20, *tuned)}",
    ]


def text(commit: str, dry_run: bool = False) -> str:
    """Return the plan."""
    measure, check, again = commands(commit, dry_run)
    return TEXT.format(seconds=SECONDS, carried=CARRIED, measure=measure, check=check, again=again)
