"""The command line that benchmarks share: flags, the files to write, and the exit codes of errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fastbert.benchmarks.harness.termination import sigterm_raises
from fastbert.errors import UserError
from fastbert.io.figures import PICTURES

Say = Callable[[str], None]
Progress = Callable[[int, int, str], None]
Options = TypeVar("Options")
Measured = TypeVar("Measured")


def parser(description: str | None, *, quick: str, rounds: str) -> argparse.ArgumentParser:
    """Return a parser with the flags of all benchmarks; `quick` and `rounds` are two help texts."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--quick", action="store_true", help=quick)
    flags.add_argument("--workloads", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    flags.add_argument("--rounds", type=int, help=rounds)
    flags.add_argument(
        "--isolate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="one process per contender (default: yes)",
    )
    flags.add_argument("--json", type=Path, help="file to write the rows to")
    flags.add_argument("--chart", type=Path, help="picture to write, .png, .pdf or .svg")
    return flags


def check_files(json: Path | None, chart: Path | None) -> None:
    """Raise `UserError` now for files that could not be written after a long measurement."""
    if chart is not None and chart.suffix not in PICTURES:
        raise UserError(f"--chart {chart} must end in {', '.join(PICTURES)}")
    for flag, path in (("json", json), ("chart", chart)):
        if path is not None and path.is_dir():
            raise UserError(f"--{flag} {path} is a folder: name a file")
        parents = [] if path is None else [parent for parent in path.absolute().parents if parent.exists()]
        if parents and not parents[0].is_dir():
            raise UserError(f"--{flag} {path}: {parents[0]} is not a folder: name another place")


def execute(
    flags: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    make: Callable[..., Options],
    run: Callable[[Options, Say], Measured],
    show: Callable[[Measured], None],
    publish: Callable[[Measured, Options, Path | None, Path | None], None],
) -> int:
    """Parse, measure, print and write; return the exit code. Wrong options exit with code 2."""
    parsed = vars(flags.parse_args(arguments))
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in parsed.items()
    }
    json, chart = values.pop("json"), values.pop("chart")
    try:
        options = make(**values)
        check_files(json, chart)
        with sigterm_raises():
            measured = run(options, lambda line: print(line, file=sys.stderr, flush=True))
    except UserError as error:
        flags.exit(2, f"{flags.prog}: error: {error}\n")
    except KeyboardInterrupt:
        flags.exit(130, f"{flags.prog}: interrupted\n")
    show(measured)
    publish(measured, options, json, chart)
    return 0
