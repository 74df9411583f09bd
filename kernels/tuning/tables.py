"""Tiles, warps and pipeline stages of the kernels: looked up in a table, never chosen by a timing at run time.

A configuration is a function of the kernel, the shape class and the GPU alone, so that a run gives the same bits after
a restart and on every rank. `fastbert.kernels.configs` holds the defaults; `fastbert doctor --tune` measures candidates
on the user's GPU and saves a table, whose entries replace the defaults on that GPU.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastbert import tuning_tables
from fastbert.errors import UserError
from fastbert.kernels.configs.configuration import Config, Table, shape_class
from fastbert.kernels.configs.defaults import DEFAULTS, SIZES

__all__ = ["DEFAULTS", "Config", "Table", "effective", "load", "lookup", "overridden", "pinned", "save", "shape_class"]

FORMAT = 1
# Modules that do not change what is launched.
CASES = ("compile_cases.py", "tuning_cases.py")


def lookup(kernel: str, shape: str, architecture: str) -> Config:
    """Return the configuration of `kernel` for a shape class on a GPU, from the saved table or the defaults."""
    if architecture in _pinned:
        defaults, measured = _pinned[architecture].get(kernel, {}), {}
    else:
        defaults = DEFAULTS[_nearest(architecture)][kernel]
        measured = saved().get(architecture, {}).get(kernel, {})
    overrides = _overridden.get(kernel, {})
    many_rows = shape.partition("-rows")[0]
    if shape not in overrides and many_rows in overrides:
        return overrides[many_rows]
    # A mask or dropout takes registers: where the defaults tell such classes apart, measurements without do not apply.
    for name in _classes(shape):
        for entries in (overrides, measured, defaults):
            if name in entries:
                return entries[name]
    raise KeyError(f"no configuration of {kernel} for {shape}")


def _classes(shape: str) -> list[str]:
    """Return a shape class and those that hold for it too, the nearest first."""
    unmasked = shape.replace("-masked", "")
    many_rows = shape.partition("-rows")[0]
    names = (shape, unmasked, shape.removesuffix("-dropout"), unmasked.removesuffix("-dropout"), many_rows)
    return list(dict.fromkeys(names))


_overridden: dict[str, dict[str, Config]] = {}
_pinned: dict[str, Table] = {}
_revision = 0


def revision() -> int:
    """Return a number that changes with what `lookup` returns, for caches of it."""
    return _revision


def _changed() -> None:
    global _revision
    _revision += 1


def effective(architecture: str) -> Table:
    """Return all configurations that `lookup` gives for a GPU now."""
    measured = saved().get(architecture, {})
    return {
        kernel: {shape: lookup(kernel, shape, architecture) for shape in sorted({*entries, *measured.get(kernel, {})})}
        for kernel, entries in DEFAULTS[_nearest(architecture)].items()
    }


@contextlib.contextmanager
def pinned(tables: Mapping[str, Table]) -> Iterator[None]:
    """Make `lookup` read `tables` alone, instead of the defaults and the saved table, within the block."""
    before = dict(_pinned)
    _pinned.update(tables)
    _changed()
    try:
        yield
    finally:
        _pinned.clear()
        _pinned.update(before)
        _changed()


@contextlib.contextmanager
def overridden(kernel: str, shape: str, config: Config) -> Iterator[None]:
    """Make `lookup` return `config` for that kernel and shape class, within the block; for all of its row classes."""
    _overridden.setdefault(kernel, {})[shape] = config
    _changed()
    try:
        yield
    finally:
        del _overridden[kernel][shape]
        _changed()


@functools.cache
def _nearest(architecture: str) -> str:
    """Return the architecture whose defaults hold for a GPU: its own, or the newest generation before it."""
    if architecture in DEFAULTS:
        return architecture
    if architecture.startswith("gfx"):
        return "gfx942"
    match = re.fullmatch(r"sm_(\d+)", architecture)
    generations = sorted(int(name[3:]) for name in DEFAULTS if name.startswith("sm_"))
    older = [generation for generation in generations if match and generation <= int(match[1])]
    return f"sm_{older[-1] if older else generations[0]}"


def saved_path() -> Path:
    """Return the path of the measured table: $FASTBERT_TUNING, or tuning.json in the user's cache folder."""
    return tuning_tables.path_of("FASTBERT_TUNING", "tuning.json")


@functools.cache
def fingerprint() -> str:
    """Return a hash of the kernels' source, so that a table measured for other kernels is refused."""
    digest = hashlib.sha256()
    kernels = Path(__file__).parents[1]
    for path in sorted(kernels.rglob("*.py")):
        if path.relative_to(kernels).parts[0] not in ("tuning", "configs") and path.name not in CASES:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def saved() -> dict[str, Table]:
    """Return the saved table, read once per process; a table that cannot be used is logged and ignored."""
    return tuning_tables.read_or_empty(saved_path(), load, "the default configurations are used")


def load(path: Path) -> dict[str, Table]:
    """Read a table by architecture, kernel and shape class. Raises UserError if it cannot be used."""
    kernels, entries = tuning_tables.read(path, "tuning table", FORMAT, _parse)
    if kernels != fingerprint():
        raise UserError(f"{path} was measured with other kernels than these: {tuning_tables.CURE}")
    return entries


def _parse(document: dict[str, Any]) -> tuple[str, dict[str, Table]]:
    """Return the fingerprint of the kernels that were measured, and the table."""
    return document["kernels"], {
        architecture: {
            kernel: {shape: _config(kernel, value) for shape, value in shapes.items()}
            for kernel, shapes in table.items()
        }
        for architecture, table in document["entries"].items()
    }


def _config(kernel: str, value: Any) -> Config:
    if kernel not in SIZES:
        raise ValueError(f"no kernel is named {kernel!r}")
    constants = {name: _integer(number) for name, number in value["constants"].items()}
    numbers = {name: _integer(value[name]) for name in ("num_warps", "num_stages", "max_registers")}
    config = Config(constants=constants, **numbers)
    possible = SIZES[kernel]
    if constants.keys() != possible.keys() or any(size not in possible[name] for name, size in constants.items()):
        raise ValueError(f"{kernel} cannot be compiled with {constants}")
    if config.num_warps not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"num_warps={config.num_warps} is not a power of two up to 32")
    if not (1 <= config.num_stages <= 8 and 0 <= config.max_registers <= 255):
        raise ValueError(f"{value} is out of range")
    return config


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not an integer")
    return value


def save(path: Path, table: dict[str, Table]) -> None:
    """Write a table atomically; entries of other GPUs, kernels and classes stay in the file."""
    merged: dict[str, Table] = {}
    if path.exists():
        with contextlib.suppress(UserError):
            merged = load(path)
    for architecture, kernels in table.items():
        for kernel, entries in kernels.items():
            merged.setdefault(architecture, {}).setdefault(kernel, {}).update(entries)
        merged.setdefault(architecture, {})
    entries = {architecture: _as_json(kernels) for architecture, kernels in merged.items()}
    tuning_tables.write(path, {"format": FORMAT, "kernels": fingerprint(), "entries": entries})
    saved.cache_clear()
    _changed()


def _as_json(kernels: Table) -> dict[str, Any]:
    return {kernel: {shape: config.as_json() for shape, config in shapes.items()} for kernel, shapes in kernels.items()}
