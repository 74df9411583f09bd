"""Prefetching: the same steps in the same order with any number of threads, errors in their place, a prompt end."""

import threading
import time

import numpy as np
import pytest

from fastbert.data.prefetch import Prefetcher
from fastbert.data.pretraining import PretrainingData
from fastbert.data.step_samples import StepSamples
from fastbert.errors import UserError


def test_batches_are_the_same_with_any_number_of_workers(make_shards, random_lengths, seed):
    """Steps by tokens, over epochs, with a mask rate per step and several micro-batches, for 0, 1 and 4 threads."""
    shards = make_shards(random_lengths(seed, documents=20, sentences=(1, 10)))
    taken = []
    for workers in (0, 1, 4):
        data = PretrainingData(shards, max_length=48, seed=seed)
        steps, starts = StepSamples(data), [0]

        def specify(step: int) -> tuple | None:
            if step == 40:
                return None
            samples = steps.next_step(starts[step], tokens=300)
            starts.append(samples.stop)
            return samples, 0.4 - 0.005 * step

        def load(specification: tuple) -> list:
            samples, rate = specification
            return [data.samples(part, mask_prob=rate) for part in steps.micro_batches(samples, tokens=150)]

        with Prefetcher(specify, load, workers=workers, ahead=6) as prefetcher:
            result = list(prefetcher)
            assert next(prefetcher, None) is None  # it stays at its end
        assert data.locate(starts[-1])[0] > 1
        names = ("input_ids", "cu_seqlens", "masked_positions", "labels", "dropout_key", "next_sentence_label")
        taken.append(
            [(spec, [[getattr(batch, name).tolist() for name in names] for batch in parts]) for spec, parts in result]
        )
    assert len(taken[0]) == 40
    assert taken[0] == taken[1] == taken[2]


def test_specifications_come_in_order_and_not_too_early(seed):
    asked, loaded, lock = [], [], threading.Lock()
    random = np.random.default_rng(seed)
    naps = random.uniform(0, 0.004, 100)

    def specify(step: int) -> int:
        asked.append(step)
        return step

    def load(step: int) -> int:
        time.sleep(naps[step])
        with lock:
            loaded.append(step)
        return -step

    with Prefetcher(specify, load, first=5, workers=4, ahead=7) as prefetcher:
        for step in range(5, 60):
            assert next(prefetcher) == (step, -step)
            assert asked == list(range(5, 5 + len(asked)))
            assert len(asked) <= step - 5 + 8  # this one, and 7 ahead
    assert sorted(loaded) == asked[: len(loaded)]  # steps given up were not begun


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_errors_come_in_their_place(workers):
    def load(step: int) -> int:
        if step == 3:
            raise OSError("a bad block")
        return step

    with Prefetcher(lambda step: step, load, workers=workers, ahead=4) as prefetcher:
        assert [next(prefetcher)[1] for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(OSError, match="a bad block"):
                next(prefetcher)

    def specify(step: int) -> int:
        if step == 2:
            raise UserError("no more text")
        return step

    with Prefetcher(specify, lambda step: step, workers=workers, ahead=4) as prefetcher:
        assert [next(prefetcher)[1] for _ in range(2)] == [0, 1]
        for _ in range(2):
            with pytest.raises(UserError, match="no more text"):
                next(prefetcher)


def test_it_closes_promptly_and_measures_waits():
    release = threading.Event()

    def load(step: int) -> int:
        if step:
            release.wait(10)
        return step

    started = time.perf_counter()
    with Prefetcher(lambda step: step, load, workers=2, ahead=8) as prefetcher:
        assert next(prefetcher) == (0, 0)
        assert prefetcher.startup_seconds is not None
        threading.Timer(0.05, release.set).start()
        assert next(prefetcher) == (1, 1)
        assert 0.02 < prefetcher.waited_seconds < 5
        release.clear()
        threading.Timer(0.05, release.set).start()
    assert time.perf_counter() - started < 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fastbert-data")]


def test_wrong_numbers_are_one_line():
    for numbers, message in (({"workers": -1}, "workers=-1"), ({"workers": 4, "ahead": 3}, "ahead=3 must be at least")):
        with pytest.raises(UserError, match=message):
            Prefetcher(lambda step: step, lambda step: step, **numbers)
