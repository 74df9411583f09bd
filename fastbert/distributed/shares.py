"""Divide work that comes in numbered pieces over the processes of a run, and collect its results in order."""

from __future__ import annotations

import contextlib
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fastbert.distributed.world import World

Result = TypeVar("Result")
_DTYPES = (torch.float32, torch.int64, torch.int32)
_HEADER = 16  # int64: the number of tensors, and for each its dtype, its number of dimensions, and these
_UNDER_WAY = 2  # results that a process has sent, and the first one has not received
_END = -1
LEAST_TEXTS = 64  # of a piece


@dataclass(frozen=True)
class Share:
    """The pieces of one of `size` processes: `rank`, `rank + size`, and so on."""

    rank: int = 0
    size: int = 1

    def has(self, number: int) -> bool:
        """Return True for the number of a piece that belongs to the share."""
        return number % self.size == self.rank

    def chunk_texts(self, most: int) -> int:
        """Return the texts per piece, of which one process has `most`: fewer for several, so that each gets some."""
        return max(most // self.size, min(most, LEAST_TEXTS))


def in_order(
    world: World,
    results: Iterator[Result],
    dump: Callable[[Result], Sequence[Tensor]],
    load: Callable[[list[Tensor]], Result],
) -> Iterator[Result]:
    """Yield, in the first process, the results of all pieces in their order; send them there from the others, where
    nothing is yielded.

    Args:
        results: those of the process's `Share`, one per piece.
        dump: return the tensors that hold a result: fp32, int64 or int32, on any device.
        load: return the result from these tensors on the CPU.

    Raises RuntimeError for a process that has ended (see `World.watched`).
    """
    if world.size == 1:
        yield from results
    elif not world.is_main:
        _send_all(world, results, dump)
    else:
        is_open = dict.fromkeys(range(1, world.size), True)
        mine = next(results, None)
        while mine is not None or any(is_open.values()):
            if mine is not None:
                yield mine
            for rank in is_open:
                if is_open[rank] and (tensors := _received(world, rank)) is not None:
                    yield load(tensors)
                else:
                    is_open[rank] = False
            mine = next(results, None)


@contextlib.contextmanager
def ended_by_torchrun(world: World) -> Iterator[None]:
    """Leave the block on SIGTERM, with which torchrun ends the other processes when one fails: temporary files are
    removed, and `World.watched` gives the reason. Raises torch's DistError."""
    if world.size == 1:
        yield
        return
    is_ended = False

    def end(*_: object) -> None:
        nonlocal is_ended
        is_ended = True
        raise KeyboardInterrupt  # which nothing on its way takes for an error of its own

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        if is_ended:
            raise dist.DistError("SIGTERM") from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _send_all(world: World, results: Iterator[Result], dump: Callable[[Result], Sequence[Tensor]]) -> None:
    sent: deque[list[tuple[Any, Tensor]]] = deque()

    def send(header: list[int], tensors: Sequence[Tensor]) -> None:
        first = torch.tensor(header + [0] * (_HEADER - len(header)))
        # Held until they are received.
        parts = [first, *(tensor for tensor in tensors if tensor.numel())]
        sent.append([(dist.isend(part, 0, group=world.host_group), part) for part in parts])
        while len(sent) > _UNDER_WAY:
            wait()

    def wait() -> None:
        for work, _ in sent.popleft():
            work.wait()

    for result in results:
        tensors = [tensor.detach().cpu().contiguous() for tensor in dump(result)]
        described = [
            number for tensor in tensors for number in (_DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape)
        ]
        send([len(tensors), *described], tensors)
    send([_END], [])
    while sent:
        wait()


def _received(world: World, rank: int) -> list[Tensor] | None:
    """Return the tensors of a process's next result; None after the last one."""
    header = torch.empty(_HEADER, dtype=torch.int64)
    dist.recv(header, rank, group=world.host_group)
    numbers = iter(header.tolist())
    count = next(numbers)
    if count == _END:
        return None
    tensors = []
    for _ in range(count):
        dtype, dimensions = _DTYPES[next(numbers)], next(numbers)
        tensors.append(torch.empty([next(numbers) for _ in range(dimensions)], dtype=dtype))
    for tensor in tensors:
        if tensor.numel():
            dist.recv(tensor, rank, group=world.host_group)
    return tensors
