"""Keep returned results in the repository: a record per GPU, and the tables and charts of docs/performance-gpu.md."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fastbert.benchmarks.gpu import page
from fastbert.benchmarks.gpu.charts import draw
from fastbert.benchmarks.harness import records
from fastbert.errors import UserError
from fastbert.io.atomic_write import atomic_write, write_atomic
from fastbert.io.untrusted_input import read_regular, shown

# Parts of a GPU's name that do not tell it apart.
VENDORS = ("nvidia", "amd", "instinct", "graphics")
# Details that a record does without: they are in the returned files.
LEFT_OUT = ("lines", "trials")
MAX_BYTES = 64 << 20
# Figures of a row: the first is required; the others may be absent or null, and rates may be 0.
REQUIRED, TIMES = "median_ms", ("p20", "p80")
RATES = ("tflops", "gigabytes_per_second", "tokens_per_second")
# What a section may contain, if it contains it.
SECTION_TYPES: dict[str, type] = {
    "rows": list,
    "failures": list,
    "variants": list,
    "unmeasured": list,
    "kernels": list,
    "out_of_time": list,
    "gpu": dict,
    "nvidia_smi": dict,
    "machine": dict,
    "versions": dict,
    "backends": list,
    "tuning": dict,
}
OF_OBJECTS = ("rows", "failures", "variants", "unmeasured", "kernels")
KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}
# What rendering raises for content of wrong types.
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def read(path: Path) -> dict[str, Any]:
    """Read a returned file. Raises UserError if it is not one, is of a dry run, or has values that cannot be used."""
    results = _parse(path, f"{path} is not a file that benchmarks/gpu.py writes")
    if not isinstance(results, dict) or not isinstance(results.get("sections"), dict):
        raise UserError(f"{path} is not a file that benchmarks/gpu.py writes: it has no sections")
    if results.get("dry_run"):
        raise UserError(f"{path} is of a dry run, whose figures mean nothing: give results of a GPU")
    problem = next(_problems(results), None)
    if problem:
        raise UserError(f"{path} cannot be kept: {problem}: measure it again, or correct the file")
    return results


def _parse(path: Path, refusal: str) -> Any:
    try:
        return json.loads(read_regular(path, MAX_BYTES).decode("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except RecursionError as error:
        raise UserError(f"{refusal}: it is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{refusal}: {error}") from error


def _problems(results: Mapping[str, Any]) -> Iterable[str]:
    """Yield what is wrong with the values of returned results."""
    yield from _typed(results, "versions", dict)
    yield from _line(results, "commit")
    for title, section in results["sections"].items():
        if not isinstance(section, dict):
            yield f"section {shown(title)} must be an object, not {shown(section)}"
            continue
        for name, kind in SECTION_TYPES.items():
            for problem in _typed(section, name, kind):
                yield f"section {shown(title)}: {problem}"
        for name in OF_OBJECTS:
            if not all(isinstance(entry, dict) for entry in section.get(name) or ()):
                yield f"section {shown(title)}: {name} must hold objects alone"
        for row in section.get("rows") or ():
            if problem := problem_of_row(row):
                yield f"section {shown(title)}: {problem}"
    environment = results["sections"].get("environment", {})
    yield from _line(environment, "commit")
    for name, key in (("gpu", "name"), ("nvidia_smi", "name"), ("nvidia_smi", "driver_version")):
        for problem in _line(environment.get(name) or {}, key):
            yield f"section 'environment', {name}: {problem}"


def _typed(values: Mapping[str, Any], name: str, kind: type) -> Iterable[str]:
    """Yield what is wrong with a value that may be absent, but not null."""
    if name in values and not isinstance(values[name], kind):
        yield f"{name} must be {KINDS[kind]}, not {shown(values[name])}"


def _line(values: Mapping[str, Any], name: str) -> Iterable[str]:
    """Yield what is wrong with a string that may be absent or null."""
    value = values.get(name)
    if value is not None and not (isinstance(value, str) and value.isprintable()):
        yield f"{name} must be a string of one line, not {shown(value)}"


def problem_of_row(row: Mapping[str, Any]) -> str | None:
    """Return what makes a row unusable for tables and charts, or None."""
    for name in ("workload", "contender", "outputs"):
        if not isinstance(row.get(name), str):
            return f"{name} of a row must be a string, not {shown(row.get(name))}"
    title = f"row {shown(row['workload'])} of {shown(row['contender'])}"
    if row.get("dry_run"):
        return f"{title} is of a dry run, whose figures mean nothing"
    if not isinstance(row.get("details", {}), dict):
        return f"{title}: details must be an object, not {shown(row['details'])}"
    if not _positive(row.get(REQUIRED)):
        return f"{title}: {REQUIRED} must be a finite number above 0, not {shown(row.get(REQUIRED))}"
    for name in (*TIMES, *RATES):
        value = row.get(name)
        zero = name in RATES and type(value) in (int, float) and value == 0
        if value is not None and not zero and not _positive(value):
            least = "from 0 on" if name in RATES else "above 0"
            return f"{title}: {name} must be a finite number {least}, not {shown(value)}"
    return None


def _positive(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value) and value > 0
    except OverflowError:  # an integer beyond the largest float
        return False


def device_of(name: str) -> str:
    """Return a GPU's name as a file's: "NVIDIA H100 80GB HBM3" is h100-80gb-hbm3."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "-".join(word for word in words if word not in VENDORS) or "gpu"


def make_record(files: Sequence[Path]) -> dict[str, Any]:
    """Return the record of returned files: the rows of all, and what else their sections say. Sections of later files
    replace those of earlier ones. Raises UserError without the GPU's name or without rows, and for files of different
    GPUs or commits."""
    returned = [read(path) for path in files]
    _require_same("GPU", [(path, _gpu(results)) for path, results in zip(files, returned)])
    commit = _require_same("commit", [(path, _commit(results)) for path, results in zip(files, returned)])
    sections: dict[str, dict[str, Any]] = {}
    for results in returned:
        sections |= {name: dict(section) for name, section in results["sections"].items()}
    environment = sections.pop("environment", {})
    gpu, driver = environment.get("gpu", {}), environment.get("nvidia_smi", {})
    name = next(filter(None, map(_gpu, returned)), None)
    if not name:
        raise UserError(f"{files[0]} does not name its GPU: it ended before it found one")
    rows = [{"section": title, **row} for title, section in sections.items() for row in section.pop("rows", ())]
    if not rows:
        raise UserError(f"{files[0]} has no measurements to keep")
    first = returned[0]
    record = {
        "schema": records.SCHEMA_VERSION,
        "benchmark": "gpu",
        "machine": {
            **environment.get("machine", {}),
            **gpu,
            "name": name,
            "device": device_of(name),
            "driver": driver.get("driver_version", "unknown"),
        },
        "versions": {**first.get("versions", {}), **environment.get("versions", {})},
        "commit": commit,
        **({} if commit else {"note": "measured where the commit was not known"}),
        "settings": {
            "sections": {title: _without_details(section) for title, section in sections.items()},
            "tuning": environment.get("tuning", {}),
            "backends": environment.get("backends", []),
            "seconds": first.get("seconds"),
        },
        "rows": rows,
    }
    try:
        return dict(_finite(record))
    except RecursionError as error:
        raise UserError(f"{files[0]} is not a file that benchmarks/gpu.py writes: it is nested too deeply") from error


def _gpu(results: Mapping[str, Any]) -> str | None:
    """Return the GPU's name as torch gives it, else the driver."""
    environment = results["sections"].get("environment", {})
    return environment.get("gpu", {}).get("name") or environment.get("nvidia_smi", {}).get("name")


def _commit(results: Mapping[str, Any]) -> str | None:
    return results.get("commit") or results["sections"].get("environment", {}).get("commit")


def _require_same(kind: str, values: Iterable[tuple[Path, str | None]]) -> str | None:
    """Return the value of all files that have one. Raises UserError for files that differ."""
    known = [(path, value) for path, value in values if value]
    for path, value in known:
        first, expected = known[0]
        if value != expected:
            raise UserError(
                f"{first} is of {kind} {expected}, but {path} of {kind} {value}: import files of one {kind} at a time"
            )
    return known[0][1] if known else None


def _finite(value: Any) -> Any:
    """Return a value with null in place of NaN, the difference of wrong outputs, for which JSON has no number."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_details(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section without long lists of lines."""
    short = {name: value for name, value in section.items() if name not in LEFT_OUT}
    for name in ("failures", "variants"):
        if name in short:
            short[name] = [{key: value for key, value in each.items() if key not in LEFT_OUT} for each in short[name]]
    return short


def keep(files: Sequence[Path], root: Path) -> tuple[list[str], list[str]]:
    """Write record, charts and page; return what was written, and one line per estimate that needs an explanation.

    Everything is rendered before anything is written. Raises UserError for content that cannot be rendered and for
    files that cannot be written; then all files are as they were.
    """
    record = make_record(files)
    device = record["machine"]["device"]
    path = root / page.RECORDS / f"{device}.json"
    try:
        try:
            charts = _drawn(record, device)
            contents = {root / page.IMAGES / name: data for name, data in charts.items()}
            stored_text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        except DAMAGED as error:
            raise UserError(f"{files[0]} has rows that cannot be drawn ({_reason(error)}): correct the file") from error
        devices = dict(sorted({**stored(root, device), device: record}.items()))
        names = {name: sorted(charts) if name == device else page.charts_of(root, name) for name in devices}
        text, unexplained = _page(root, devices, names, {device: files[0]})
        _write_all({**contents, root / page.PAGE: text.encode(), path: stored_text.encode()})
        for old in page.charts_of(root, device):
            if old not in charts:
                (root / page.IMAGES / old).unlink()
    except OSError as error:
        named = error.filename or root / page.PAGE
        raise UserError(f"cannot read or write {named}: {error.strerror or error}") from error
    written = [path.relative_to(root).as_posix(), *(f"{page.IMAGES}/{name}" for name in charts), page.PAGE]
    return [f"wrote {name}" for name in written], unexplained


def _write_all(contents: Mapping[Path, bytes]) -> None:
    """Write all files or none: all are complete beside their destinations before one is renamed. Raises UserError."""
    with ExitStack() as stack:
        for path, content in contents.items():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                stack.enter_context(atomic_write(path)).write_bytes(content)
            except OSError as error:
                message = f"cannot write {path}: {error.strerror}: make it writable; nothing was imported"
                raise UserError(message) from error


def _drawn(record: Mapping[str, Any], device: str) -> dict[str, bytes]:
    """Return the charts of a record by the names of their files."""
    title = f"bf16, {record['machine']['name']}, torch {record['versions'].get('torch', '?')}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            names = draw(page.sections_of(record), Path(folder), False, title)
        except ImportError as error:
            raise UserError(f"charts need matplotlib: pip install matplotlib ({error})") from error
        return {f"gpu_{device}_{name}": (Path(folder) / name).read_bytes() for name in names}


def stored(root: Path, replaced: str = "") -> dict[str, Any]:
    """Return the records of all GPUs, by device, without the one that is `replaced`.

    Raises UserError, which names the file, for one that cannot be shown.
    """
    paths = sorted((root / page.RECORDS).glob("*.json"))
    return {path.stem: _stored(path) for path in paths if path.stem != replaced}


def _stored(path: Path) -> dict[str, Any]:
    cure = "delete that file, and import its results again"
    record = _parse(path, f"{path} is not a record ({cure})")
    try:
        problems = records.problems(record, "gpu", path.stem)
        if not problems:
            rows = (problem for row in record["rows"] if (problem := problem_of_row(row)))
            problems = [*rows, *_problems({"sections": record["settings"]["sections"]})]
    except DAMAGED as error:
        problems = [_reason(error)]
    if problems:
        raise UserError(f"{path} is a damaged record ({problems[0]}): {cure}")
    return dict(record)


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _page(
    root: Path, devices: Mapping[str, Any], charts: Mapping[str, Sequence[str]], sources: Mapping[str, Path]
) -> tuple[str, list[str]]:
    """Return the page with the tables of all records, and one line per estimate that needs an explanation.

    `sources` are the files that devices come from where it is not their record. Raises UserError, which names the file,
    for one that cannot be rendered.
    """
    try:
        text = (root / page.PAGE).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{root / page.PAGE} is not UTF-8: {error}") from error
    explanations = page.explanations_on(text)
    for device, record in devices.items():
        try:
            page.render({device: record}, explanations, charts)
            page.unexplained({device: record}, explanations)
        except DAMAGED as error:
            path = sources.get(device, root / page.RECORDS / f"{device}.json")
            cure = "correct the file" if device in sources else "delete that file, and import its results again"
            raise UserError(f"{path} has values that cannot be shown ({_reason(error)}): {cure}") from error
    return page.replaced(text, page.render(devices, explanations, charts)), page.unexplained(devices, explanations)


def write_page(root: Path) -> list[str]:
    """Write the measured part of the page from all records; return one line per estimate that needs an explanation."""
    devices = stored(root)
    text, unexplained = _page(root, devices, {device: page.charts_of(root, device) for device in devices}, {})
    write_atomic(root / page.PAGE, text)
    return unexplained
