"""The base of the Triton backends of all operations."""

from __future__ import annotations

import functools
import os
from typing import Any, ClassVar

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops import dispatch, kernel_failures
from fastbert.ops.operation import Arguments, Backend, BackendName, Reason

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# The methods of a backend that launch kernels; those after forward may be of any width.
_FORWARD, _LATER = ("forward", "forward_rows"), ("backward", "accumulate")


class TritonBackend(Backend[Arguments]):
    """Kernels on GPUs, or on CPU tensors in Triton's interpreter; a call that falls back to PyTorch is logged."""

    name: ClassVar[BackendName] = "triton"
    logs_fallback = True

    def __init_subclass__(cls, **options: Any) -> None:
        """Record kernels that do not compile, and let `supports` name them."""
        super().__init_subclass__(**options)
        for name in (*_FORWARD, *_LATER):
            if name in cls.__dict__:
                setattr(cls, name, kernel_failures.watched(cls.__dict__[name], every_width=name in _LATER))
        if "supports" in cls.__dict__:
            setattr(cls, "supports", _with_failures(cls.__dict__["supports"]))  # noqa: B010

    @staticmethod
    def require_device(device: torch.device, argument: str) -> None:
        """Raise UserError for tensors out of reach: on a CPU, unless Triton interprets its kernels."""
        if not dispatch.HAS_TRITON:
            raise UserError("the triton backend needs triton: `pip install 'fastbert-engine[gpu]'`")
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET", "0") in ("", "0"):
            raise UserError(
                f"{argument} is on {device}: the triton backend needs tensors on a GPU;"
                f" move {argument} there, or use_backend(None) to let fastbert choose"
            )


def _with_failures(supports: Any) -> Any:
    @functools.wraps(supports)
    def supports_compiled(self: TritonBackend[Arguments], arguments: Arguments) -> Reason | None:
        reason: Reason | None = supports(self, arguments)
        return kernel_failures.reason(self, arguments) if reason is None else reason

    return supports_compiled


def unsupported_dtype(name: str, *tensors: Tensor | None) -> Reason | None:
    """Return the reason if a tensor is neither bf16, fp16 nor fp32."""
    for tensor in tensors:
        if tensor is not None and tensor.dtype not in DTYPES:
            return Reason(f"{name} has dtype {tensor.dtype}, not bfloat16, float16 or float32")
    return None
