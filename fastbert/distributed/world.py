"""The processes of a run that torchrun started: their ranks, their agreements, and the failure of one of them.

A command that is started once per process joins them with `joined`. Processes agree on small things (the flags of the
run, the results of a stage that only the first one runs) through torch's key-value store, in JSON, and sum numbers of
the host over a gloo group. Tensors of training go through torch's DDP and FSDP2 (`fastbert.training.parallel`).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from fastbert.distributed.environment import is_launched
from fastbert.errors import UserError

Value = TypeVar("Value")
_FAILURE, _FIRST, _HANDLED = "fastbert/failure", "fastbert/failure-of-first", "fastbert/failure-handled"
_HERE, _START = "fastbert/here", "fastbert/start"
SAME_ERROR_SECONDS = 3.0  # to wait for the same error in the first process
_POLL_SECONDS, _LONGEST_POLL = 0.01, 0.5
REASON_SECONDS = 5.0  # to wait for the reason of a process that has closed its connections
HANDLED_SECONDS = 20.0  # to wait until the first process has handled its error
# How gloo and NCCL describe a peer that is gone.
_SIGNS = (
    *("connection closed", "connection reset", "broken pipe", "connection refused", "timed out", "remote process"),
    *("socket", "failed to recv", "failed to send"),
)


class PeerFailure(UserError):
    """Another process of the run has ended. Only the first process reports it."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.silent: bool = rank != 0


@dataclass(frozen=True)
class World:
    """The processes of a run and this one's place among them; without torchrun there is one."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The rank among the processes of this machine."""
    store: Any = None
    host_group: Any = None
    """The gloo group for numbers of the host."""
    ahead_group: Any = None
    """A second one, for the thread that prepares batches."""

    _counts: Counter[str] = field(default_factory=Counter, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        """Return True for the process that writes the run's folder."""
        return self.rank == 0

    def shared(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return what `make` returns in the first process, which alone calls it, as JSON stores it; others wait.

        `name` is unique within the run. Raises `PeerFailure` in the others where it raises.
        """
        if self.size == 1:
            return dict(make())
        key = f"fastbert/{name}"
        if self.is_main:
            text = json.dumps(dict(make()))
            self.store.set(key, text)
        else:
            text = self._wait_for(key)
        values: dict[str, Any] = json.loads(text)
        return values

    def unique(self, name: str) -> str:
        """Return the name of an agreement that may be made more than once, by all processes in the same order."""
        self._counts[name] += 1
        return f"{name}-{self._counts[name]}"

    def gathered(self, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the values of every process, in the order of ranks; `name` is unique within the run."""
        if self.size == 1:
            return [dict(values)]
        self.store.set(f"fastbert/{name}/{self.rank}", json.dumps(dict(values)))
        return [json.loads(self._wait_for(f"fastbert/{name}/{rank}")) for rank in range(self.size)]

    def wait(self, name: str) -> None:
        """Wait until every process has called this with the name, which is unique within the run."""
        self.gathered(name, {})

    def part(self, name: str) -> None:
        """Wait as `wait` does, in processes that end at once: the store may live in the first one, so that none of them
        may end while another one still reads from it."""
        self.wait(name)
        if self.size > 1:
            dist.barrier(group=self.host_group)

    def require_equal(self, name: str, values: Mapping[str, Any], cure: str) -> None:
        """Raise `UserError`, in every process, for the first of `values` that differs between two of them."""
        everyone = self.gathered(name, values)
        for key in everyone[0].keys() | {key for other in everyone for key in other}:
            for rank, other in enumerate(everyone):
                if other.get(key) != everyone[0].get(key):
                    raise UserError(
                        f"process {rank} of {self.size} has {key}={json.dumps(other.get(key))}, but process 0 has"
                        f" {key}={json.dumps(everyone[0].get(key))}; {cure}"
                    )

    def sum(self, numbers: Tensor) -> Tensor:
        """Sum a tensor of the host over all processes, in place; every process has the same bits afterwards."""
        if self.size > 1:
            dist.all_reduce(numbers, group=self.host_group)
        return numbers

    def sum_ahead(self, numbers: Tensor) -> Tensor:
        """Do as `sum`, in the thread that prepares batches."""
        if self.size > 1:
            dist.all_reduce(numbers, group=self.ahead_group)
        return numbers

    def _wait_for(self, key: str) -> str:
        """Return the value of a key of the store once it is set. Raises `PeerFailure` if a process ends before."""
        pause = _POLL_SECONDS
        while not self.store.check([key]):
            if self.store.check([_FAILURE]):
                raise self._failure()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL)
        text: str = self.store.get(key).decode()
        return text

    @contextlib.contextmanager
    def watched(self, cure: str) -> Iterator[None]:
        """Tell the other processes why this one ends, if the block raises, and say which of them has ended.

        Raises `PeerFailure`, with the other's reason, in place of the error of a lost connection. `cure` says how to
        go on.
        """
        try:
            yield
        except PeerFailure:
            raise
        except Exception as error:
            if self.size == 1:
                raise
            if _is_lost_connection(error):
                raise self._failure(cure, error) from error
            if self._report(str(error) or type(error).__name__):
                error.silent = True  # type: ignore[attr-defined]
            raise

    def _report(self, message: str) -> bool:
        """Store why this process ends, unless another one has done so. Return True in a process whose error is that of
        the first process too, which prints it."""
        with contextlib.suppress(RuntimeError):
            self.store.compare_set(_FAILURE, "", json.dumps({"rank": self.rank, "reason": message}))
            if self.is_main:
                self.store.set(_FIRST, message)
                return False
            deadline = time.monotonic() + SAME_ERROR_SECONDS
            while time.monotonic() < deadline:
                if self.store.check([_FIRST]):
                    return bool(self.store.get(_FIRST).decode() == message)
                time.sleep(_POLL_SECONDS)
        return False

    def await_handling(self) -> None:
        """After an error of the first process, wait in the others until it has handled it: torchrun ends all processes
        as soon as one has ended, and the message would be lost."""
        with contextlib.suppress(RuntimeError, ValueError):
            if self.is_main:
                self.store.set(_HANDLED, "")
                return
            if not self.store.check([_FAILURE]) or json.loads(self.store.get(_FAILURE))["rank"] != 0:
                return
            deadline = time.monotonic() + HANDLED_SECONDS
            while not self.store.check([_HANDLED]) and time.monotonic() < deadline:
                time.sleep(0.05)

    def _failure(self, cure: str = "", lost: Exception | None = None) -> PeerFailure:
        """Return the error for the process that has ended first; waits for its reason for a few seconds. `lost` is the
        error of the connection."""
        reason: dict[str, Any] | None = None
        deadline = time.monotonic() + REASON_SECONDS
        with contextlib.suppress(RuntimeError, ValueError):
            while not self.store.check([_FAILURE]) and time.monotonic() < deadline:
                time.sleep(0.05)
            if self.store.check([_FAILURE]):
                reason = json.loads(self.store.get(_FAILURE))
        if reason is None:
            sign = "" if lost is None else f": {_sign_of(lost) or str(lost).splitlines()[0]}"
            message = f"another process of the run has ended without a message (killed, or out of memory{sign})"
        else:
            message = f"process {reason['rank']} of {self.size} has ended: {reason['reason']}"
        return PeerFailure(f"{message}; {cure}" if cure else message, self.rank)


def _is_lost_connection(error: Exception) -> bool:
    """Return True for an error of torch's distributed engine."""
    if isinstance(error, UserError) or not isinstance(error, RuntimeError):
        return False
    if isinstance(error, dist.DistError):
        return True
    return _sign_of(error) is not None


def _sign_of(error: Exception) -> str | None:
    """Return the words by which an error is one of a lost connection, None if it is not."""
    text = str(error).lower()
    return next((sign for sign in _SIGNS if sign in text), None)


@contextlib.contextmanager
def joined(device: str, *, timeout: timedelta = timedelta(minutes=30)) -> Iterator[World]:
    """Join the processes that torchrun started, for the block; yields a world of one without torchrun.

    Args:
        device: cpu, cuda or auto: NCCL sums tensors of GPUs, one GPU per process of a machine; gloo those of CPUs.
        timeout: of a collective operation.

    Raises `UserError` for fewer GPUs than processes, and where the processes cannot reach each other.
    """
    if not is_launched():
        yield World()
        return
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    local_rank = _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else rank
    on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    if on_gpu:
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"process {local_rank} of this machine has no GPU: it has {torch.cuda.device_count()}; start as many"
                " processes as there are GPUs (--nproc-per-node), or train with --device cpu"
            )
        torch.cuda.set_device(local_rank)
    if dist.is_initialized():
        raise UserError("torch.distributed is already initialised in this process; start fastbert by torchrun alone")
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        store = dist.PrefixStore(_agreed_start(store, rank, size, timeout.total_seconds()), store)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=dist.PrefixStore("torch", store),
            rank=rank,
            world_size=size,
            timeout=timeout,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the {size} processes of the run do not reach each other ({str(error).splitlines()[0]}); start them with"
            " torchrun, on machines whose --rdzv-endpoint is open"
        ) from error
    world = World(rank, size, local_rank, dist.PrefixStore("run", store))
    leave = _abort if on_gpu else dist.destroy_process_group
    try:
        groups = [dist.new_group(backend="gloo") for _ in range(2)]
        yield replace(world, host_group=groups[0], ahead_group=groups[1])
        # The store may live in the first process: none may end while another one reads from it.
        dist.barrier(group=groups[0])
        leave = dist.destroy_process_group
    except Exception:
        world.await_handling()
        raise
    finally:
        with contextlib.suppress(RuntimeError, ValueError):
            leave()


def _abort() -> None:
    """Leave the other processes at once: after an error NCCL's orderly end would wait for sums that never come."""
    distributed_c10d._abort_process_group()


def _agreed_start(store: Any, rank: int, size: int, seconds: float) -> str:
    """Return a new name for this start of the processes, the same in all of them.

    torchrun keeps its store when it starts processes again, with all that the ended ones have left there: their
    agreements, the reason of their end, the addresses of their connections. So every process announces itself with a
    number of its own, and the first one publishes the name beside the numbers that it has read, until all of them have
    found theirs. Raises `RuntimeError` after `seconds`.
    """
    own = uuid.uuid4().hex
    heard: dict[str, str] = {}
    missing = set(range(1, size))

    def lead() -> str | None:
        here = {str(other): f"{_HERE}/{other}" for other in missing if store.check([f"{_HERE}/{other}"])}
        seen = {other: store.get(key).decode() for other, key in here.items()}
        if not seen.items() <= heard.items():
            heard.update(seen)
            store.set(_START, json.dumps({"name": own, "heard": heard}))
        missing.difference_update([other for other in missing if store.check([f"{own}/{other}"])])
        return None if missing else own

    def follow() -> str | None:
        start = json.loads(store.get(_START)) if store.check([_START]) else {"heard": {}}
        if start["heard"].get(str(rank)) != own:
            return None
        store.set(f"{start['name']}/{rank}", "")
        return str(start["name"])

    if rank:
        store.set(f"{_HERE}/{rank}", own)
    pause, deadline = _POLL_SECONDS, time.monotonic() + seconds
    while (name := (follow if rank else lead)()) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {rank} has waited {seconds:.0f} s for the others")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_POLL)
    return name


def _number(name: str) -> int:
    """Return a number that torchrun has set. Raises `UserError` for anything else."""
    value = os.environ.get(name, "")
    if not value.isdecimal():
        raise UserError(f"the environment variable {name} is {value!r}, not a number; start processes with torchrun")
    return int(value)
