"""Compile all Triton kernels with each version of triton that users have, and record what they occupy; needs no GPU.

    python benchmarks/kernel_resources.py             # all shape classes on sm_90, each kernel on the other targets
    python benchmarks/kernel_resources.py --matrix    # all shape classes on sm_80, sm_90, sm_100: the tests require it
    python benchmarks/kernel_resources.py --table sm_90

Writes benchmarks/results/kernel_resources.json and the section "Compiled resources" of docs/performance-gpu.md. Only
kernels, launches and configurations that differ from the record are compiled; interrupted, it continues where it was.
Versions of triton that are not installed are downloaded to build/triton/.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

try:
    import triton
except ImportError as _error:
    if __name__ != "__main__":
        raise
    sys.exit(f"error: benchmarks/kernel_resources.py needs triton: pip install triton ({_error})")

from fastbert.errors import UserError
from fastbert.kernels.tuning import resource_record
from fastbert.kernels.tuning.ahead_of_time import brief_cases
from fastbert.kernels.tuning.resource_record import VERSIONS, Row
from fastbert.kernels.tuning.resource_table import copies
from fastbert.kernels.tuning.resources import TARGETS, Resources

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "kernel_resources.json"
DOCUMENT = ROOT / "docs" / "performance-gpu.md"
BEGIN, END = "<!-- compiled resources -->", "<!-- end -->"
# Of the kernels on sm_90, the page shows those of an encoder with heads of 64 and the width of base.
TARGET, ATTENTION_CASES = "sm_90", ("bf16 64", "bf16 64 dropout")
COLUMNS = {
    "kernel": "---",
    "case": "---",
    "registers": "--:",
    "spills": "--:",
    "shared KiB": "--:",
    "programs": "--:",
    "copies": "--:",
    "inner loop": "--:",
    "per score": "--:",
}


def environment(version: str) -> dict[str, str]:
    """Return the environment of a process that imports a version of triton, downloaded if it is not installed."""
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if version == triton.__version__:
        return variables
    folder = ROOT / "build" / "triton" / version
    if not (folder / "triton").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        if subprocess.run([*command, f"triton=={version}"]).returncode:
            raise UserError(f"cannot install triton {version} into {folder}: see the message of pip above")
    return variables | {
        "PYTHONPATH": os.pathsep.join([str(folder), variables.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    }


def run(version: str, *arguments: str) -> int:
    """Run the command of the record with a version of triton; return its exit code."""
    command = [sys.executable, "-P", "-m", resource_record.__name__, str(RECORD), *arguments]
    return subprocess.run(command, env=environment(version)).returncode


def section(rows: Sequence[Row]) -> str:
    """Return the Markdown table: one line per kernel; where the versions differ, the numbers of both."""
    names = {*ATTENTION_CASES, *map(str, brief_cases())}
    of_target = [row for row in rows if row.resources.target == TARGET]
    keys = list(dict.fromkeys(row.key for row in of_target if row.resources.case in names))
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join(COLUMNS.values())} |"]
    for key in keys:
        same = {row.triton: row.resources for row in of_target if row.key == key}
        both = [cells(same[version]) for version in VERSIONS if version in same]
        texts = [" / ".join(dict.fromkeys(column)) for column in zip(*both, strict=True)]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def cells(row: Resources) -> tuple[str, ...]:
    """Return the cells of `COLUMNS` for one version of triton."""
    inner, per_score = row.inner, row.per_score
    return (
        f"`{row.kernel}`",
        row.case,
        str(row.registers),
        str(row.spills),
        f"{row.shared / 1024:.1f}",
        str(row.programs),
        copies(row),
        str(inner.instructions) if inner else "-",
        f"{per_score:.1f}" if per_score else "-",
    )


def with_section(text: str, rows: Sequence[Row]) -> str:
    """Return a document with the table between its markers. Raises UserError without markers."""
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise UserError(f"{DOCUMENT.name} lacks the lines {BEGIN} and {END}, between which the table belongs")
    return pattern.sub(lambda _: f"{BEGIN}\n\n{section(rows)}\n\n{END}", text, count=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", action="store_true", help="all shape classes on sm_80, sm_90 and sm_100")
    parser.add_argument("--processes", type=int, help="concurrent compilers (default: one per core)")
    parser.add_argument("--table", choices=TARGETS, help="print the table of a target and compile nothing")
    options = parser.parse_args(arguments)
    if options.table:
        return run(triton.__version__, "--table", options.table)
    flags = [*(["--matrix"] if options.matrix else [])]
    flags += ["--processes", str(options.processes)] if options.processes else []
    for version in VERSIONS:
        if code := run(version, *flags):
            return code
    rows = resource_record.read(RECORD)
    DOCUMENT.write_text(with_section(DOCUMENT.read_text(), rows))
    print(f"{RECORD.relative_to(ROOT)}: {len(rows)} compiled kernels; {DOCUMENT.relative_to(ROOT)} shows {TARGET}")
    return 1 if resource_record.unfit(rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as _error:
        sys.exit(f"error: {_error}")
