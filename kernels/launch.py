"""Kernel launches: with a configuration from the table, on the tensors' device, or recorded for a compiler.

Every launcher of this package calls `launch`, so that kernels compiled ahead of time for another GPU are exactly those
that would run on it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from triton import __version__ as triton_version
from triton import knobs
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from fastbert.errors import KernelError, UserError
from fastbert.kernels.tuning.tables import Config


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel, its grid, its run-time arguments by position, its constants by name, its config."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    config: Config


# What the first launch of a variant raises if it cannot be compiled or loaded.
REFUSALS: tuple[type[Exception], ...] = (CompilationError, OutOfResources, PTXASError)

_recorded: list[Launch] | None = None
_observed: list[Launch] | None = None
_architecture: str | None = None


def interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter, on CPU tensors (TRITON_INTERPRET=1 at process start)."""
    return bool(knobs.runtime.interpret)


def architecture(device: torch.device) -> str:
    """Return the compiler's name of a GPU (sm_90, gfx942), or of the GPU that kernels are recorded for."""
    if _architecture is not None:
        return _architecture
    return _device_architecture(device) if device.type == "cuda" else "interpreter"


@functools.cache
def _device_architecture(device: torch.device) -> str:
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of the device, over which kernels split their work."""
    if device.type != "cuda":
        return 4 if _architecture is None else 132
    return torch.cuda.get_device_properties(device).multi_processor_count


@contextlib.contextmanager
def recording(target: str) -> Iterator[list[Launch]]:
    """Record launches for the architecture `target` instead of running them; tensors may be on any device."""
    global _recorded, _architecture
    if interpreted():
        raise UserError("TRITON_INTERPRET=1 leaves nothing to compile: record launches in a process without it")
    _recorded, _architecture = [], target
    try:
        yield _recorded
    finally:
        _recorded = _architecture = None


@contextlib.contextmanager
def observing() -> Iterator[list[Launch]]:
    """Record launches while they run: to count them, and the bytes of their tensors."""
    global _observed
    _observed = []
    try:
        yield _observed
    finally:
        _observed = None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, config: Config, **constants: Any) -> None:
    """Launch `kernel` on the current stream, unless the grid is empty. Raises `KernelError` if it does not compile."""
    constants = {**constants, **config.constants}
    if _recorded is not None:
        _recorded.append(Launch(kernel, grid, arguments, constants, config))
        return
    if 0 in grid:
        return
    if _observed is not None:
        _observed.append(Launch(kernel, grid, arguments, constants, config))
    device = next(argument.device for argument in arguments if isinstance(argument, torch.Tensor))
    try:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            kernel[grid](*arguments, **constants, **config.options)
    except REFUSALS as error:
        raise KernelError(_refusal(kernel, arguments, architecture(device), error), kernel.__name__) from error


def _refusal(kernel: Any, arguments: tuple[Any, ...], target: str, error: Exception) -> str:
    """Describe a kernel that does not compile in one line."""
    tensor = next(argument for argument in arguments if isinstance(argument, torch.Tensor))
    shape = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, OutOfResources):
        problem = lines[0]
    else:  # the source and a mark precede the message of a compilation error
        problem = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "")
    return (
        f"triton {triton_version} cannot compile {kernel.__name__} for {shape} on {target}:"
        f" {type(error).__name__}: {problem[:200]}; `fastbert doctor` checks all kernels"
    )
