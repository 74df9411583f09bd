"""Compile the kernels for a GPU that is not present; report registers, spills, shared memory and instructions of each.

`python -P -m fastbert.kernels.tuning.ahead_of_time --target sm_90` prints the table and exits 1 if a kernel spills
registers or needs more shared memory than a program can have. It compiles what the launchers would launch, for the
cases in `compile_cases.py` of every package of kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

if __name__ == "__main__" and importlib.util.find_spec("triton") is None:
    sys.exit("error: compiling kernels needs triton: `pip install 'fastbert-engine[gpu]'`")

import triton

from fastbert.errors import UserError
from fastbert.kernels.configs.defaults import DEFAULTS
from fastbert.kernels.launch import Launch, recording
from fastbert.kernels.tuning.discovery import operation_modules
from fastbert.kernels.tuning.resource_table import table
from fastbert.kernels.tuning.resources import TARGETS, Resources, compile_launch


class Case(Protocol):
    """One variant of an operation, by all that determines the compiled code. `str` names it."""

    def launch(self) -> None:
        """Launch every kernel of forward and backward."""


def cases(full: bool = False) -> list[Case]:
    """Return the cases that the default configurations tell apart, with most flags; with `full`, all combinations."""
    modules = operation_modules("compile_cases")
    return [case for module in modules for case in (module.every() if full else module.demanding())]


def brief_cases() -> list[Case]:
    """Return few cases in which each kernel appears."""
    return [case for module in operation_modules("compile_cases") for case in module.brief()]


def launches(case: Case, target: str) -> list[Launch]:
    """Return the launches of `case`, forward and backward, on `target`."""
    with recording(target) as recorded:
        case.launch()
    return list(recorded)


def _resources_of(case: Case, target: str, kernels: Sequence[str] | None) -> list[Resources]:
    selected = [launch for launch in launches(case, target) if not kernels or launch.kernel.__name__ in kernels]
    return [compile_launch(launch, str(case), target) for launch in selected]


def resources(
    target: str,
    cases: Iterable[Case],
    *,
    kernels: Sequence[str] | None = None,
    processes: int | None = None,
) -> list[Resources]:
    """Compile all launches of `cases` for `target`, or those of some kernels, in parallel processes."""
    if target not in TARGETS:
        raise UserError(f"unknown target {target!r}: choose one of {', '.join(TARGETS)}")
    cases = list(cases)
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        rows = pool.map(_resources_of, cases, [target] * len(cases), [kernels] * len(cases))
        return list(itertools.chain.from_iterable(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m fastbert.kernels.tuning.ahead_of_time", description=__doc__)
    parser.add_argument(
        "--target", choices=TARGETS, action="append", help="GPU to compile for (default: all that have configurations)"
    )
    parser.add_argument("--full", action="store_true", help="all combinations of flags, not only the demanding ones")
    parser.add_argument("--brief", action="store_true", help="each kernel at least once, in bf16 with all flags")
    parser.add_argument("--kernel", action="append", metavar="NAME", help="only this kernel, such as forward_long")
    parser.add_argument("--case", action="append", metavar="TEXT", help="only this case, such as 'bf16 64 dropout'")
    parser.add_argument("--loops", action="store_true", help="also count the instructions of each loop by class")
    parser.add_argument("--processes", type=int, default=None, help="concurrent compilers (default: one per core)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the rows there")
    options = parser.parse_args(arguments)
    selected = brief_cases() if options.brief else cases(options.full)
    if options.case:
        names = sorted({str(case) for case in selected})
        unknown = sorted(set(options.case) - set(names))
        if unknown:
            raise UserError(f"unknown case {unknown[0]!r}: choose one of {'; '.join(names)}")
        selected = [case for case in selected if str(case) in options.case]
    rows: list[Resources] = []
    for target in options.target or [name for name in TARGETS if name in DEFAULTS]:
        rows += resources(target, selected, kernels=options.kernel, processes=options.processes)
    print(table(rows, loops=options.loops))
    if options.json:
        record = {"triton": triton.__version__, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row.fits for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as _error:
        sys.exit(f"error: {_error}")
