"""The one place where a backend is chosen: once per call, by device, `use_backend` and what the backends support.

The choice is a pure function of these, so it is the same on every run. It travels with the call: operators receive the
backend's name, and backward runs on the backend of its forward.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fastbert import _C, cpu_capability
from fastbert.errors import UserError
from fastbert.ops.operation import BACKENDS, Backend, BackendName, Operation, Reason, operations

Arguments = TypeVar("Arguments")
# The fastest first; eager torch serves every operation on every device.
PREFERENCE: dict[str, tuple[BackendName, ...]] = {"cuda": ("triton", "eager"), "cpu": ("native", "eager")}
# What of an operation the native backend serves, where that is not the same as of the others.
NATIVE_SERVES = {
    "linear": "inference and training in fp32 and bf16, where the table of products says so",
    "linear_cross_entropy": "inference and training in fp32 and bf16, where the table of products says so",
    "encoder_layer": "inference and training in fp32 and bf16, where the table of products says so",
}

_implementations: dict[tuple[str, str], Any] = {}
_forced: BackendName | None = None
_said: set[tuple[str, str]] = set()
logger = logging.getLogger("fastbert")


@dataclass(frozen=True)
class Choice:
    """The backend of one operation on one device, and the reason in words."""

    operation: str
    backend: str
    reason: str


def register(operation: str, backend: BackendName, implementation: Any) -> None:
    """Make `implementation` serve `operation` on `backend`: a function, or an object with `forward` and `backward`."""
    _implementations[operation, backend] = implementation


# Looked for, not imported: the kernels do that when they first run.
HAS_TRITON = importlib.util.find_spec("triton") is not None


def operation_names() -> tuple[str, ...]:
    """Return the names of all operations, in alphabetical order."""
    return tuple(sorted({*operations(), *(operation for operation, _ in _implementations)}))


def _has_backend(operation: str, backend: str) -> bool:
    if (operation, backend) in _implementations:  # first: a compiler cannot trace the walk over the packages
        return True
    found = operations().get(operation)
    return found is not None and backend in found.backends


def _serves(operation: str, backend: BackendName) -> bool:
    return _has_backend(operation, backend) and (backend != "triton" or HAS_TRITON)


def require_triton(device: torch.device, argument: str) -> None:
    """Refuse tensors that Triton kernels cannot reach: those on a CPU, unless Triton interprets its kernels."""
    if not HAS_TRITON:
        raise UserError("the triton backend needs triton: `pip install 'fastbert-engine[gpu]'`")
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET", "0") in ("", "0"):
        raise UserError(
            f"{argument} is on {device}: the triton backend needs tensors on a GPU;"
            f" move {argument} there, or use_backend(None) to let fastbert choose"
        )


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
    if not torch.compiler.is_compiling() and (operation, reason.text) not in _said:
        _said.add((operation, reason.text))
        logger.warning("%s falls back to PyTorch: %s", operation, reason.text)


def needs_backward(*tensors: Tensor | None) -> bool:
    """Return whether a backward pass may follow a call with these tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def choose(operation: str, device: torch.device) -> BackendName:
    """The name of the backend that serves `operation` on `device`."""
    if _forced is not None:
        if not _has_backend(operation, _forced):
            raise UserError(
                f"backend {_forced!r} cannot serve {operation!r}: it has no such kernel;"
                " use_backend(None) lets fastbert choose"
            )
        if _forced == "native" and not torch.compiler.is_compiling():
            cpu_capability.apply()
        return _forced
    if is_recorded():
        # What is recorded may run where fastbert is not installed, and there are no rules for transforms.
        return "eager"
    if device.type == "cpu" and not torch.compiler.is_compiling():
        cpu_capability.apply()
    order = PREFERENCE.get(device.type, ("eager",))
    return next(backend for backend in order if _serves(operation, backend))


def is_recorded() -> bool:
    """Return whether PyTorch records the call (`torch.jit.trace`, `torch.export`) or transforms it (`torch.func`)."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    return torch._C._is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None


def select(operation: str, device: torch.device) -> Any:
    """The implementation that serves `operation` on `device`."""
    return _implementations[operation, choose(operation, device)]


def implementation(operation: str, backend: str) -> Any:
    """What serves `operation` on a backend that was chosen before."""
    return _implementations[operation, backend]


def without_triton(operation: str, reason: str) -> BackendName:
    """What serves a call that the Triton kernel of `operation` cannot: eager torch, said once in the log.

    Raises UserError where the triton backend was forced.
    """
    if _forced == "triton":
        raise UserError(f"{reason}; use_backend('eager') serves it")
    if not torch.compiler.is_compiling() and (operation, reason) not in _said:
        _said.add((operation, reason))
        logger.warning("%s runs in eager torch: %s", operation, reason)
    return "eager"


def refuse_forward_mode(operation: str) -> None:
    """An operator of ours has no forward-mode derivative, and torch would take it for zero without a word."""
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        raise UserError(
            f"{operation} has no forward-mode derivative on this backend (torch.func.jvp): use_backend('eager') has"
        )


def forced() -> BackendName | None:
    """The backend that `use_backend` forces, or None."""
    return _forced


def served_by(backend: BackendName) -> tuple[str, ...]:
    """The operations for which `backend` has an implementation."""
    return tuple(operation for operation in operation_names() if _has_backend(operation, backend))


class _Restore(contextlib.AbstractContextManager[None]):
    """Undoes `use_backend` when it was called in a `with` statement."""

    def __init__(self, previous: BackendName | None) -> None:
        self.previous = previous

    def __exit__(self, *error: object) -> None:
        global _forced
        _forced = self.previous


def use_backend(name: BackendName | None) -> contextlib.AbstractContextManager[None]:
    """Force every operation onto one backend: `"triton"`, `"native"` or `"eager"`; `None` chooses by device again.

    As a function it holds until the next call; as a context manager (`with use_backend("eager"): ...`) until the block
    ends. An operation that the forced backend cannot serve raises `UserError` and names it.
    """
    global _forced
    if name is not None and name not in BACKENDS:
        raise UserError(f"unknown backend {name!r}: choose one of {', '.join(BACKENDS)}")
    previous, _forced = _forced, name
    return _Restore(previous)


def report(device: torch.device | None = None) -> list[Choice]:
    """One `Choice` per operation: what serves it on `device` (default: the fastest present) and why."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    choices = []
    for operation in operation_names():
        order = (_forced,) if _forced else PREFERENCE.get(device.type, ("eager",))
        backend = next((name for name in order if _serves(operation, name)), None)
        if backend is None:
            choices.append(Choice(operation, "none", f"forced backend {_forced!r} has no kernel for it"))
        elif _forced:
            choices.append(Choice(operation, backend, "forced by use_backend"))
        elif backend == "native":
            kernels = f"{cpu_capability.level()} kernels"
            serves = NATIVE_SERVES.get(operation, "inference and training in fp32 and bf16")
            choices.append(Choice(operation, backend, f"{kernels}: {serves}"))
        elif backend == order[0]:
            choices.append(Choice(operation, backend, f"the fastest on {device.type}"))
        elif order[0] == "triton" and not HAS_TRITON:
            choices.append(Choice(operation, backend, "triton is not installed"))
        elif operation == "encoder_layer":
            choices.append(Choice(operation, backend, "put together from the operations above"))
        else:
            choices.append(Choice(operation, backend, f"this version has no {order[0]} kernel for it"))
    return choices


def fastest_dtype(device: torch.device, *, training: bool = False) -> tuple[torch.dtype, str]:
    """The fastest dtype of matrix products on `device`, and the reason in words.

    In `training` our own kernels for AVX-512 multiply bf16 at the speed of fp32, and read and keep half as much.
    """
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, "the GPU multiplies bf16 in hardware"
        return torch.float16, "the GPU has no bf16 products"
    if device.type == "cpu":
        if cpu_capability.level() == "amx":
            return torch.bfloat16, "the CPU has AMX"
        if cpu_capability.level() == "avx512" and _C.cpu_level_features()["avx512_bf16"]:
            return torch.bfloat16, "the CPU has AVX-512 BF16"
        if training and cpu_capability.level() == "avx512" and choose("encoder_layer", device) == "native":
            return torch.bfloat16, "the AVX-512 kernels read and keep half as much as in fp32"
        return torch.float32, "the CPU has no bf16 products"
    return torch.float32, "the safe choice on this device"
