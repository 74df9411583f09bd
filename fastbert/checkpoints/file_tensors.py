"""Tensors that lie in files: where each lies, and the way from there into memory, piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from fastbert.errors import CheckpointError
from fastbert.io.mmap import map_file
from fastbert.io.untrusted_input import PlainFile

# Read, checked and converted at once: fits a core's cache with its converted copy.
PIECE = 1 << 20
MOST_DIMENSIONS, MOST_ELEMENTS = 64, 1 << 40
MOST_THREADS = 8


@dataclass(frozen=True)
class Checked:
    """A stretch of a file whose checksum is known: `update(data, value)` continues one, `finish` is what is stored."""

    offset: int
    size: int
    value: int
    update: Callable[[memoryview, int], int]
    finish: Callable[[int], int] = int


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: `shape`, and `stride` in elements (None: contiguous) from byte `offset` on, little-endian."""

    file: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    checked: Checked | None = None

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Bytes of the file from `offset` on that it reaches over."""
        if not self.count:
            return 0
        if self.stride is None:
            return self.count * self.dtype.itemsize
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize

    def transposed(self) -> Stored:
        """The same matrix with rows and columns exchanged."""
        rows, columns = self.shape
        row, column = self.stride or (columns, 1)
        return replace(self, shape=(columns, rows), stride=(column, row))

    def reshaped(self, shape: tuple[int, ...]) -> Stored:
        """The same numbers in another shape of as many elements."""
        assert self.stride is None
        assert math.prod(shape) == self.count
        return replace(self, shape=shape)

    def read(self) -> Tensor:
        """The tensor, contiguous, in its own dtype."""
        tensor = torch.empty(self.shape, dtype=self.dtype)
        fill([(self, tensor)])
        return tensor

    def place(self) -> tuple[object, ...]:
        """Two that are equal here are the same numbers."""
        return self.file, self.offset, self.dtype, self.shape, self.stride


def fill(pairs: Iterable[tuple[Stored, Tensor]]) -> None:
    """Read tensors into contiguous ones of their shapes on the CPU, converted to their dtypes, on several threads.

    Raises `CheckpointError` for files that end before, and for wrong checksums.
    """
    work = list(pairs)
    files: dict[Path, PlainFile] = {}
    try:
        for stored, _ in work:
            if stored.file not in files:
                files[stored.file] = PlainFile(stored.file)
        jobs = [job for stored, tensor in work for job in _jobs(files[stored.file], stored, tensor)]
        threads = min(MOST_THREADS, torch.get_num_threads(), len(jobs))
        if threads > 1:
            with ThreadPoolExecutor(threads) as pool:
                for done in [pool.submit(job) for job in jobs]:
                    done.result()
        else:
            for job in jobs:
                job()
    finally:
        for file in files.values():
            file.close()


def map_tensors(named: Mapping[str, Stored]) -> dict[str, Tensor]:
    """Of tensors that lie in their files as they would in memory, views of the mapped files, each with a storage of its
    own; others are left out, and all where the system does not map."""
    files: dict[Path, Tensor] = {}
    found = {}
    for name, stored in named.items():
        if stored.stride is not None or stored.checked is not None or not stored.count:
            continue
        if stored.offset % stored.dtype.itemsize:
            continue
        try:
            if stored.file not in files:
                files[stored.file] = map_file(stored.file)
        except (OSError, ValueError):
            continue
        data = files[stored.file].numpy()
        if stored.offset + stored.extent > len(data):
            raise CheckpointError(f"{stored.file}: was cut short while it was read")
        own = torch.from_numpy(data[stored.offset : stored.offset + stored.extent])
        found[name] = own.view(stored.dtype).view(stored.shape)
    return found


def equal(first: Stored, second: Stored) -> bool:
    """Whether two tensors hold the same numbers."""
    if first.place() == second.place():
        return True
    return first.shape == second.shape and torch.equal(first.read(), second.read())


def _jobs(file: PlainFile, stored: Stored, tensor: Tensor) -> list[Callable[[], None]]:
    """What has to be done to read one tensor, in parts that may run side by side."""
    assert tuple(tensor.shape) == stored.shape
    if not stored.count:
        return []
    flat = tensor.detach().view(-1)
    if stored.checked is not None and (stored.checked.offset, stored.checked.size) == (stored.offset, stored.extent):
        if stored.stride is None:
            return [partial(_read_checked, file, stored, flat)]
        if len(stored.shape) == 2 and stored.stride == (1, stored.shape[0]):
            return [partial(_read_checked, file, stored, tensor.detach().T)]
    if stored.stride is not None or stored.checked is not None:
        return [partial(_read_apart, file, stored, tensor.detach())]
    step = 16 * PIECE // stored.dtype.itemsize
    starts = [*range(0, stored.count, step), stored.count]
    return [partial(_read_part, file, stored, flat, start, stop) for start, stop in pairwise(starts)]


def _read_part(file: PlainFile, stored: Stored, flat: Tensor, start: int, stop: int) -> None:
    """Elements `start` to `stop`: straight into their place, or converted piecewise."""
    item = stored.dtype.itemsize
    if flat.dtype == stored.dtype:
        file.read_into(_bytes(flat[start:stop]), stored.offset + start * item)
        return
    piece = torch.empty(min(PIECE // item, stop - start), dtype=stored.dtype)
    for begin in range(start, stop, len(piece)):
        part = piece[: min(len(piece), stop - begin)]
        file.read_into(_bytes(part), stored.offset + begin * item)
        flat[begin : begin + len(part)].copy_(part)


def _read_checked(file: PlainFile, stored: Stored, target: Tensor) -> None:
    """A tensor that has a checksum of its own, taken of each piece while it is in the cache. `target` has its elements
    in the file's order: flat, or a transposed matrix."""
    assert stored.checked is not None
    value, at = 0, stored.offset
    rows = max(1, PIECE * len(target) // (stored.count * stored.dtype.itemsize))
    piece = torch.empty((min(rows, len(target)), *target.shape[1:]), dtype=stored.dtype)
    straight = target.dtype == stored.dtype and target.is_contiguous()
    for begin in range(0, len(target), rows):
        part = target[begin : begin + rows]
        read = part if straight else piece[: len(part)]
        memory = _bytes(read.view(-1))
        file.read_into(memory, at)
        value = stored.checked.update(memory, value)
        at += len(memory)
        if read is not part:
            part.copy_(read)
    _compare(file, stored.checked, value)


def _read_apart(file: PlainFile, stored: Stored, tensor: Tensor) -> None:
    """A tensor that lies in its file with strides, or in a larger stretch that has one checksum."""
    if stored.checked is not None:
        base, size = stored.checked.offset, stored.checked.size
    else:
        base, size = stored.offset, stored.extent
    data = torch.empty(size, dtype=torch.uint8)
    file.read_into(_bytes(data), base)
    if stored.checked is not None:
        _compare(file, stored.checked, stored.checked.update(_bytes(data), 0))
    own = data[stored.offset - base :][: stored.extent]
    if own.data_ptr() % stored.dtype.itemsize:
        own = own.clone()
    elements = own.view(stored.dtype)
    shaped = elements.view(stored.shape) if stored.stride is None else elements.as_strided(stored.shape, stored.stride)
    tensor.copy_(shaped)


def _compare(file: PlainFile, checked: Checked, value: int) -> None:
    if checked.finish(value) != checked.value:
        raise CheckpointError(
            f"{file.path}: damaged: the {checked.size:,} bytes at {checked.offset:,} have another checksum than they"
            " should; fetch the file again"
        )


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.view(torch.uint8).numpy().data
