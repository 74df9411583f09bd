"""The one place where a backend is chosen: once per call, by device, `use_backend` and what the backends support.

The choice is a pure function of these, so it is the same on every run. It travels with the call: operators receive the
backend's name, and backward runs on the backend of its forward.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fastbert import _C, cpu_capability
from fastbert.errors import UserError
from fastbert.ops import gpu
from fastbert.ops.compiling import is_exporting
from fastbert.ops.operation import (
    BACKENDS,
    Arguments,
    Backend,
    BackendName,
    Operation,
    Reason,
    operation_named,
    operations,
)

# The fastest first; eager supports every operation on every device.
PREFERENCE: dict[str, tuple[BackendName, ...]] = {"cuda": ("triton", "eager"), "cpu": ("native", "eager")}
# Searched for, not imported: the kernels are imported when they first run.
HAS_TRITON = importlib.util.find_spec("triton") is not None

_forced: BackendName | None = None
_logged: set[tuple[str, str]] = set()
# By index, the GPUs seen so far and why they have no Triton kernels; empty if they have.
_without_triton: dict[int | None, str] = {}
logger: logging.Logger = logging.getLogger("fastbert")


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
    for name in _candidates(operation, device):
        if not _is_present(operation, name):
            continue
        backend = operation.backends[name]
        reason = backend.supports(arguments)
        if reason is None:
            return backend
        if _forced is not None and not backend.composes_others:
            raise UserError(
                f"backend {name!r} does not support {operation.name!r} here: {reason.text}; use_backend('eager') does"
            )
        if backend.logs_fallback and not reason.logged:
            _log_fallback(operation.name, reason)
    raise AssertionError(f"no backend supports {operation.name!r}: eager must")


def _candidates(operation: Operation[Any], device: torch.device) -> tuple[str, ...]:
    """Return the names of the backends that may compute a call on `device`, the best first.

    Raises UserError where `use_backend` names a backend without a kernel for the operation.
    """
    if _forced is not None and _forced not in operation.backends:
        raise UserError(
            f"backend {_forced!r} has no kernel for {operation.name!r}; use_backend(None) lets fastbert choose"
        )
    if _forced is None and is_recorded():
        # Recorded calls may run where fastbert is not installed, and operators have no rules for transforms.
        return ("eager",)
    if device.type == "cpu" and not torch.compiler.is_compiling():
        cpu_capability.apply()
    return _preference(device) if _forced is None else (_forced, "eager")


def _preference(device: torch.device) -> tuple[str, ...]:
    """Return the backends of a device, the fastest first."""
    names = PREFERENCE.get(device.type, ("eager",))
    if device.type != "cuda" or not HAS_TRITON:
        return names
    if device.index not in _without_triton and not torch.compiler.is_compiling():
        _without_triton[device.index] = gpu.lacks_triton(device)
        if _without_triton[device.index]:
            logger.warning("PyTorch computes all operations on %s: %s", device, _without_triton[device.index])
    if _without_triton.get(device.index):
        return tuple(name for name in names if name != "triton")
    return names


def _is_present(operation: Operation[Any], name: str) -> bool:
    """Return whether an operation has a backend, and its library is installed unless `use_backend` names it."""
    return name in operation.backends and (name != "triton" or HAS_TRITON or name == _forced)


def choose(operation: Operation[Any], arguments: Any, x: Tensor, *others: Tensor | None) -> tuple[Any, bool, bool]:
    """Check a call; return its backend, whether `forward` runs without an operator, and whether backward may follow.

    `x` and `others` are the tensors that may have gradients. Raises UserError for arguments that no backend supports,
    or not the one that `use_backend` names.
    """
    arguments.check()
    backend = select_backend(operation, x.device, arguments)
    if backend.composite and not (backend.opaque and torch.compiler.is_compiling()):
        return backend, True, False
    trains = needs_backward(x, *others)
    direct = backend.name == "native" and not trains
    if not direct:
        refuse_forward_mode(operation.name)
    return backend, direct, trains


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
    return next(name for name in _candidates(record, device) if _is_present(record, name))


def is_recorded() -> bool:
    """Return whether PyTorch records the call (`torch.jit.trace`, `torch.export`) or transforms it (`torch.func`)."""
    if torch.compiler.is_compiling():
        return is_exporting()
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

    def __init__(self, name: BackendName | None, previous: BackendName | None) -> None:
        self.name, self.previous = name, previous

    def __enter__(self) -> None:
        global _forced
        _forced = self.name

    def __exit__(self, *error: object) -> None:
        global _forced
        _forced = self.previous


def use_backend(name: BackendName | None) -> contextlib.AbstractContextManager[None]:
    """Force every operation onto one backend: `"triton"`, `"native"` or `"eager"`; `None` chooses by device again.

    As a function it holds until the next call; as a context manager (`with use_backend("eager"): ...`) until the block
    ends. It holds for all threads of the process, so threads must not force different backends at the same time. A call
    that the forced backend does not support raises `UserError` with the reason.

    Example:
        >>> import fastbert
        >>> model = fastbert.BertModel.from_pretrained("runs/mine/model")
        >>> batch = fastbert.load_tokenizer("runs/mine/model").pack(["a short one."])
        >>> with fastbert.use_backend("eager"):
        ...     output = model(batch)
        >>> output.last_hidden_state.shape
        torch.Size([6, 16])
    """
    global _forced
    if name is not None and name not in BACKENDS:
        raise UserError(f"unknown backend {name!r}: choose one of {', '.join(BACKENDS)}")
    previous, _forced = _forced, name
    return _Restore(name, previous)


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
    name = next(name for name in _preference(device) if _is_present(operation, name))
    summary = operation.backends[name].summary
    if name == "native":
        return name, f"{cpu_capability.current()} kernels: {summary}"
    if name == names[0]:
        return name, f"the fastest on {device.type}"
    if names[0] == "triton" and not HAS_TRITON:
        return name, "triton is not installed"
    if names[0] == "triton" and _without_triton.get(device.index):
        return name, _without_triton[device.index]
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
