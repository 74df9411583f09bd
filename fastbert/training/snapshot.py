"""The tensors of a checkpoint by name, and copies of them in memory while steps go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastbert.models.base import PreTrainedModel

_ALIGNMENT = 64
_BLOCK, _SMALL = 16 << 20, 1 << 20
_MAX_THREADS = 4


@dataclass(frozen=True)
class Snapshot:
    """The tensors of a model by name, without tied copies, and those of its optimiser by `<field>/<parameter name>`.

    A checkpoint holds whole tensors, so that its format does not depend on the number of processes: sharded ones are
    gathered first.
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Return the size of all tensors in bytes."""
        return sum(tensor.nbytes for tensors in (self.model, self.optimizer) for tensor in tensors.values())


def snapshot(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, gather: Callable[[Tensor], Tensor] | None = None
) -> Snapshot:
    """Return the tensors of a model and its optimiser, which are not copied and follow later steps.

    `gather` returns the whole of a sharded tensor. It is called for each tensor, in the same order in all processes.
    """

    def whole(value: object) -> Tensor:
        tensor = torch.as_tensor(value).detach()
        return tensor if gather is None else gather(tensor)

    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return Snapshot(
        {name: whole(tensor) for name, tensor in model.state_dict().items() if name not in model.tied_keys},
        {
            f"{field}/{names[id(parameter)]}": whole(value)
            for parameter, fields in optimizer.state.items()
            for field, value in fields.items()
        },
    )


class SnapshotBuffers:
    """Memory for the copy of a snapshot, which is allocated once and reused by the following ones."""

    def __init__(self) -> None:
        self._arena: Tensor | None = None
        self._for_gpu = False
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None

    @property
    def nbytes(self) -> int:
        """Return the size of the memory in bytes, 0 before the first copy."""
        return 0 if self._arena is None else self._arena.nbytes

    def copy(self, source: Snapshot) -> Snapshot:
        """Return a copy of a snapshot on the CPU, which replaces the previous copy.

        Tensors on a CPU are copied by threads before this returns. Those on a GPU are copied to page-locked memory on a
        stream of their own, which later work on the current stream waits for: `wait` until they have arrived. Raises
        MemoryError.
        """
        groups = (source.model, source.optimizer)
        total = sum(_aligned(tensor.nbytes) for tensors in groups for tensor in tensors.values())
        from_gpu = any(tensor.is_cuda for tensors in groups for tensor in tensors.values())
        if self._arena is None or self._arena.nbytes < total or from_gpu > self._for_gpu:
            self._arena = None  # frees the old one first
            self._arena, self._for_gpu = _allocate(total, pinned=from_gpu), from_gpu
        offset, copies, pairs = 0, [], []
        for tensors in groups:
            views = {}
            for name, tensor in tensors.items():
                view = self._arena[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                views[name] = view
                pairs.append((view, tensor))
                offset += _aligned(tensor.nbytes)
            copies.append(views)
        self._copy_from_gpu([(view, tensor) for view, tensor in pairs if tensor.is_cuda])
        _copy_on_cpu([(view, tensor) for view, tensor in pairs if not tensor.is_cuda])
        return Snapshot(*copies)

    def wait(self) -> None:
        """Wait until the copy is complete."""
        if self._copied is not None:
            self._copied.synchronize()

    @torch.no_grad()
    def _copy_from_gpu(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        self._copied = None
        if not pairs:
            return
        device = pairs[0][1].device
        if self._stream is None or self._stream.device != device:
            self._stream = torch.cuda.Stream(device)
        current = torch.cuda.current_stream(device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for view, tensor in pairs:
                view.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(self._stream)
        current.wait_stream(self._stream)  # the next steps change the tensors


def available_memory() -> int | None:
    """Return the bytes of memory that can be allocated without swapping; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _allocate(size: int, *, pinned: bool) -> Tensor:
    if pinned:
        try:
            return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError:  # the system limits page-locked memory: copies to other memory wait for the device
            pass
    try:
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    except RuntimeError:
        raise MemoryError(f"{size:,} bytes") from None


def _copy_on_cpu(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy tensors by threads of Python's: a team of OpenMP is slow on a busy machine, where its members wait for each
    other."""
    blocks = []
    for view, tensor in pairs:
        if not tensor.numel():
            continue
        target, source = (
            flat.view(-1).view(torch.uint8).numpy() for flat in (view, tensor.detach().cpu().contiguous())
        )
        if len(target) < _SMALL:
            np.copyto(target, source)
        else:
            blocks += [(target[at : at + _BLOCK], source[at : at + _BLOCK]) for at in range(0, len(target), _BLOCK)]
    threads = min(torch.get_num_threads(), _MAX_THREADS, len(blocks))
    if threads <= 1:
        for target, source in blocks:
            np.copyto(target, source)
        return
    with ThreadPoolExecutor(threads, "fastbert snapshot") as pool:
        for _ in pool.map(lambda block: np.copyto(*block), blocks):
            pass


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
