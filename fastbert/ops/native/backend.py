"""What the native backends of all operations share."""

from __future__ import annotations

from fastbert.ops.operation import Arguments, Backend


class NativeBackend(Backend[Arguments]):
    """C++ kernels on CPUs, at the level of the processor's instruction sets. Falls back to PyTorch without a log."""

    name = "native"
    summary = "inference and training in fp32 and bf16"
