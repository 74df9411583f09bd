"""The one place where a backend is chosen: once per call, by device, `use_backend` and what the backends support.

The choice is a pure function of these, so it is the same on every run. It travels with the call: operators receive the
backend's name, and backward runs on the backend of its forward.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fastbert import _C, cpu_capability
from fastbert.errors import UserError
from fastbert.ops.operation import BACKENDS, Backend, BackendName, Operation, Reason, operation_named, operations

Arguments = TypeVar("Arguments")
# The fastest first; eager supports every operation on every device.
PREFERENCE: dict[str, tuple[BackendName, ...]] = {"cuda": ("triton", "eager"), "cpu": ("native", "eager")}
# Searched for, not imported: the kernels are imported when they first run.
HAS_TRITON = importlib.util.find_spec("triton") is not None

_forced: BackendName | None = None
_logged: set[tuple[str, str]] = set()
logger = logging.getLogger("fastbert")


@dataclass(frozen=True)
class Choice:
    """The backend of one operation on one device, and the reason in words."""

    operation: str
    backend: str
    reason: str


def select_backend(operation: Operation[Arguments], device: torch.device, arguments: Arguments) -> Backend[Arguments]:
    """Return the backend that computes a call with `arguments` on `device`.

    Raises UserError where `use_backend` names a backend that does not support the call.
    """
    if _forced is not None:
        backend = operation.backends.get(_forced)
        if backend is None:
            raise UserError(
                f"backend {_forced!r} has no kernel for {operation.name!r}; use_backend(None) lets fastbert choose"
            )
        _prepare(device)
        reason = backend.supports(arguments)
        if reason is not None:
            raise UserError(
                f"backend {_forced!r} does not support {operation.name!r} here: {reason.text};"
                " use_backend('eager') does"
            )
        return backend
    if not is_recorded():
        _prepare(device)
        for name in PREFERENCE.get(device.type, ()):
            backend = operation.backends.get(name)
            if backend is None or (name == "triton" and not HAS_TRITON):
                continue
            reason = backend.supports(arguments)
            if reason is None:
                return backend
            if backend.logs_fallback:
                _log_fallback(operation.name, reason)
    # Recorded calls may run where fastbert is not installed, and operators have no rules for transforms.
    return operation.backends["eager"]


def _prepare(device: torch.device) -> None:
    if device.type == "cpu" and not torch.compiler.is_compiling():
        cpu_capability.apply()


def _log_fallback(operation: str, reason: Reason) -> None:
    if not torch.compiler.is_compiling() and (operation, reason.text) not in _logged:
        _logged.add((operation, reason.text))
        logger.warning("%s falls back to PyTorch: %s", operation, reason.text)


def needs_backward(*tensors: Tensor | None) -> bool:
    """Return whether a backward pass may follow a call with these tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def preferred_backend(operation: str, device: torch.device) -> str:
    """Return the name of the backend that `select_backend` tries first for a call of `operation` on `device`.

    Raises UserError where `use_backend` names a backend without a kernel for the operation.
    """
    record = operation_named(operation)
    if _forced is not None:
        if _forced not in record.backends:
            raise UserError(
                f"backend {_forced!r} has no kernel for {operation!r}; use_backend(None) lets fastbert choose"
            )
        _prepare(device)
        return _forced
    if is_recorded():
        return "eager"
    _prepare(device)
    return _first(record, PREFERENCE.get(device.type, ()))


def _first(operation: Operation[Any], names: Sequence[str]) -> str:
    """Return the first of `names` that has a backend here, `eager` if none has."""
    return next((name for name in names if name in operation.backends and (name != "triton" or HAS_TRITON)), "eager")


def is_recorded() -> bool:
    """Return whether PyTorch records the call (`torch.jit.trace`, `torch.export`) or transforms it (`torch.func`)."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    return torch._C._is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None


def refuse_forward_mode(operation: str) -> None:
    """Raise UserError inside forward-mode differentiation, for which torch would take an operator's derivative as 0."""
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        raise UserError(
            f"{operation} has no forward-mode derivative on this backend (torch.func.jvp): use_backend('eager') has"
        )


def forced() -> BackendName | None:
    """Return the backend that `use_backend` forces, or None."""
    return _forced


def supported_by(backend: BackendName) -> tuple[str, ...]:
    """Return the names of the operations that have a kernel on `backend`."""
    return tuple(name for name, operation in operations().items() if backend in operation.backends)


class _Restore(contextlib.AbstractContextManager[None]):
    """Undo `use_backend` at the end of a `with` statement."""

    def __init__(self, previous: BackendName | None) -> None:
        self.previous = previous

    def __exit__(self, *error: object) -> None:
        global _forced
        _forced = self.previous


def use_backend(name: BackendName | None) -> contextlib.AbstractContextManager[None]:
    """Force every operation onto one backend: `"triton"`, `"native"` or `"eager"`; `None` chooses by device again.

    As a function it holds until the next call; as a context manager (`with use_backend("eager"): ...`) until the block
    ends. A call that the forced backend does not support raises `UserError` with the reason.
    """
    global _forced
    if name is not None and name not in BACKENDS:
        raise UserError(f"unknown backend {name!r}: choose one of {', '.join(BACKENDS)}")
    previous, _forced = _forced, name
    return _Restore(previous)


def report(device: torch.device | None = None) -> list[Choice]:
    """Return one `Choice` per operation: its backend on `device` (default: the fastest present) and why."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return [Choice(name, *_explain(operation, device)) for name, operation in operations().items()]


def _explain(operation: Operation[Any], device: torch.device) -> tuple[str, str]:
    """Return the backend of an operation, and the reason."""
    if _forced is not None:
        if _forced in operation.backends:
            return _forced, "forced by use_backend"
        return "none", f"forced backend {_forced!r} has no kernel for it"
    names = PREFERENCE.get(device.type, ("eager",))
    name = _first(operation, names)
    summary = operation.backends[name].summary
    if name == "native":
        return name, f"{cpu_capability.current()} kernels: {summary}"
    if name == names[0]:
        return name, f"the fastest on {device.type}"
    if names[0] == "triton" and not HAS_TRITON:
        return name, "triton is not installed"
    return name, summary or f"this version has no {names[0]} kernel for it"


def fastest_dtype(device: torch.device, *, training: bool = False) -> tuple[torch.dtype, str]:
    """Return the fastest dtype of matmuls on `device`, and the reason in words.

    In `training` the AVX-512 kernels multiply bf16 at the speed of fp32, and read and save half as much.
    """
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, "the GPU multiplies bf16 in hardware"
        return torch.float16, "the GPU has no bf16 matmuls"
    if device.type == "cpu":
        if cpu_capability.current() == "amx":
            return torch.bfloat16, "the CPU has AMX"
        if cpu_capability.current() == "avx512" and _C.cpu_capability_features()["avx512_bf16"]:
            return torch.bfloat16, "the CPU has AVX-512 BF16"
        if training and cpu_capability.current() == "avx512" and preferred_backend("encoder_layer", device) == "native":
            return torch.bfloat16, "the AVX-512 kernels read and save half as much as in fp32"
        return torch.float32, "the CPU has no bf16 matmuls"
    return torch.float32, "the safe choice on this device"
