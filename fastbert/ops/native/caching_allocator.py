"""A caching allocator for tensors on the CPU that live for a part of a training step.

The first write to fresh memory takes several times as long as later ones, and torch allocates fresh memory for large
tensors every time. Memory allocated here is cached when its last tensor is freed, and reused by the next one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fastbert import _C

# Smaller tensors are as fast by torch, from the free lists of the C library.
SMALL_BYTES = 64 << 10
# The address space: for more, torch raises the error.
_MAX_BYTES = 1 << 47
# DLPack's code and bits, and the bytes of an element.
_TYPES = {
    torch.float32: (2, 32, 4),
    torch.bfloat16: (4, 16, 2),
    torch.float16: (2, 16, 2),
    torch.float64: (2, 64, 8),
    torch.int8: (0, 8, 1),
    torch.int32: (0, 32, 4),
    torch.int64: (0, 64, 8),
    torch.uint8: (1, 8, 1),
}


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised contiguous tensor on the CPU, filled with NaN where torch fills such tensors.

    Raises MemoryError or RuntimeError with the size if the system is out of memory.
    """
    code, bits, size = _TYPES.get(dtype, (0, 0, 0))
    count = math.prod(shape)
    if not SMALL_BYTES <= count * size < _MAX_BYTES or torch._C._len_torch_dispatch_stack():
        return torch.empty(shape, dtype=dtype, device="cpu")
    tensor = from_dlpack(_C.allocate_tensor(shape, count * size, code, bits))
    poisoned = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if poisoned and torch.are_deterministic_algorithms_enabled():
        tensor.fill_(math.nan if dtype.is_floating_point else torch.iinfo(dtype).max)
    return tensor


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a contiguous tensor of zeros on the CPU."""
    return empty(shape, dtype).zero_()


def statistics() -> dict[str, int]:
    """Return the bytes `in_use`, `free` in the cache, and at the `peak` of use, and the number of `blocks`."""
    return _C.allocator_statistics()


def reset_peak() -> None:
    """Reset the `peak` to the bytes in use."""
    _C.reset_allocator_peak()


def release() -> None:
    """Free the cache.

    Blocks that 2,048 successive allocations did not use are freed anyway, so that one huge batch does not hold its
    memory forever.
    """
    _C.release_free_pages()
