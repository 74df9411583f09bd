"""The contract of an operation: its record of arguments, and the backends that compute it.

A package `fastbert/ops/<name>/` holds `arguments.py` (the validated record that every backend receives), `op.py` (the
public function, the operators with their fakes, the one autograd formula), `eager.py`, `native.py` and `triton.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

BackendName = Literal["triton", "native", "eager"]
BACKENDS: tuple[BackendName, ...] = ("triton", "native", "eager")
Arguments = TypeVar("Arguments")


class Reason(NamedTuple):
    """Why a backend does not support a call: a clause that completes "does not support 'gelu' here: ..."."""

    text: str
    logged: bool = False
    """True if a log says so already."""


class Backend(Generic[Arguments]):
    """One backend of one operation. It holds no state; the operation's record is all that it reads.

    A backend that is not `composite` also has `backward`, whose signature is the operation's own.
    """

    name: ClassVar[BackendName]
    composite: ClassVar[bool] = False
    """True if `forward` consists of PyTorch operations, which have gradients, fakes and transforms of their own."""
    composes_others: ClassVar[bool] = False
    """True if a call that it does not support is composed by `eager` even where `use_backend` names this backend."""
    logs_fallback: ClassVar[bool] = False
    """True if an unsupported call is logged, once per reason."""
    opaque: ClassVar[bool] = False
    """True if a composite backend is called as an operator while a compiler traces, because it reads values."""
    summary: ClassVar[str] = ""
    """The note of `fastbert doctor` on a backend that supports only some calls."""

    def supports(self, arguments: Arguments) -> Reason | None:
        """Return why this backend cannot compute a call, None if it can.

        Reads dtypes, devices, ranks, static sizes and strides only, so that a compiler can trace it.
        """
        return None

    def forward(self, arguments: Arguments, *options: Any) -> Any:
        """Compute the operation; `options` and the result are the operation's own."""
        raise NotImplementedError


class EagerBackend(Backend[Arguments]):
    """PyTorch operations: every device, dtype, transform and derivative."""

    name: ClassVar[BackendName] = "eager"
    composite = True


class NativeBackend(Backend[Arguments]):
    """C++ kernels on CPUs, at the level of the processor's instruction sets. Falls back to PyTorch without a log."""

    name: ClassVar[BackendName] = "native"
    summary = "inference and training in fp32 and bf16"


class Operation(Generic[Arguments]):
    """An operation by name with its backends. Constructing one registers it."""

    def __init__(self, name: str, *backends: Backend[Arguments]) -> None:
        self.name = name
        self.backends: Mapping[str, Backend[Arguments]] = {backend.name: backend for backend in backends}
        _operations[name] = self

    @property
    def function(self) -> Callable[..., Any]:
        """The public function, which the `op` module beside the backends defines."""
        package = type(next(iter(self.backends.values()))).__module__.rpartition(".")[0]
        return getattr(importlib.import_module(f"{package}.op"), self.name)

    def backend(self, name: str) -> Any:
        """Return the backend that was chosen for a call: backward receives the name that forward ran with."""
        return self.backends[name]


_operations: dict[str, Operation[Any]] = {}


def operation_named(name: str) -> Operation[Any]:
    """Return the operation of a name. Raises KeyError for an unknown one."""
    return _operations[name] if name in _operations else operations()[name]


def operations() -> dict[str, Operation[Any]]:
    """Return every operation by name, in alphabetical order, from all packages of `fastbert.ops`."""
    for module in pkgutil.iter_modules(sys.modules[__package__].__path__):
        if module.ispkg and module.name != "native":
            importlib.import_module(f"{__package__}.{module.name}.op")
    return dict(sorted(_operations.items()))
