"""Memory that ends, or begins, at a page that nothing may touch."""

import ctypes
import mmap

import torch
from torch import Tensor


class Fenced:
    """A copy of a tensor flush against such a page, behind it or before it: an access beyond ends the process, and so
    does a write to it unless it is `writable`."""

    def __init__(self, values: Tensor, behind: bool = True, writable: bool = True) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        size = values.numel() * values.element_size()
        room = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.memory = mmap.mmap(-1, room + 2 * mmap.PAGESIZE)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for page in (begin, begin + mmap.PAGESIZE + room):
            assert libc.mprotect(page, mmap.PAGESIZE, 0) == 0
        offset = mmap.PAGESIZE + (room - size if behind else 0)
        flat = torch.frombuffer(self.memory, dtype=torch.uint8, count=size, offset=offset)
        self.tensor = flat.view(values.dtype).view(values.shape).copy_(values)
        self.address = self.tensor.data_ptr()
        if not writable:
            assert libc.mprotect(begin + mmap.PAGESIZE, room, mmap.PROT_READ) == 0


def fence(x: Tensor, behind: bool = True) -> Tensor:
    """Return the same values and strides in memory that cannot be written, from the first to the last element between
    pages that nothing may touch. A negated view stays one, and gaps between its elements stay."""
    if x.is_neg():
        return torch._neg_view(fence(torch._neg_view(x), behind))
    if not x.numel():
        return x
    span = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    flat = Fenced(x.as_strided((span,), (1,)).clone(), behind, writable=False).tensor
    return flat.as_strided(x.shape, x.stride())
