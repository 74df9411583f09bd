"""What the tests of CPU kernels share: the features to run them with, and memory that ends at a forbidden page."""

import ctypes
import mmap

import torch
from torch import Tensor

from fastbert import _C

# What this processor has, by name, and what AMX kernels need beside it, for `_C.pretend_cpu_features`.
HARDWARE = [name for name, has in _C.cpu_features().items() if has and name != "amx_in_hardware"]
AMX = ["avx512_bf16", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"]


class Fenced:
    """A copy of a tensor that ends at a page that nothing may touch: an access behind it ends the process."""

    def __init__(self, values: Tensor) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        size = values.numel() * values.element_size()
        room = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, room + mmap.PAGESIZE)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        assert libc.mprotect(begin + room, mmap.PAGESIZE, 0) == 0
        flat = torch.frombuffer(self.memory, dtype=torch.uint8, count=size, offset=room - size)
        self.tensor = flat.view(values.dtype).view(values.shape).copy_(values)
