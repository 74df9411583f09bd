"""Weights that lie in files: mapped into memory, so that a page of them is read when it is first looked at.

A model then begins to compute at once, and pages that nobody has written need not stay once the products have copies of
their own: the file still has them. Writing to a mapped weight changes the process's memory, never the file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable

import numpy as np
from torch import Tensor

from fastbert.io.mmap import lock, ranges

# Linux's madvise and pagemap.
_DONTNEED, _PRESENT, _SWAPPED, _OF_FILE = 4, 63, 62, 61


def give_back(weights: Iterable[Tensor]) -> None:
    """Let the system take the pages of weights that lie in mapped files, where nobody has written to them; they are
    read from the file again when somebody looks."""
    if not ranges or sys.platform != "linux":
        return
    for weight in weights:
        begin, end = weight.data_ptr(), weight.data_ptr() + weight.nbytes
        with lock:
            inside = any(first <= begin and end <= last for first, last in ranges.values())
        page = mmap.PAGESIZE
        begin, end = -(-begin // page) * page, end // page * page
        if inside and begin < end and not _is_written(begin, end):
            _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _DONTNEED)


def _is_written(begin: int, end: int) -> bool:
    """Whether pages of a private mapping hold anything but the file's own; taken for so where the system won't say."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            read = os.pread(file.fileno(), (end - begin) // mmap.PAGESIZE * 8, begin // mmap.PAGESIZE * 8)
    except OSError:
        return True
    entries = np.frombuffer(read, dtype=np.uint64)
    if len(entries) < (end - begin) // mmap.PAGESIZE:
        return True
    present, swapped, of_file = ((entries >> np.uint64(bit)) & np.uint64(1) for bit in (_PRESENT, _SWAPPED, _OF_FILE))
    return bool((swapped | (present & (of_file ^ np.uint64(1)))).any())


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
