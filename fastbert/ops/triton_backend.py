"""The base of the Triton backends of all operations."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.operation import Arguments, Backend, Reason

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class TritonBackend(Backend[Arguments]):
    """Kernels on GPUs, or on CPU tensors in Triton's interpreter; a call that falls back to PyTorch is logged."""

    name = "triton"
    logs_fallback = True

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


def unsupported_dtype(name: str, *tensors: Tensor | None) -> Reason | None:
    """Return the reason if a tensor is neither bf16, fp16 nor fp32."""
    for tensor in tensors:
        if tensor is not None and tensor.dtype not in DTYPES:
            return Reason(f"{name} has dtype {tensor.dtype}, not bfloat16, float16 or float32")
    return None
