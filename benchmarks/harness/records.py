"""Records of measurements: JSON objects of one schema, with the machine, the versions and the commit they belong to.

`benchmarks/results/README.md` describes the schema; `problems` checks it. Every benchmark writes its `--json` file with
`write`, so such a file can be kept as `benchmarks/results/<benchmark>/<machine class>.json` as it is.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastbert.io.atomic_write import write_atomic

SCHEMA_VERSION = 1
FIELDS = ("schema", "benchmark", "machine", "versions", "commit", "rows")
PACKAGES = ("fastbert-engine", "torch", "triton", "transformers", "tokenizers", "numpy")
# The first row whose features a processor has determines its class. Of the instructions that fastbert uses Zen 5 has
# those of Zen 4, at twice the speed; VP2INTERSECT, which fastbert does not use, tells the two apart.
CPU_CLASSES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("amx_tile",), "amx"),
    (("avx512_bf16", "avx512_vp2intersect"), "zen5"),
    (("avx512_bf16",), "avx512-bf16"),
    (("avx512_vnni",), "avx512-vnni"),
    (("avx512f",), "avx512"),
    (("avx2",), "avx2"),
    (("neon",), "neon"),
)
UNKNOWN_CLASS, ANY_CLASS = "unknown", "any"
DIRTY = "-dirty"  # behind the commit of a changed tree
BUSY = "busy"  # the setting of a record that was measured while other processes used the cores
RESULTS = "benchmarks/results"  # the folder of the records in the repository


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of those distributions that are installed."""
    installed = {"python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def machine() -> dict[str, Any]:
    """Return the processor, its cores and features, the GPU and the system."""
    from fastbert.doctor import examine

    diagnosis = examine()
    gpu = diagnosis.gpus[0] if diagnosis.gpus else None
    return {
        "cpu": f"{diagnosis.cpu.model}, {diagnosis.cpu.logical_cores} logical cores",
        "usable_cores": diagnosis.cpu.usable_cores,
        "features": sorted(name for name, present in diagnosis.cpu.features.items() if present),
        "cpu_capability": diagnosis.cpu.level,
        "gpu": gpu.name if gpu else None,
        "system": f"{platform.system()} {platform.machine()}",
    }


def machine_class(machine: Mapping[str, Any] | None) -> str:
    """Return the class a record is named after: the GPU or its architecture, else the first of `CPU_CLASSES`.

    "any" is the class of results that do not depend on the machine (`machine` is None).
    """
    if machine is None:
        return ANY_CLASS
    for name in ("device", "architecture"):
        if machine.get(name):
            return str(machine[name])
    features = frozenset(machine.get("features", ()))
    return next((name for needed, name in CPU_CLASSES if features.issuperset(needed)), UNKNOWN_CLASS)


def repository() -> Path | None:
    """Return the root of the repository that holds this file; None for an installed copy, or without git."""
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    try:
        # An installed copy may lie in an unrelated repository.
        if subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True).returncode != 0:
            return None
        root = subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return None
    return Path(root) if root else None


def commit() -> str | None:
    """Return the commit of this file's repository, "-dirty" if tracked files differ; None for an installed copy.

    Records do not count: of several that are made one after the other, each would make the next one's state dirty.
    """
    root = repository()
    return None if root is None else commit_of(root)


def commit_of(root: Path) -> str | None:
    """Return the commit of a repository as `commit` does; None if it has none."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True).stdout.strip()

    head = git("rev-parse", "--short=12", "HEAD")
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){RESULTS}")
    return f"{head}{DIRTY}" if head and changes else head or None


def record(
    benchmark: str,
    rows: Iterable[Mapping[str, Any]],
    packages: Sequence[str] = PACKAGES,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a record of rows that were measured here and now; `settings` hold what is common to all rows.

    Infinite values become null, for which JSON has no number.
    """
    return {
        "schema": SCHEMA_VERSION,
        "benchmark": benchmark,
        "machine": machine(),
        "versions": versions(packages),
        "commit": commit(),
        **({"settings": dict(settings)} if settings else {}),
        "rows": [_finite(dict(row)) for row in rows],
    }


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON; the file has its old content or the new one."""
    text = json.dumps(record, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text + "\n")


def problems(record: Any, benchmark: str, machine_class_name: str) -> list[str]:
    """Return what is wrong with a record that is stored as `<benchmark>/<machine class>.json`; empty if nothing is."""
    if not isinstance(record, dict) or not set(FIELDS) <= set(record):
        return [f"must be an object with {', '.join(FIELDS)}"]
    messages = []
    unknown = sorted(set(record) - {*FIELDS, "settings", "note"})
    if unknown:
        messages.append(f"unknown fields {', '.join(unknown)}")
    if record["schema"] != SCHEMA_VERSION:
        messages.append(f"schema {record['schema']} must be {SCHEMA_VERSION}")
    if record["benchmark"] != benchmark:
        messages.append(f"benchmark {record['benchmark']} must be {benchmark}, the folder's name")
    if machine_class(record["machine"]) != machine_class_name:
        messages.append(f"machine is of class {machine_class(record['machine'])}, not {machine_class_name}")
    if not isinstance(record["versions"], dict):
        messages.append("versions must be an object")
    if not isinstance(record["commit"], str | None):
        messages.append("commit must be a string or null")
    rows = record["rows"]
    if not isinstance(rows, list) or not rows:
        return [*messages, "rows must be a list with at least one row"]
    if not all(isinstance(row, dict) and isinstance(row.get("workload"), str) for row in rows):
        messages.append("every row must be an object with a workload")
    if (record["commit"] is None or not record["versions"]) and not isinstance(record.get("note"), str):
        missing = [row for row in rows if not (isinstance(row, dict) and "commit" in row)]
        messages += ["a record without commit or versions needs a note that gives the reason"] if missing else []
    return messages


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value
