"""Prefetching: the same steps in the same order with any number of threads, errors in their place, a prompt end."""

import contextlib
import threading
import time

import numpy as np
import pytest

from fastbert.data.prefetch import Prefetcher
from fastbert.data.pretraining import PretrainingData
from fastbert.data.step_samples import StepSamples
from fastbert.errors import UserError

FIELDS = ("input_ids", "cu_seqlens", "masked_positions", "labels", "dropout_key", "next_sentence_label")


def taken_with(workers: int, data: PretrainingData) -> tuple[list, list]:
    """Forty steps by tokens, over epochs, with a mask rate per step and several micro-batches: what and which data."""
    steps = StepSamples(data)

    def load(specification: tuple) -> list:
        samples, rate = specification
        batches = [data.samples(part, mask_prob=rate) for part in steps.micro_batches(samples, tokens=150)]
        return [[getattr(batch, name).tolist() for name in FIELDS] for batch in batches]

    counter, submitted, taken = 0, [], []
    with Prefetcher(load, workers=workers) as prefetcher:
        for step in range(40):
            submitted.append((steps.next_step(counter, tokens=300), 0.4 - 0.005 * step))
            counter = submitted[-1][0].stop
            prefetcher.submit(submitted[-1])
            if step >= prefetcher.depth:
                taken.append(prefetcher.result())
        while len(taken) < 40:
            taken.append(prefetcher.result())
    assert data.locate(counter)[0] > 1
    return submitted, taken


def test_batches_are_the_same_with_any_number_of_workers(make_shards, random_lengths, seed):
    shards = make_shards(random_lengths(seed, documents=20, sentences=(1, 10)))
    none, one, four = (taken_with(n, PretrainingData(shards, max_length=48, seed=seed)) for n in (0, 1, 4))
    assert none == one == four


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_last_stage_is_in_order(workers, seed):
    finished, naps = [], np.random.default_rng(seed).uniform(0, 0.004, 40)

    def load(step: int) -> int:
        time.sleep(naps[step])
        return step

    def finish(step: int) -> int:
        finished.append(step)
        return -step

    with contextlib.suppress(KeyError), Prefetcher(load, finish, workers=workers) as prefetcher:
        for step in range(40):
            prefetcher.submit(step)
        assert [prefetcher.result() for _ in range(30)] == [-step for step in range(30)]
        raise KeyError
    # What was submitted is finished, as in the other processes; without threads nothing has begun.
    assert finished == list(range(40 if workers else 30))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("staged", [False, True])
def test_errors_come_in_their_place(workers, staged):
    def fails(step: int) -> int:
        if step == 3:
            raise OSError("a bad block")
        return step

    stages = (lambda step: step, fails) if staged else (fails,)
    with Prefetcher(*stages, workers=workers) as prefetcher:
        for step in range(6):
            prefetcher.submit(step)
        assert [prefetcher.result() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(OSError, match="a bad block"):
            prefetcher.result()
        assert prefetcher.result() == 4


def test_it_closes_promptly_and_measures_waits():
    released, begun = [threading.Event() for _ in range(20)], []

    def load(step: int) -> int:
        begun.append(step)
        released[step].wait(10)
        return step

    released[0].set()
    started = time.perf_counter()
    with Prefetcher(load, workers=2) as prefetcher:
        for step in range(20):
            prefetcher.submit(step)
        assert prefetcher.result() == 0
        assert prefetcher.seconds_waited == 0
        threading.Timer(0.05, released[1].set).start()
        assert prefetcher.result() == 1
        assert 0.02 < prefetcher.seconds_waited < 5
        for step in (2, 3):  # being loaded by the two threads
            threading.Timer(0.1, released[step].set).start()
    assert time.perf_counter() - started < 5
    assert begun in ([0, 1, 2, 3], [0, 1, 2])  # the others were given up
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fastbert-data")]


def test_a_negative_number_of_workers_is_refused():
    with pytest.raises(UserError, match="workers=-1 must be at least 0"):
        Prefetcher(lambda step: step, workers=-1)
