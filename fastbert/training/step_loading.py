"""The loading of a run's steps: this process's micro-batches, prepared ahead of the step that takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import torch

from fastbert.data.prefetch import Prefetcher
from fastbert.distributed.world import World
from fastbert.packing import PackedBatch
from fastbert.training.step_spec import LoadedStep, StepCounts, StepSource, StepSpec


class StepLoader:
    """Loads the micro-batches of one process, of at most `micro_batch` sequences."""

    def __init__(self, data: StepSource, world: World, micro_batch: int, prepare: Callable[[PackedBatch], Any]) -> None:
        """`prepare` makes a micro-batch ready for the device."""
        self.data = data
        self.world = world
        self.micro_batch = micro_batch
        self.prepare = prepare

    def load(self, spec: StepSpec) -> LoadedStep:
        """Return a step with this process's micro-batches, and its counts over all processes."""
        loaded = self._own(spec)
        return self._summed(loaded) if self.world.size > 1 else loaded

    def prefetcher(self, workers: int) -> Prefetcher[StepSpec, LoadedStep]:
        """Return the prefetcher of the run's steps, with `workers` threads."""
        return Prefetcher(self._own, self._summed if self.world.size > 1 else None, workers=workers)

    def _own(self, spec: StepSpec) -> LoadedStep:
        """Return a step with this process's micro-batches and their counts."""
        micro_batches = self.data.batches(spec, self.micro_batch, self.world.rank, self.world.size)
        counts = StepCounts.of(micro_batches, pairs=True)
        return LoadedStep(spec, [self.prepare(batch.longest_first()) for batch in micro_batches], counts)

    def _summed(self, loaded: LoadedStep) -> LoadedStep:
        """Return a step with the counts of all processes, and the most micro-batches that one of them has."""
        local = astuple(loaded.counts)
        numbers = torch.zeros(len(local) + self.world.size, dtype=torch.float64)
        numbers[: len(local)] = torch.tensor(local, dtype=torch.float64)
        numbers[len(local) + self.world.rank] = len(loaded.batches)
        self.world.sum_ahead(numbers)
        passes = int(numbers[len(local) :].max())
        return replace(loaded, counts=StepCounts(*numbers[: len(local)].tolist()), passes=passes)
