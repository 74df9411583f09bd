"""Describe tensors in files, and read or map them into memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import UntrustedFile

# Read, checked and converted at once: fits a core's cache with its converted copy.
CHUNK_BYTES = 1 << 20
MAX_DIMENSIONS, MAX_ELEMENTS = 64, 1 << 40
MAX_THREADS = 8


@dataclass(frozen=True)
class Checksum:
    """The checksum of a byte range: `update(data, value)` continues one, `finish(value)` gives the stored form."""

    offset: int
    size: int
    value: int
    update: Callable[[memoryview, int], int]
    finish: Callable[[int], int] = int


@dataclass(frozen=True)
class FileTensor:
    """A little-endian tensor in a file from byte `offset` on, with `stride` in elements (None: contiguous)."""

    file: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    checksum: Checksum | None = None

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Return the bytes from the first element to the end of the last."""
        if not self.numel:
            return 0
        if self.stride is None:
            return self.numel * self.dtype.itemsize
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize

    def transposed(self) -> FileTensor:
        """Return the transpose of a matrix, over the same bytes."""
        rows, columns = self.shape
        row, column = self.stride or (columns, 1)
        return replace(self, shape=(columns, rows), stride=(column, row))

    def read(self) -> Tensor:
        """Read the tensor: contiguous, in its own dtype. Raises `CheckpointError`."""
        tensor = torch.empty(self.shape, dtype=self.dtype)
        fill([(self, tensor)])
        return tensor

    def location(self) -> tuple[object, ...]:
        """Return what identifies the elements: tensors with equal locations have equal elements."""
        return self.file, self.offset, self.dtype, self.shape, self.stride

    def targets(self, tensor: Tensor) -> list[tuple[FileTensor, Tensor]]:
        """Return the tensors in files that fill a tensor of this shape, each with its part of it."""
        return [(self, tensor)]


@dataclass(frozen=True)
class JoinedTensor(FileTensor):
    """Tensors of files, equal in dtype and in all sizes but the first, as one: `parts` one behind the other."""

    parts: tuple[FileTensor, ...] = ()

    @classmethod
    def of(cls, parts: tuple[FileTensor, ...]) -> JoinedTensor:
        """Join tensors along their first axis."""
        first, rows = parts[0], sum(part.shape[0] for part in parts)
        shape = (rows, *first.shape[1:])
        stride = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))  # strided: it cannot be mapped
        return cls(first.file, first.offset, first.dtype, shape, stride, parts=parts)

    def location(self) -> tuple[object, ...]:
        """Return what identifies the elements: the locations of all parts."""
        return tuple(part.location() for part in self.parts)

    def targets(self, tensor: Tensor) -> list[tuple[FileTensor, Tensor]]:
        """Return the parts, each with its rows of the tensor."""
        rows = tensor.split([part.shape[0] for part in self.parts])
        return [pair for part, target in zip(self.parts, rows, strict=True) for pair in part.targets(target)]


def fill(pairs: Iterable[tuple[FileTensor, Tensor]]) -> None:
    """Read file tensors into contiguous CPU tensors of the same shapes, converting dtypes, on several threads.

    Raises `CheckpointError` for truncated files and wrong checksums.
    """
    work = [target for stored, tensor in pairs for target in stored.targets(tensor.detach())]
    with ExitStack() as stack:
        paths = {stored.file for stored, _ in work}
        files = {path: stack.enter_context(UntrustedFile(path)) for path in paths}
        jobs = [job for stored, tensor in work for job in _jobs(files[stored.file], stored, tensor)]
        threads = min(MAX_THREADS, torch.get_num_threads(), len(jobs))
        if threads > 1:
            with ThreadPoolExecutor(threads) as pool:
                for future in [pool.submit(job) for job in jobs]:
                    future.result()
        else:
            for job in jobs:
                job()


def map_tensors(named: Mapping[str, FileTensor]) -> dict[str, Tensor]:
    """Return tensors as views of their mapped files, each with its own storage.

    Pages are read when they are first used, so that a model can compute immediately. Writing to a tensor changes the
    memory of the process, never the file. Left out are tensors that are not stored as in memory (strided, misaligned,
    with a checksum), and all tensors of a file that cannot be mapped.
    """
    files: dict[Path, np.ndarray] = {}
    mapped = {}
    for name, stored in named.items():
        is_strided, misaligned = stored.stride is not None, stored.offset % stored.dtype.itemsize
        if is_strided or misaligned or stored.checksum is not None or not stored.numel:
            continue
        try:
            if stored.file not in files:
                files[stored.file] = np.memmap(stored.file, dtype=np.uint8, mode="c")
        except (OSError, ValueError):
            continue
        data = files[stored.file]
        if stored.offset + stored.extent > len(data):
            raise CheckpointError(f"{stored.file}: was truncated while it was read")
        elements = torch.from_numpy(data[stored.offset : stored.offset + stored.extent])
        mapped[name] = elements.view(stored.dtype).view(stored.shape)
    return mapped


def equal(first: FileTensor, second: FileTensor) -> bool:
    """Return whether two tensors have the same shape and elements."""
    if first.location() == second.location():
        return True
    return first.shape == second.shape and torch.equal(first.read(), second.read())


def _jobs(file: UntrustedFile, stored: FileTensor, tensor: Tensor) -> list[Callable[[], None]]:
    """Return the functions that read one tensor, in parts that may run in parallel."""
    assert tuple(tensor.shape) == stored.shape
    if not stored.numel:
        return []
    flat = tensor.detach().view(-1)
    if stored.checksum is not None and (stored.checksum.offset, stored.checksum.size) == (stored.offset, stored.extent):
        if stored.stride is None:
            return [partial(_read_checked, file, stored, flat)]
        if len(stored.shape) == 2 and stored.stride == (1, stored.shape[0]):
            return [partial(_read_checked, file, stored, tensor.detach().T)]
    if stored.stride is not None or stored.checksum is not None:
        return [partial(_read_strided, file, stored, tensor.detach())]
    step = 16 * CHUNK_BYTES // stored.dtype.itemsize
    starts = [*range(0, stored.numel, step), stored.numel]
    return [partial(_read_range, file, stored, flat, start, stop) for start, stop in pairwise(starts)]


def _read_range(file: UntrustedFile, stored: FileTensor, flat: Tensor, start: int, stop: int) -> None:
    """Read elements `start` to `stop` in place, or convert them chunk by chunk."""
    itemsize = stored.dtype.itemsize
    if flat.dtype == stored.dtype:
        file.read_into(_bytes(flat[start:stop]), stored.offset + start * itemsize)
        return
    buffer = torch.empty(min(CHUNK_BYTES // itemsize, stop - start), dtype=stored.dtype)
    for begin in range(start, stop, len(buffer)):
        chunk = buffer[: min(len(buffer), stop - begin)]
        file.read_into(_bytes(chunk), stored.offset + begin * itemsize)
        flat[begin : begin + len(chunk)].copy_(chunk)


def _read_checked(file: UntrustedFile, stored: FileTensor, target: Tensor) -> None:
    """Read a tensor with its own checksum, which is updated while each chunk is in the cache.

    `target` has its elements in the file's order: flat, or a transposed matrix.
    """
    assert stored.checksum is not None
    value, offset = 0, stored.offset
    rows = max(1, CHUNK_BYTES * len(target) // (stored.numel * stored.dtype.itemsize))
    buffer = torch.empty((min(rows, len(target)), *target.shape[1:]), dtype=stored.dtype)
    in_place = target.dtype == stored.dtype and target.is_contiguous()
    for begin in range(0, len(target), rows):
        chunk = target[begin : begin + rows]
        read = chunk if in_place else buffer[: len(chunk)]
        memory = _bytes(read.view(-1))
        file.read_into(memory, offset)
        value = stored.checksum.update(memory, value)
        offset += len(memory)
        if read is not chunk:
            chunk.copy_(read)
    _compare(file, stored.checksum, value)


def _read_strided(file: UntrustedFile, stored: FileTensor, tensor: Tensor) -> None:
    """Read a tensor with strides, or one within a larger byte range that has one checksum."""
    checksum = stored.checksum
    base, size = (stored.offset, stored.extent) if checksum is None else (checksum.offset, checksum.size)
    data = torch.empty(size, dtype=torch.uint8)
    file.read_into(_bytes(data), base)
    if checksum is not None:
        _compare(file, checksum, checksum.update(_bytes(data), 0))
    extent = data[stored.offset - base :][: stored.extent]
    if extent.data_ptr() % stored.dtype.itemsize:
        extent = extent.clone()
    elements = extent.view(stored.dtype)
    shaped = elements.view(stored.shape) if stored.stride is None else elements.as_strided(stored.shape, stored.stride)
    tensor.copy_(shaped)


def _compare(file: UntrustedFile, checksum: Checksum, value: int) -> None:
    if checksum.finish(value) != checksum.value:
        raise CheckpointError(
            f"{file.path}: damaged: the {checksum.size:,} bytes at {checksum.offset:,} have the wrong checksum; fetch"
            " the file again"
        )


def _bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    return tensor.view(torch.uint8).numpy().data
