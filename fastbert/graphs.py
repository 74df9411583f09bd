"""CUDA graphs: record a model's forward pass once per batch size, then replay it as one launch.

With a small batch a GPU waits for the host, which launches some hundred kernels one by one. A graph launches them
together, but its shapes and addresses are fixed: batches are padded to a few sizes (`Buckets`) and copied into static
buffers, and results are read from static memory.

One file, for buckets, recordings and the model are understood only together: each relies on the addresses and shapes
that the others fix.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.models.packed import Packed, columns_matter
from fastbert.models.padded import PaddedBatch
from fastbert.ops import dispatch
from fastbert.packing import PackedBatch


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The shapes of one recording: tokens, sequences, masked positions (None: the batch has none), and the largest
    sequence length."""

    tokens: int
    sequences: int
    masked: int | None
    max_seqlen: int

    def fill(self, batch: PackedBatch) -> PackedBatch:
        """Return the batch padded to these shapes."""
        return batch.padded_to(self.tokens, self.sequences, self.masked, max_seqlen=self.max_seqlen)

    def __str__(self) -> str:
        masked = "" if self.masked is None else f", {self.masked} masked"
        return f"{self.tokens} tokens, {self.sequences} sequences of at most {self.max_seqlen}{masked}"


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Rules that round batch sizes up, so that few recordings cover all batches.

    `tokens`, `sequences` and `masked` are the smallest steps; above them there are `per_doubling` steps from a power of
    two to the next, so that at most one part in `per_doubling` (12.5 %) is padding. The largest sequence length is
    rounded to a power of two, at least `shortest`. Raises `UserError` for steps below 1.
    """

    tokens: int = 64
    sequences: int = 8
    masked: int = 16
    per_doubling: int = 8
    shortest: int = 16

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or value < 1:
                raise UserError(f"Buckets: {field.name}={value} must be a whole number of at least 1")

    def _step(self, size: int, multiple: int) -> int:
        """Return the distance between buckets near `size`, a multiple of `multiple`."""
        octave = 1 << max(size - 1, 1).bit_length() - 1
        return -(-max(octave // self.per_doubling, 1) // multiple) * multiple

    def _up(self, size: int, multiple: int) -> int:
        step = self._step(size, multiple)
        return -(-max(size, 1) // step) * step

    def of(self, batch: PackedBatch) -> Bucket:
        """Return the smallest bucket for a batch, from sizes alone: without a host-device sync."""
        tokens = self._up(batch.num_tokens, self.tokens)
        longest = max(self.shortest, 1 << max(batch.max_seqlen - 1, 0).bit_length())
        # Room for as many dummies as any batch of this bucket needs, so that batches of n sequences share one bucket.
        dummies = -(-(self._step(tokens, self.tokens) - 1) // longest)
        sequences = self._up(len(batch) + dummies, self.sequences)
        if sequences == tokens:  # rows of tokens and rows of sequences are told apart by their number
            sequences += self.sequences
        masked = None if batch.masked_positions is None else self._up(len(batch.masked_positions), self.masked)
        return Bucket(tokens=tokens, sequences=sequences, masked=masked, max_seqlen=longest)


class CaptureError(RuntimeError):
    """The work cannot be recorded, for example because it needs a host-device sync."""


class Recorder(Protocol):
    """A device's way to record work, as `Graphs` needs it."""

    def warm_up(self, run: Callable[[], Any]) -> Any:
        """Do the work once under the conditions of the capture; return its results."""

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Record the work without doing it. Return a function that repeats it on the same memory and returns the
        results, the same tensors each time. Raises `CaptureError`."""

    def forget(self) -> None:
        """Release what recordings hold: none is used any more."""


class CudaRecorder:
    """Records CUDA graphs that share one memory pool: results of one may be overwritten by the next."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)
        self.pool: Any = torch.cuda.graph_pool_handle()

    def warm_up(self, run: Callable[[], Any]) -> Any:
        """Run on the stream of the capture, so that kernels are compiled and workspaces allocated before it."""
        with torch.cuda.device(self.device):
            current = torch.cuda.current_stream()
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                results = run()
            current.wait_stream(self.stream)
        return results

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Record on the side stream; other threads may use the device meanwhile, for example to pin memory."""
        graph = torch.cuda.CUDAGraph()
        recorded = torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local")
        try:
            # The outer block makes the present stream current again: after a failed capture torch does not.
            with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.current_stream(self.device)), recorded:
                results = run()
        except RuntimeError as error:
            self._abandon(graph)
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise CaptureError(_first_cause(error)) from error

        def replay() -> Any:
            graph.replay()
            return results

        return replay

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a failed capture in the allocator, which torch does not: cached memory would never be freed again."""
        graph.reset()
        _abandoned.append(graph)
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        with contextlib.suppress(RuntimeError):  # the first raises if the capture came to its end
            torch._C._cuda_endAllocateToPool(index, self.pool)
            torch._C._cuda_releasePool(index, self.pool)

    def forget(self) -> None:
        """Start a new memory pool: one without graphs cannot be used again."""
        self.pool = torch.cuda.graph_pool_handle()


# Failed captures: torch's allocator of page-locked memory keeps pointers to them.
_abandoned: list[torch.cuda.CUDAGraph] = []


def _first_cause(error: BaseException) -> str:
    """Return the first error in one line: ending a failed capture raises once more."""
    if isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return next(iter(str(error).splitlines()), type(error).__name__)


class Graphs:
    """Recordings by key, at most `limit`: the least recently used is dropped first.

    After a failed capture, which is logged, nothing is recorded until `forget`; `refused` holds the reason.
    """

    def __init__(self, recorder: Recorder, device: torch.device, limit: int) -> None:
        self.recorder = recorder
        self.device = device
        self.limit = limit
        self.slots: OrderedDict[Any, tuple[PackedBatch | None, Callable[[], Any]]] = OrderedDict()
        """Recordings, each with the batch that it reads."""
        self.refused: str | None = None

    def run(self, key: Any, batch: PackedBatch | None, function: Callable[[PackedBatch | None], Any]) -> Any:
        """Return function(batch): record it if `key` is new, else replay it on a copy of `batch`, whose shapes `key`
        fixes. The results are static memory, valid until the next call with any key."""
        if key in self.slots:
            self.slots.move_to_end(key)
            static, replay = self.slots[key]
            for field in fields(batch) if batch is not None else ():
                value = getattr(batch, field.name)
                if isinstance(value, Tensor):
                    getattr(static, field.name).copy_(value, non_blocking=True)
            return replay()
        static = None if batch is None else batch._map(lambda x: x.to(self.device, non_blocking=True, copy=True))
        if self.refused is not None:
            return function(static)
        results = self.recorder.warm_up(lambda: function(static))
        try:
            self.slots[key] = static, self.recorder.capture(lambda: function(static))
        except CaptureError as error:
            self.refused = f"the capture failed: {error}"
            logger.warning("no CUDA graphs, kernels are launched one by one: %s", self.refused)
        while len(self.slots) > self.limit:
            self.slots.popitem(last=False)
        return results

    def forget(self) -> None:
        """Drop all recordings."""
        self.slots.clear()
        self.recorder.forget()
        self.refused = None


class Weights:
    """The addresses of a module's tensors, which a recording reads."""

    def __init__(self, module: nn.Module) -> None:
        self.children: list[tuple[dict[str, nn.Module | None], list[nn.Module | None]]] = [
            (child._modules, list(child._modules.values())) for child in module.modules() if child._modules
        ]
        owned = [table for child in module.modules() for table in (child._parameters, child._buffers) if table]
        self.tensors: list[tuple[dict[str, nn.Parameter | None] | dict[str, Tensor | None], list[int | None]]] = [
            (table, _pointers(table)) for table in owned
        ]

    def moved(self) -> bool:
        """Return whether a tensor has moved or a child module was replaced; loading a state dict moves nothing."""
        return any(_pointers(table) != pointers for table, pointers in self.tensors) or any(
            list(table.values()) != modules for table, modules in self.children
        )


def _pointers(table: Mapping[str, Tensor | None]) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in table.values()]


def settings(device: torch.device) -> tuple[Any, ...]:
    """Return the global settings that select a model's kernels."""
    autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None) or torch.get_float32_matmul_precision()
    return autocast, dispatch._forced, precision, torch.are_deterministic_algorithms_enabled()


def present_fields(batch: PackedBatch) -> tuple[str, ...]:
    """Return the names of the fields that a batch has."""
    return tuple(field.name for field in fields(batch) if getattr(batch, field.name) is not None)


@dataclass(frozen=True)
class Use:
    """One row of `report`: a bucket, `how` it ran ("graph" or "eager"), why, the calls and the replays among them."""

    bucket: Bucket
    how: str
    reason: str
    calls: int = 0
    replays: int = 0

    def __str__(self) -> str:
        return f"{self.bucket}: {self.how} ({self.reason}), {self.calls} calls, {self.replays} of them replays"


class Uses(dict[tuple[Bucket, str, str], Use]):
    """Counts of calls, by bucket, how they ran and why."""

    def add(self, bucket: Bucket, how: str, reason: str, *, replayed: bool = False) -> None:
        """Count one call."""
        row = self.get((bucket, how, reason)) or Use(bucket, how, reason)
        self[bucket, how, reason] = replace(row, calls=row.calls + 1, replays=row.replays + replayed)


RECORDED = "recorded for this size of batch"
NO_GRAPHS = "there are no CUDA graphs on a device of type {}"


class GraphedModel:
    """A model whose calls without gradients are replayed from CUDA graphs.

    `graphed(batch)` of a `PackedBatch` returns what `model(batch)` returns, as clones; with `copy=False` as views of
    memory that the next call overwrites. Padded input is accepted too, but unpadding it is a host-device sync. The
    model may be any module that computes an output dataclass of tensors, one row per token or sequence, from a batch.

    The first batch of a bucket is recorded, at most `limit` buckets at a time. Replays read weights in place, so they
    follow optimiser steps and loaded state dicts; after parameters have moved, the model is recorded again. Unsupported
    calls (on a CPU, in training mode, with gradients, after a failed capture) run the model as usual, and `report()`
    gives the reason. For one thread and one stream at a time. Raises `UserError` for a `limit` below 1, and for outputs
    that are not a dataclass of such tensors.
    """

    def __init__(
        self,
        model: nn.Module,
        buckets: Buckets | None = None,
        *,
        limit: int = 32,
        copy: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        if limit < 1:
            raise UserError(f"limit={limit} must be at least 1: the number of graphs that are kept")
        self.model = model
        self.buckets: Buckets = buckets or Buckets()
        self.copy = copy
        self.limit = limit
        self._recorder = recorder
        self._graphs: Graphs | None = None
        self._weights = Weights(model)
        self._uses = Uses()

    def __call__(
        self,
        batch: PackedBatch | Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
    ) -> Any:
        """Run the model on a `PackedBatch`, or on padded int64 ids (B, S) with their masks, types and positions."""
        packed = Packed(
            batch, input_ids, attention_mask, token_type_ids, position_ids, columns_matter=columns_matter(self.model)
        )
        device = next(self.model.parameters()).device
        bucket = self.buckets.of(packed.batch)
        if self._graphs is not None and self._weights.moved():
            self.forget()
        has_gaps = isinstance(packed.batch, PaddedBatch)
        reason = "padding between tokens stays in the batch" if has_gaps else self._why_not(device)
        if reason is not None:
            self._uses.add(bucket, "eager", reason)
            if isinstance(batch, PackedBatch):
                return self.model(batch.to(device))
            return self.model(batch, attention_mask, token_type_ids, position_ids, input_ids=input_ids)
        assert self._graphs is not None
        key = (bucket, present_fields(packed.batch), settings(device))
        replayed = key in self._graphs.slots
        with torch.inference_mode(False), torch.no_grad():
            output = self._graphs.run(key, bucket.fill(packed.batch), self._forward)
            result = _real(output, bucket, packed, copy=self.copy)
        if self._graphs.refused is None:
            self._uses.add(bucket, "graph", RECORDED, replayed=replayed)
        else:
            self._uses.add(bucket, "eager", self._graphs.refused)
        return result

    def _forward(self, batch: PackedBatch | None) -> Any:
        # Autocast would keep its copies of the weights beyond the capture, and those of before it would be recorded.
        device = next(self.model.parameters()).device.type
        enabled = torch.is_autocast_enabled(device)
        with torch.autocast(device, torch.get_autocast_dtype(device), enabled=enabled, cache_enabled=False):
            return self.model(batch)

    def _why_not(self, device: torch.device) -> str | None:
        """Return why a call cannot use a graph now, or None."""
        if self._recorder is None and device.type != "cuda":
            return NO_GRAPHS.format(device.type)
        if self.model.training:
            return "the model is in training mode: call model.eval() first"
        if torch.is_grad_enabled():
            return "gradients are enabled: call it under torch.no_grad()"
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "another capture is under way"
        if self._graphs is None:
            recorder = self._recorder or CudaRecorder(device)
            self._graphs, self._weights = Graphs(recorder, device, self.limit), Weights(self.model)
        return self._graphs.refused

    def forget(self) -> None:
        """Drop all graphs and their memory; the next batch of each bucket is recorded again."""
        if self._graphs is not None:
            self._graphs.forget()
            self._graphs = None

    def report(self) -> list[Use]:
        """Return how each bucket ran so far, and why."""
        return list(self._uses.values())


def _real(output: Any, bucket: Bucket, packed: Packed, *, copy: bool) -> Any:
    """Return an output without the bucket's padding, in the form of the input."""
    if not is_dataclass(output) or isinstance(output, type):
        raise UserError(f"the model returns {type(output).__name__}, not an output dataclass: call the model itself")

    def real(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(real(name, tensor) for tensor in value)
        if not isinstance(value, Tensor):
            return value
        rows = value
        if value.dim():
            if value.shape[0] not in (bucket.tokens, bucket.sequences):
                raise UserError(
                    f"{name} of {type(output).__name__} has {value.shape[0]} rows, neither one per token"
                    f" ({bucket.tokens}) nor one per sequence ({bucket.sequences}): call the model itself"
                )
            per_token = value.shape[0] == bucket.tokens
            rows = value[: packed.batch.num_tokens] if per_token else value[: len(packed.batch)]
            if per_token and packed.slots is not None:
                return packed.restore(rows)
        return rows.clone() if copy else rows

    return replace(output, **{field.name: real(field.name, getattr(output, field.name)) for field in fields(output)})


def graphed(model: nn.Module, buckets: Buckets | None = None, *, limit: int = 32, copy: bool = True) -> GraphedModel:
    """Return a model whose calls without gradients are replayed from CUDA graphs; see `GraphedModel`."""
    return GraphedModel(model, buckets, limit=limit, copy=copy)
