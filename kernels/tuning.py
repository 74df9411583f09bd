"""Which tile, how many warps and how many pipeline stages a kernel gets: a table, never a timing at run time.

A configuration is a function of the kernel, the shape class and the GPU alone, so that a run gives the same bits after
a restart and on every rank. The shipped table stands below; `fastbert doctor --tune` measures the candidates on the
user's GPU and saves a table, whose entries then replace the shipped ones on that GPU.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fastbert.errors import UserError

FORMAT = 1
logger = logging.getLogger("fastbert")


@dataclass(frozen=True, kw_only=True)
class Config:
    """How one kernel is compiled: tile sizes and the like by name, warps of a program, stages of the load pipeline."""

    constants: Mapping[str, int] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1
    max_registers: int = 0
    """Of a thread, on NVIDIA GPUs; 0 leaves it to ptxas, which at times spills a few bytes to run more warps."""

    @property
    def options(self) -> dict[str, Any]:
        """The compiler's options. Products and sums may fuse; said explicitly, because it changes bits."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": True}
        return options | ({"maxnreg": self.max_registers} if self.max_registers else {})

    def as_json(self) -> dict[str, Any]:
        return {name: dict(value) if name == "constants" else value for name, value in vars(self).items()}


# Configurations by kernel and shape class.
Table = dict[str, dict[str, Config]]


def shape_class(dtype: torch.dtype, tf32: bool, width: int, *, masked: bool = False) -> str:
    """What a configuration may depend on: the arithmetic of the products, the padded width of a row, and whether scores
    meet a causal mask or a bias.

    `half-64`: bf16 or fp16, head_dim 64; `tf32-128-masked`; `ieee-32`: fp32 without tensor cores.
    """
    arithmetic = "half" if dtype in (torch.bfloat16, torch.float16) else "tf32" if tf32 else "ieee"
    return f"{arithmetic}-{1 << (width - 1).bit_length()}" + ("-masked" if masked else "")


def _whole(longest: int, rows: int = 128, num_warps: int = 4) -> Config:
    """Of the short path: the longest sequence it takes (0: none, the long path serves all), rows of several heads."""
    return Config(constants={"LONGEST": longest, "ROWS": rows}, num_warps=num_warps)


def _tile(queries: int, keys: int, num_warps: int, num_stages: int, max_registers: int = 0) -> Config:
    constants = {"QUERIES": queries, "KEYS": keys}
    return Config(constants=constants, num_warps=num_warps, num_stages=num_stages, max_registers=max_registers)


# A name without `-masked` serves both. Chosen by registers and shared memory of compiled code (no spills, two programs
# on a multiprocessor of the short path), not by time: no GPU has been measured yet.
_HOPPER = {
    "forward_short": {
        "half-32": _whole(128),
        "half-64": _whole(128),
        "half-128": _whole(128, 64),
        "half-128-masked": _whole(64, 64),
        "tf32-32": _whole(64),
        "tf32-64": _whole(64),
        "tf32-128": _whole(0),
        "ieee-32": _whole(0),
        "ieee-64": _whole(0),
        "ieee-128": _whole(0),
    },
    "forward_long": {
        "half-32": _tile(128, 64, 8, 3),
        "half-64": _tile(128, 64, 8, 3),
        "half-128": _tile(128, 64, 8, 3),
        "half-128-masked": _tile(128, 32, 8, 3),
        "tf32-32": _tile(64, 32, 4, 2),
        "tf32-64": _tile(64, 32, 4, 2),
        "tf32-128": _tile(64, 32, 8, 2),
        "ieee-32": _tile(32, 32, 4, 1, 255),
        "ieee-64": _tile(32, 32, 8, 1, 168),
        "ieee-128": _tile(16, 32, 8, 1, 255),
    },
    "backward_short": {
        "half-32": _whole(128),
        "half-32-masked": _whole(64),
        "half-64": _whole(128),
        "half-64-masked": _whole(64),
        "half-128": _whole(0),
        "tf32-32": _whole(32),
        "tf32-64": _whole(32, 64),
        "tf32-128": _whole(0),
        "ieee-32": _whole(0),
        "ieee-64": _whole(0),
        "ieee-128": _whole(0),
    },
    "backward_queries": {
        "half-32": _tile(64, 64, 4, 2),
        "half-64": _tile(64, 64, 4, 2),
        "half-128": _tile(64, 64, 8, 2),
        "tf32-32": _tile(64, 32, 4, 1),
        "tf32-64": _tile(64, 32, 4, 1),
        "tf32-128": _tile(16, 32, 8, 1, 255),
        "ieee-32": _tile(32, 32, 4, 1),
        "ieee-64": _tile(32, 32, 8, 1),
        "ieee-128": _tile(32, 32, 16, 1, 128),
    },
    "backward_keys": {
        "half-32": _tile(64, 64, 4, 2),
        "half-64": _tile(64, 64, 4, 2),
        "half-64-masked": _tile(64, 64, 8, 1, 255),
        "half-128": _tile(32, 64, 8, 1),
        "tf32-32": _tile(32, 64, 4, 1),
        "tf32-64": _tile(32, 64, 4, 1),
        "tf32-128": _tile(32, 32, 8, 1, 255),
        "ieee-32": _tile(32, 32, 4, 1),
        "ieee-64": _tile(16, 32, 8, 1, 255),
        "ieee-128": _tile(16, 32, 8, 1, 255),
    },
    "backward_bias": {
        "half-32": _tile(64, 64, 4, 1),
        "half-64": _tile(64, 64, 4, 1),
        "half-128": _tile(64, 64, 8, 1),
        "tf32-32": _tile(32, 32, 4, 1),
        "tf32-64": _tile(32, 32, 4, 1),
        "tf32-128": _tile(16, 32, 8, 1),
        "ieee-32": _tile(32, 32, 4, 1),
        "ieee-64": _tile(32, 32, 8, 1),
        "ieee-128": _tile(16, 32, 8, 1, 255),
    },
}
# Softmax: whole rows in registers up to the widest class; the class behind it holds all longer rows, read in blocks.
# Dropout shares blocks of random numbers among 32 keys, so a row is padded to that at least.
SOFTMAX_NARROWEST, SOFTMAX_WIDEST = 32, 16384


def _softmax(elements: int, num_warps: int) -> dict[str, Config]:
    """Rows for about `elements` elements a program, and a proportion of warps that holds for longer rows too.

    Narrow rows have a pointer each, which takes registers: a quarter of the elements for them.
    """
    table = {}
    width = SOFTMAX_NARROWEST
    while width <= 2 * SOFTMAX_WIDEST:
        keys = width if width <= SOFTMAX_WIDEST else SOFTMAX_WIDEST // 2
        warps = num_warps * max(1, keys // elements)
        rows = max(1, (elements if keys > 64 else elements // 4) // keys)
        config = Config(constants={"ROWS": rows, "KEYS": keys}, num_warps=warps)
        table |= {f"half-{width}": config, f"ieee-{width}": config}
        width *= 2
    return table


_HOPPER |= {"softmax_forward": _softmax(4096, 4), "softmax_backward": _softmax(4096, 4)}
# Small tiles, so that small tests have several of them.
_INTERPRETER = {
    kernel: {f"{kind}-{width}": config for kind in ("half", "tf32", "ieee") for width in (32, 64, 128)}
    for kernel, config in {
        "forward_short": _whole(128),
        "forward_long": _tile(32, 64, 4, 1),
        "backward_short": _whole(128),
        "backward_queries": _tile(64, 32, 4, 1),
        "backward_keys": _tile(32, 64, 4, 1),
        "backward_bias": _tile(32, 64, 4, 1),
    }.items()
}
_INTERPRETER |= {kernel: _softmax(4096, 4) for kernel in ("softmax_forward", "softmax_backward")}


def _changed(base: Table, **changes: dict[str, Config]) -> Table:
    """A table like `base`, with other configurations for some shape classes of some kernels."""
    return {kernel: entries | changes.get(kernel, {}) for kernel, entries in base.items()}


# Its matrix units take both operands from registers.
_AMPERE = _changed(
    _HOPPER,
    forward_long={"half-128-masked": _tile(64, 64, 8, 2), "ieee-32": _tile(32, 32, 4, 1, 168)},
    backward_short={"half-64": _whole(64)},
    backward_queries={"half-64": _tile(64, 32, 4, 2)},
    backward_keys={
        "half-64": _tile(64, 64, 8, 1),
        "half-64-masked": _tile(64, 64, 8, 1),
        "tf32-64": _tile(32, 32, 4, 1),
        "ieee-64": _tile(16, 32, 4, 1),
        "ieee-128": _tile(32, 32, 8, 1, 255),
    },
    backward_bias={"half-64": _tile(64, 64, 8, 1), "half-128": _tile(32, 64, 8, 1)},
)
_BLACKWELL = _changed(
    _HOPPER,
    forward_long={
        "half-128-masked": _tile(64, 64, 8, 2),
        "tf32-64": _tile(64, 32, 8, 2),
        "tf32-128": _tile(32, 32, 8, 2),
    },
    backward_queries={
        "half-64": _tile(64, 64, 4, 2, 255),
        "half-128": _tile(64, 64, 8, 2, 255),
        "tf32-128": _tile(32, 32, 8, 1, 255),
    },
    backward_keys={"half-64": _tile(64, 64, 4, 2, 255)},
)
# 64 KiB of shared memory for all programs of a compute unit, and 64 threads in a warp.
_CDNA3 = _changed(
    _HOPPER,
    forward_long={
        "half-32": _tile(128, 64, 4, 1),
        "half-64": _tile(128, 64, 4, 1),
        "half-128": _tile(64, 64, 4, 1),
        "half-128-masked": _tile(64, 64, 4, 1),
        "ieee-32": _tile(32, 32, 4, 1),
        "tf32-128": _tile(64, 32, 4, 1),
        "ieee-64": _tile(32, 32, 8, 1),
        "ieee-128": _tile(32, 32, 4, 1),
    },
    backward_queries={
        "half-128": _tile(64, 32, 4, 1),
        "tf32-128": _tile(64, 32, 4, 1),
        "ieee-64": _tile(32, 32, 4, 1),
        "ieee-128": _tile(32, 32, 4, 1),
    },
    backward_keys={
        "half-64-masked": _tile(64, 64, 4, 2),
        "half-128": _tile(64, 32, 4, 1),
        "half-128-masked": _tile(32, 32, 4, 1),
        "tf32-128": _tile(32, 32, 4, 1),
        "ieee-64": _tile(32, 32, 8, 1),
        "ieee-128": _tile(32, 32, 4, 1),
    },
    backward_bias={"ieee-128": _tile(16, 32, 8, 1)},
    **{kernel: _softmax(4096, 2) for kernel in ("softmax_forward", "softmax_backward")},
)
# 99 KiB of shared memory for a program: A10, L4, L40S, RTX 30, 40 and 50.
_SMALL = _changed(
    _AMPERE,
    forward_long={
        "half-32-masked": _tile(64, 64, 4, 2),
        "half-64-masked": _tile(64, 64, 4, 2),
        "half-128": _tile(64, 64, 4, 2),
        "half-128-masked": _tile(64, 32, 4, 2),
    },
    backward_keys={"tf32-128": _tile(32, 32, 8, 1)},
)
SHIPPED: dict[str, Table] = {
    "sm_80": _AMPERE,
    "sm_86": _SMALL,
    "sm_90": _HOPPER,
    "sm_100": _BLACKWELL,
    "sm_120": _SMALL,
    "gfx942": _CDNA3,
    "interpreter": _INTERPRETER,
}


def lookup(kernel: str, shape: str, architecture: str) -> Config:
    """The configuration of `kernel` for a shape class on a GPU: from the saved table, or else from the shipped one."""
    if architecture in _pinned:
        shipped, measured = _pinned[architecture].get(kernel, {}), {}
    else:
        shipped = SHIPPED[_nearest(architecture)][kernel]
        measured = saved().get(architecture, {}).get(kernel, {})
    # A mask takes registers: where the shipped table makes a difference, what was measured without one says nothing.
    names = (shape, shape.removesuffix("-masked"))
    for name in names:
        for entries in (_overridden.get(kernel, {}), measured, shipped):
            if name in entries:
                return entries[name]
    raise KeyError(f"no configuration of {kernel} for {shape}")


_overridden: dict[str, dict[str, Config]] = {}
_pinned: dict[str, Table] = {}


def effective(architecture: str) -> Table:
    """All configurations that `lookup` gives for a GPU now."""
    measured = saved().get(architecture, {})
    return {
        kernel: {shape: lookup(kernel, shape, architecture) for shape in sorted({*entries, *measured.get(kernel, {})})}
        for kernel, entries in SHIPPED[_nearest(architecture)].items()
    }


@contextlib.contextmanager
def pinned(tables: Mapping[str, Table]) -> Iterator[None]:
    """Within the block, `lookup` gives what `tables` hold for a GPU, whatever is shipped or saved."""
    before = dict(_pinned)
    _pinned.update(tables)
    try:
        yield
    finally:
        _pinned.clear()
        _pinned.update(before)


@contextlib.contextmanager
def overridden(kernel: str, shape: str, config: Config) -> Iterator[None]:
    """Within the block, `lookup` gives `config` for that kernel and shape class."""
    _overridden.setdefault(kernel, {})[shape] = config
    try:
        yield
    finally:
        del _overridden[kernel][shape]


@functools.cache
def _nearest(architecture: str) -> str:
    """The shipped table that serves a GPU: its own, or that of the newest generation before it."""
    if architecture in SHIPPED:
        return architecture
    if architecture.startswith("gfx"):
        return "gfx942"
    number = re.fullmatch(r"sm_(\d+)", architecture)
    generations = sorted(int(name[3:]) for name in SHIPPED if name.startswith("sm_"))
    older = [generation for generation in generations if number and generation <= int(number[1])]
    return f"sm_{older[-1] if older else generations[0]}"


def saved_path() -> Path:
    """Where a measured table is kept: $FASTBERT_TUNING, or tuning.json in the user's cache folder."""
    named = os.environ.get("FASTBERT_TUNING")
    if named:
        return Path(named)
    # A user without a home, as in many containers, leaves "~" as it stands: a path that is not there.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "fastbert" / "tuning.json"


@functools.cache
def fingerprint() -> str:
    """Changes with the kernels' source, so that a table measured for other kernels is not believed."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.name not in (Path(__file__).name, "tune.py", "ahead_of_time.py"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def saved() -> dict[str, Table]:
    """The saved table, read once a process; one that cannot be used is named in the log and passed over."""
    path = saved_path()
    # Unlike Path.exists, False for a folder that may not be entered.
    if not os.path.exists(path):
        return {}
    try:
        return load(path)
    except UserError as error:
        logger.warning("%s; the shipped configurations are used", error)
        return {}


def load(path: Path) -> dict[str, Table]:
    """Read a table: configurations by architecture, kernel and shape class. Raises UserError if it cannot be used."""
    cure = "`fastbert doctor --tune` writes a new one"
    try:
        read = json.loads(path.read_text())
        version, kernels = read["format"], read["kernels"]
        entries = {
            architecture: {
                kernel: {shape: _config(kernel, value) for shape, value in shapes.items()}
                for kernel, shapes in table.items()
            }
            for architecture, table in read["entries"].items()
        }
    except OSError as error:
        raise UserError(f"cannot read the tuning table {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no tuning table ({type(error).__name__}: {error}): {cure}") from error
    if version != FORMAT:
        raise UserError(f"{path} has format {version!r}, this version reads {FORMAT}: {cure}")
    if kernels != fingerprint():
        raise UserError(f"{path} was measured with other kernels than these: {cure}")
    return entries


# The sizes that the kernels are written for: outside of them they do not compile, or leave sequences out.
_SIZES: dict[str, tuple[int, ...]] = {
    "LONGEST": (0, 32, 64, 128),
    "ROWS": (32, 64, 128, 256),
    "QUERIES": (16, 32, 64, 128, 256),
    "KEYS": (32, 64, 128, 256),
}
_SOFTMAX_SIZES: dict[str, tuple[int, ...]] = {
    "ROWS": tuple(1 << power for power in range(9)),
    "KEYS": tuple(1 << power for power in range(5, 15)),
}


def _config(kernel: str, value: Any) -> Config:
    constants = {str(name): int(number) for name, number in value["constants"].items()}
    numbers = {name: int(value[name]) for name in ("num_warps", "num_stages", "max_registers")}
    config = Config(constants=constants, **numbers)
    sizes = [*constants.values(), config.num_warps]
    if any(size < 0 or size & (size - 1) for size in sizes):
        raise ValueError(f"{value} has a size that is no power of two")
    if not (1 <= config.num_warps <= 32 and 1 <= config.num_stages <= 8 and 0 <= config.max_registers <= 255):
        raise ValueError(f"{value} is out of range")
    possible = _SOFTMAX_SIZES if kernel.startswith("softmax") else _SIZES
    expected = next(iter(_HOPPER[kernel].values())).constants
    if constants.keys() != expected.keys() or any(size not in possible[name] for name, size in constants.items()):
        raise ValueError(f"{kernel} cannot be compiled with {constants}")
    return config


def save(path: Path, table: dict[str, Table]) -> None:
    """Write a table whole or not at all. What the file holds of other GPUs, kernels and classes stays in it."""
    merged: dict[str, Table] = {}
    if path.exists():
        with contextlib.suppress(UserError):
            merged = load(path)
    for architecture, kernels in table.items():
        for kernel, entries in kernels.items():
            merged.setdefault(architecture, {}).setdefault(kernel, {}).update(entries)
        merged.setdefault(architecture, {})
    entries = {architecture: _plain(kernels) for architecture, kernels in merged.items()}
    text = json.dumps({"format": FORMAT, "kernels": fingerprint(), "entries": entries}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    partial.write_text(text + "\n")
    partial.replace(path)
    saved.cache_clear()


def _plain(kernels: Table) -> dict[str, Any]:
    return {kernel: {shape: config.as_json() for shape, config in shapes.items()} for kernel, shapes in kernels.items()}
