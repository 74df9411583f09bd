"""The epochs of a split of a corpus: their plans, the order of their samples, and their places in the stream of a run.

The samples of a run are numbered over all its epochs, as "sample counters". With `n` static masks, epoch `e` has the
samples of epoch `e mod n`, with their pairs and masks, in an order and with dropout of its own.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.errors import CorpusError, UserError

MAX_EPOCHS = 1 << 32
_CACHED = 2  # plans, and epochs: the current one and, at its end, the next


@dataclass(frozen=True)
class Epoch:
    """The samples of an epoch: sample `i` is that of its plan at `order[i]`, or at `i` without an order."""

    number: int
    plan: _C.EpochPlan
    order: NDArray[np.int64] | None
    """int64 (samples,): a permutation, where the epoch repeats the samples of an earlier one."""
    lengths: NDArray[np.int32]
    """Tokens of each sample, special tokens included: int32 (samples,)."""

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in the plan of the samples `indices`, both int64 (samples,).

        Raises UserError for a sample that the epoch does not have.
        """
        size = len(self.plan)
        outside = (indices < 0) | (indices >= size)
        if outside.any():
            index = int(indices[outside][0])
            raise UserError(f"epoch {self.number}: sample {index} of an epoch of {size} samples")
        return indices if self.order is None else self.order[indices]


class Epochs:
    """The epochs of a split; the last two are cached. Safe to use from several threads.

    Args:
        plan: return the plan of an epoch; a pure function.
        seed: seed of the order of repeated epochs.
        static_masks: number of epochs with samples of their own, which the later ones repeat; None for all.
        shuffle_window: tokens among which repeated epochs are shuffled; None for all.
        fixed: every epoch is epoch 0, as those of the validation split are.
        name: of the corpus, in errors.
    """

    def __init__(
        self,
        plan: Callable[[int], _C.EpochPlan],
        *,
        seed: int,
        static_masks: int | None = None,
        shuffle_window: int | None = None,
        fixed: bool = False,
        name: str = "the corpus",
    ) -> None:
        self._plan, self._seed, self._static_masks, self._fixed, self._name = plan, seed, static_masks, fixed, name
        self._window = shuffle_window
        self._plans: OrderedDict[int, _C.EpochPlan] = OrderedDict()
        self._epochs: OrderedDict[int, Epoch] = OrderedDict()
        self._sizes: dict[int, int] = {}  # by number of the plan
        self._starts = [0]  # the first sample counter of each epoch
        self._lock = threading.RLock()

    def __getitem__(self, number: int) -> Epoch:
        """Return an epoch. Raises UserError for a number below 0 or from 2^32 on."""
        number, planned = self._checked(number)
        with self._lock:
            if number not in self._epochs:
                plan = self._planned(planned)
                order, lengths = None, plan.lengths()
                if number != planned:
                    order = self._order(number, lengths)
                    lengths = lengths[order]
                self._epochs[number] = Epoch(number, plan, order, lengths)
                if len(self._epochs) > _CACHED:
                    self._epochs.popitem(last=False)
            self._epochs.move_to_end(number)
            return self._epochs[number]

    def is_cached(self, number: int) -> bool:
        """Return True if `self[number]` needs no planning. Raises UserError for a number below 0 or from 2^32 on."""
        return self._checked(number)[0] in self._epochs

    def size(self, number: int) -> int:
        """Return the number of samples of an epoch. Raises UserError for a number below 0 or from 2^32 on."""
        _, planned = self._checked(number)
        with self._lock:
            if planned not in self._sizes:
                self._planned(planned)
            return self._sizes[planned]

    def locate(self, sample_counter: int) -> tuple[int, int]:
        """Return the epoch of a sample counter, and the index of the sample in it.

        Raises UserError for a negative counter, and CorpusError for an epoch without samples.
        """
        if sample_counter < 0:
            raise UserError(f"sample_counter={sample_counter} must not be negative")
        if self._fixed:
            size = self.size(0)
            return sample_counter // size, sample_counter % size
        with self._lock:
            while sample_counter >= self._starts[-1]:
                epoch = len(self._starts) - 1
                size = self.size(epoch)
                if not size:
                    raise CorpusError(f"epoch {epoch} of {self._name} has no samples; add text")
                self._starts.append(self._starts[-1] + size)
            epoch = bisect_right(self._starts, sample_counter) - 1
            return epoch, sample_counter - self._starts[epoch]

    def _order(self, number: int, lengths: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return a random order of samples: of all, or of windows and of the samples in each."""
        windows = np.zeros(1, np.int64)
        if self._window is not None:
            windows = (np.cumsum(lengths, dtype=np.int64) - lengths) // self._window
        # More windows than samples, if those are longer.
        count = len(lengths) + max(len(lengths), int(windows.max(initial=0)) + 1)
        numbers = _C.random_numbers(count, seed=self._seed, epoch=number, purpose="revisit")
        if self._window is None:
            return np.argsort(numbers[: len(lengths)], kind="stable")
        return np.lexsort((numbers[: len(lengths)], numbers[len(lengths) + windows]))

    def _checked(self, number: int) -> tuple[int, int]:
        """Return the number of an epoch, and that of its plan."""
        if not 0 <= number < MAX_EPOCHS:
            raise UserError(f"epoch={number} must be from 0 to 2^32 - 1")
        number = 0 if self._fixed else number
        return number, number if self._static_masks is None else number % self._static_masks

    def _planned(self, number: int) -> _C.EpochPlan:
        if number not in self._plans:
            plan = self._plans[number] = self._plan(number)
            self._sizes[number] = len(plan)
            if len(self._plans) > _CACHED:
                self._plans.popitem(last=False)
        self._plans.move_to_end(number)
        return self._plans[number]
