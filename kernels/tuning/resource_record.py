"""The record of all compiled kernels' resources, for the versions of triton that users have.

`python -P -m fastbert.kernels.tuning.resource_record FILE` compiles with the installed triton what FILE does not hold
yet, and drops what is no longer launched; rows of other versions stay. A row holds as long as its key, a hash of the
kernel's source, the types and constants of its launch, and its configuration. `--check` compares instead of writing.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

if __name__ == "__main__" and importlib.util.find_spec("triton") is None:
    sys.exit("error: compiling kernels needs triton: `pip install 'fastbert-engine[gpu]'`")

import triton
from triton.runtime.jit import JITFunction

from fastbert.errors import UserError
from fastbert.io.atomic_write import write_atomic
from fastbert.kernels.launch import Launch
from fastbert.kernels.tuning.ahead_of_time import Case, brief_cases, cases, launches
from fastbert.kernels.tuning.processes import end_with_parent
from fastbert.kernels.tuning.resource_table import table
from fastbert.kernels.tuning.resources import TARGETS, Body, Resources, compile_launch, source

FORMAT = 1
# The versions that a released torch installs: 2.10 and 2.11 the first, 2.12 and 2.13 the second.
VERSIONS = ("3.6.0", "3.7.1")
# All shape classes are recorded for these targets, each kernel once for the others.
COMPLETE = ("sm_80", "sm_90", "sm_100")
COMMAND = "python benchmarks/kernel_resources.py --matrix"
SAVE_SECONDS = 30.0


@dataclass(frozen=True)
class Entry:
    """One kernel to compile: the launch `index` of a case on a target."""

    key: str
    kernel: str
    case: Case
    target: str
    index: int

    def __str__(self) -> str:
        return f"{self.kernel}, {self.case}, {self.target}"


@dataclass(frozen=True)
class Row:
    """The resources of a kernel compiled by one version of triton."""

    triton: str
    key: str
    resources: Resources

    def __str__(self) -> str:
        return f"{self.resources.kernel}, {self.resources.case}, {self.resources.target}, triton {self.triton}"


@functools.cache
def kernel_sources(kernel: Any) -> list[str]:
    """Return the source of a kernel and of all this package's functions and constants that it uses, sorted by name."""
    texts: dict[str, str] = {}
    pending = [kernel]
    while pending:
        function = pending.pop().fn
        texts[f"{function.__module__}.{function.__qualname__}"] = inspect.getsource(function)
        names, scopes = function.__code__.co_names, [function.__globals__]
        scopes += [vars(scopes[0][name]) for name in names if _is_module_of_kernels(scopes[0].get(name))]
        for scope, name in itertools.product(scopes, names):
            value = scope.get(name)
            if isinstance(value, JITFunction):
                # The compiler's own functions belong to its version.
                if value.fn.__module__.startswith("fastbert.") and f"{value.fn.__module__}.{name}" not in texts:
                    pending.append(value)
            elif isinstance(value, (int, float, triton.language.constexpr)):
                texts[f"{scope['__name__']}.{name}"] = repr(value)
    return [f"{name}\n{texts[name]}" for name in sorted(texts)]


def _is_module_of_kernels(value: Any) -> bool:
    return isinstance(value, ModuleType) and value.__name__.startswith("fastbert.kernels.")


def key(launch: Launch, target: str) -> str:
    """Return a hash of all that determines the compiled code of a launch, but the compiler."""
    specialised = source(launch, target)
    parts = [specialised.signature, specialised.constants, specialised.attrs, launch.config.options]
    texts = [target, *map(repr, parts), *kernel_sources(launch.kernel)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def entries(target: str, cases: Iterable[Case]) -> list[Entry]:
    """Return what the cases launch on a target; launches that compile to the same code count once."""
    unique: dict[str, Entry] = {}
    for case in cases:
        for index, launch in enumerate(launches(case, target)):
            entry = Entry(key(launch, target), launch.kernel.__name__, case, target, index)
            unique.setdefault(entry.key, entry)
    return list(unique.values())


@functools.cache
def shipped() -> tuple[Entry, ...]:
    """Return what the record holds of the default configurations, by target."""
    return tuple(
        entry for target in TARGETS for entry in entries(target, cases() if target in COMPLETE else brief_cases())
    )


def first() -> list[Entry]:
    """Return the launches that are compiled first: all shape classes on sm_90, each kernel on the other targets."""
    return [entry for target in TARGETS for entry in entries(target, cases() if target == "sm_90" else brief_cases())]


@functools.lru_cache(maxsize=4)
def _launches(case: Case, target: str) -> list[Launch]:
    return launches(case, target)


def compile_entry(entry: Entry) -> Row:
    """Compile an entry with the installed triton."""
    launch = _launches(entry.case, entry.target)[entry.index]
    return Row(triton.__version__, entry.key, compile_launch(launch, str(entry.case), entry.target))


def compile_all(
    pending: Sequence[Entry], processes: int | None, report: Callable[[list[Row]], object] = lambda rows: None
) -> list[Row]:
    """Compile entries in parallel processes; `report` gets all finished rows from time to time, and before an error."""
    rows: list[Row] = []
    reported = time.monotonic()
    context = get_context("spawn")
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=context, initializer=end_with_parent) as pool:
        jobs = {pool.submit(compile_entry, entry): entry for entry in pending}
        try:
            for job in as_completed(jobs):
                if job.exception() is not None:
                    print(f"cannot compile {jobs[job]}", file=sys.stderr)
                rows.append(job.result())
                if time.monotonic() - reported > SAVE_SECONDS:
                    report(rows)
                    reported = time.monotonic()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            report(rows)
            raise
    return rows


def update(path: Path, *, matrix: bool = False, processes: int | None = None) -> list[Row]:
    """Bring the record up to date for the installed triton, and return its rows.

    Compiled are all shape classes on sm_90 and each kernel on the other targets; with `matrix`, all that is `shipped`.
    """
    all_entries = shipped()
    current = {entry.key: number for number, entry in enumerate(all_entries)}
    previous = read(path) if path.exists() else []
    kept = [row for row in previous if row.triton != triton.__version__ or row.key in current]
    present = {row.key for row in kept if row.triton == triton.__version__}
    pending = [entry for entry in (all_entries if matrix else first()) if entry.key not in present]

    def save(rows: list[Row]) -> list[Row]:
        merged = [*kept, *rows]
        merged.sort(key=lambda row: (row.triton, current.get(row.key, len(current))))
        write(path, merged)
        return merged

    print(f"triton {triton.__version__}: {len(present)} kernels are current, compiling {len(pending)}", flush=True)
    return save(compile_all(pending, processes, save))


def problems(rows: Sequence[Row]) -> list[str]:
    """Return what the record lacks, and its rows that belong to no kernel launched by default."""
    expected = {entry.key: entry for entry in shipped()}
    messages: list[str] = []
    for version in sorted({*VERSIONS, *(row.triton for row in rows)}):
        of_version = {row.key: row for row in rows if row.triton == version}
        if version not in VERSIONS:
            messages.append(f"triton {version} is none of {', '.join(VERSIONS)}")
        elif not of_version:
            messages.append(f"triton {version} is absent")
        else:
            missing = [entry for key, entry in expected.items() if key not in of_version]
            stale = [row for key, row in of_version.items() if key not in expected]
            messages += [f"not compiled by triton {version}: {entry}" for entry in missing]
            messages += [f"differs from what is launched: {row}" for row in stale]
    return messages


def differences(rows: Sequence[Row]) -> list[str]:
    """Compile a sample with the installed triton, and return where it differs from the record.

    The sample is one of each target, of as many packages of kernels: those with the smallest key, so that it is another
    one whenever kernels change. Nothing is compared if the record does not have the installed version.
    """
    recorded = {row.key: row for row in rows if row.triton == triton.__version__}
    sample: dict[str, Entry] = {}
    packages: set[str] = set()
    for entry in sorted(shipped(), key=lambda entry: entry.key):
        package = type(entry.case).__module__.split(".")[-2]
        if entry.key in recorded and entry.target not in sample and package not in packages:
            sample[entry.target] = entry
            packages.add(package)
    compared = ("registers", "spills", "shared", "programs", "copies", "loads", "instructions", "per_score")
    messages = []
    for entry in sample.values():
        row, again = recorded[entry.key], compile_entry(entry)
        for name in compared:
            before, after = getattr(row.resources, name), getattr(again.resources, name)
            if before != after:
                messages.append(f"{row}: {name} {before} in the record, {after} compiled again")
    return messages


def unfit(rows: Sequence[Row]) -> list[str]:
    """Return the kernels that spill registers, or need more shared memory than a program can have."""
    return [
        f"{row}: spills {row.resources.spills} bytes, {row.resources.shared} bytes of shared memory"
        for row in rows
        if not row.resources.fits
    ]


def read(path: Path) -> list[Row]:
    """Read a record."""
    document = json.loads(path.read_text())
    if document.get("format") != FORMAT:
        raise UserError(f"{path} has format {document.get('format')}, not {FORMAT}: delete it and run `{COMMAND}`")
    return [_row(each) for each in document["rows"]]


def _row(values: dict[str, Any]) -> Row:
    values = dict(values)
    version, key = values.pop("triton"), values.pop("key")
    for name in ("copies", "loads"):
        if values.get(name) is not None:
            values[name] = {int(size): number for size, number in values[name].items()}
    values["bodies"] = tuple(Body(**body) for body in values.get("bodies", ()))
    return Row(version, key, Resources(**values))


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write a record, one line per row."""
    lines = ",\n".join(json.dumps(as_json(row)) for row in rows)
    write_atomic(path, f'{{"format": {FORMAT}, "rows": [\n{lines}\n]}}\n')


def as_json(row: Row) -> dict[str, Any]:
    """Return a row as JSON values: of attention all bodies, of other kernels the inner loop alone, without classes."""
    values = {name: value for name, value in asdict(row.resources).items() if value is not None and name != "seconds"}
    inner = row.resources.inner
    values["bodies"] = []
    for body in row.resources.bodies:
        if body.scores is None and body is not inner:
            continue
        # What tells apart which body is the inner loop stays with the others too.
        kept = body.kinds if body is inner and body.scores else {"matmul": body.kinds.get("matmul", 0)}
        fields = {name: value for name, value in asdict(body).items() if value is not None}
        values["bodies"].append(fields | {"kinds": {name: number for name, number in kept.items() if number}})
    return {"triton": row.triton, "key": row.key, **values}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m fastbert.kernels.tuning.resource_record", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="the record")
    parser.add_argument("--matrix", action="store_true", help="all shape classes not on sm_90 alone")
    parser.add_argument("--processes", type=int, default=None, help="concurrent compilers (default: one per core)")
    parser.add_argument("--check", action="store_true", help="report what is missing, outdated or not reproducible")
    parser.add_argument("--table", choices=TARGETS, help="print the table of a target")
    options = parser.parse_args(arguments)
    if not (options.check or options.table):
        rows = update(options.file, matrix=options.matrix, processes=options.processes)
        print("\n".join(unfit([row for row in rows if row.triton == triton.__version__])))
        return 0
    rows = read(options.file)
    if options.table:
        for version in VERSIONS:
            selected = [row.resources for row in rows if (row.triton, row.resources.target) == (version, options.table)]
            print(f"triton {version}, {table(selected)}\n")
    messages = [*problems(rows), *differences(rows)] if options.check else []
    print("\n".join(messages))
    return 1 if messages else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as _error:
        sys.exit(f"error: {_error}")
