"""Files mapped into memory, whose pages are read when they are first used.

A model can then compute immediately. Writing to a mapped tensor changes the memory of the process, never the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def map_file(path: Path) -> Tensor:
    """Return a file's bytes, uint8 (size,), mapped privately: writes stay in this process. Raises OSError."""
    return torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="c"))
