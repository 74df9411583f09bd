"""Serialise tensors as a safetensors file piece by piece, so that a file is hashed while it is written.

The library's own writer returns no bytes to hash, and writes to a temporary file of its own. Equal tensors and metadata
give equal bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fastbert.checkpoints.formats.dtypes import DTYPES
from fastbert.errors import CheckpointError

_CODES = {dtype: code for code, dtype in DTYPES.items()}
_ALIGNMENT = 8


def stream_safetensors(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[memoryview]:
    """Yield the bytes of a safetensors file: its header, then each tensor, wide dtypes first and by name.

    Contiguous CPU tensors are not copied, and must not change until the end; others are copied one at a time. Raises
    `CheckpointError` for a dtype that the format lacks.
    """
    names = _ordered(tensors)
    yield memoryview(_header(tensors, names, metadata))
    for name in names:
        yield bytes_of(tensors[name])


def stream_size(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> int:
    """Return the size in bytes of the file that `stream_safetensors` yields."""
    data = sum(_size(tensor) for tensor in tensors.values())
    return len(_header(tensors, _ordered(tensors), metadata)) + data


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor: those of its memory if it is contiguous and on the CPU, else of a copy."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _ordered(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names in the order of the file, in which each tensor begins at a multiple of its element's size."""
    return sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))


def _header(tensors: Mapping[str, Tensor], names: list[str], metadata: Mapping[str, str] | None) -> bytes:
    """Return the size of the header and the header, padded with spaces."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _CODES:
            raise CheckpointError(f"{name} has dtype {tensor.dtype}, which safetensors files do not support")
        begin, end = end, end + _size(tensor)
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _size(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize
