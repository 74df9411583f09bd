"""Memory for tensors that come and go with every step of training, used again by the next step.

The first touch of fresh memory costs several times what later ones do, and torch gives large tensors fresh memory each
time. Tensors made here keep theirs until the last tensor on the same storage dies; then the next one gets it, warm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fastbert import _C

# Smaller ones are as fast by torch, which takes them from the C library's warm lists.
SMALL_BYTES = 64 << 10
# As much as an address reaches: more is an error, which torch words.
_MOST_BYTES = 1 << 47
# DLPack's names: code, bits, and bytes of an element.
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
    """A contiguous tensor on the CPU that nobody wrote; NaN where torch fills such memory, in deterministic runs.

    Raises MemoryError or RuntimeError with the size where the system has no memory for it.
    """
    code, bits, size = _TYPES.get(dtype, (0, 0, 0))
    count = math.prod(shape)
    if not SMALL_BYTES <= count * size < _MOST_BYTES or torch._C._len_torch_dispatch_stack():
        return torch.empty(shape, dtype=dtype, device="cpu")
    tensor = from_dlpack(_C.pool_tensor(shape, count * size, code, bits))
    poisoned = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if poisoned and torch.are_deterministic_algorithms_enabled():
        tensor.fill_(math.nan if dtype.is_floating_point else torch.iinfo(dtype).max)
    return tensor


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """As `empty`, of zeros."""
    return empty(shape, dtype).zero_()


def statistics() -> dict[str, int]:
    """Bytes `in_use` by tensors, `free` but kept warm for the next ones, and the `peak` of those in use; `blocks`."""
    return _C.pool_statistics()


def reset_peak() -> None:
    """Count the `peak` from now on."""
    _C.pool_reset_peak()


def release() -> None:
    """Give all that no tensor uses back to the system.

    What 2,048 tensors in a row did not need goes by itself, so that one huge batch does not hold its memory for ever.
    """
    _C.pool_release()
