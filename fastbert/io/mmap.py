"""Map files into memory, so that a page is read when it is first accessed."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

lock = threading.Lock()
ranges: dict[int, tuple[int, int]] = {}
"""First address and end of each mapped file, by the id of its array."""


def map_file(path: Path) -> Tensor:
    """Return a file's bytes, uint8 (size,), mapped privately: writing to them changes this process's memory, never the
    file. Raises OSError, and ValueError for an empty file."""
    array = np.memmap(path, dtype=np.uint8, mode="c")
    begin, key = array.ctypes.data, id(array)
    with lock:
        ranges[key] = (begin, begin + array.nbytes)
    weakref.finalize(array, ranges.pop, key, None)
    return torch.from_numpy(array)
