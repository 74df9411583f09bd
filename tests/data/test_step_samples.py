"""Steps, shares of ranks and micro-batches: each sample of a step exactly once, whoever computes it."""

import itertools

import numpy as np
import pytest

from fastbert.data.pretraining import PretrainingData
from fastbert.data.step_samples import StepSamples
from fastbert.errors import CorpusError, UserError


@pytest.fixture
def data(make_shards, random_lengths, seed):
    shards = make_shards(random_lengths(seed, documents=30, sentences=(1, 12)), shard_tokens=5000)
    return PretrainingData(shards, max_length=48, seed=seed, short_sequence_prob=0.3)


def test_lengths_are_those_of_the_batches(data):
    steps = StepSamples(data)
    for epoch in (0, 2):
        batch = data.batch(epoch, np.arange(data.samples_per_epoch(epoch)))
        lengths = data.lengths(epoch)
        assert lengths.dtype == np.int32
        assert lengths.tolist() == batch.cu_seqlens.diff().tolist()
    counters = [data.samples_per_epoch(0) + 3, 5, 5, data.samples_per_epoch(0) - 1, 0]
    assert steps.lengths(counters).tolist() == data.samples(counters).cu_seqlens.diff().tolist()
    assert steps.lengths([]).tolist() == []


@pytest.mark.parametrize("tokens", [1, 40, 333, 2000])
def test_steps_by_tokens(data, tokens):
    """Greedy: a step takes the next samples while they fit, whatever the epoch, and at least one."""
    lengths = np.concatenate([data.lengths(epoch) for epoch in range(8)])
    total = data.samples_per_epoch(0) * 3
    steps, counter, used, step = StepSamples(data), 0, 0, []
    expected = []
    for i, length in enumerate(lengths[: total + 1]):
        if step and used + length > tokens:
            expected.append((step[0], step[-1] + 1))
            step, used = [], 0
        step, used = [*step, i], used + int(length)
    for start, stop in expected:
        assert steps.next_step(counter, tokens=tokens) == range(start, stop)
        # From the middle of the run, without what came before.
        if start % 7 == 0:
            assert StepSamples(data).next_step(start, tokens=tokens) == range(start, stop)
        counter = stop
    assert len(expected) > 1


def test_shares_and_micro_batches_hold_each_sample_once(data, seed):
    steps = StepSamples(data)
    start = data.samples_per_epoch(0) - 20  # across the end of an epoch
    for step, world_size in itertools.product(
        (steps.next_step(start, sequences=37), steps.next_step(start, tokens=1500), range(start, start + 2)),
        (1, 2, 3, 4, 7),
    ):
        strided = [steps.share(step, rank, world_size) for rank in range(world_size)]
        assert [share.tolist() for share in strided] == [list(step)[rank::world_size] for rank in range(world_size)]
        balanced = [steps.share(step, rank, world_size, by_tokens=True) for rank in range(world_size)]
        assert sorted(np.concatenate(balanced).tolist()) == list(step)
        assert all((np.diff(share) > 0).all() for share in balanced)
        sizes = [len(share) for share in balanced]
        assert max(sizes) - min(sizes) <= 1
        tokens = [int(steps.lengths(share).sum()) for share in balanced]
        assert max(tokens) - min(tokens) <= int(steps.lengths(step).max())
        if len(step) >= 20 * world_size:
            plain = [int(steps.lengths(share).sum()) for share in strided]
            assert max(tokens) - min(tokens) <= max(max(plain) - min(plain), 12)
        for share in balanced:
            for limit in (1, 100, 1 << 40):
                parts = steps.micro_batches(share, tokens=limit)
                assert [i for part in parts for i in part.tolist()] == share.tolist()
                sums = [int(steps.lengths(part).sum()) for part in parts]
                assert all(len(part) == 1 or total <= limit for part, total in zip(parts, sums))
                # Greedy: no two neighbours fit into one.
                assert all(a + int(steps.lengths(b)[0]) > limit for a, b in zip(sums, parts[1:]))
            assert [part.tolist() for part in steps.micro_batches(share, sequences=5)] == [
                share.tolist()[i : i + 5] for i in range(0, len(share), 5)
            ]
    assert steps.micro_batches([], tokens=5) == []


def test_token_shares_are_even(make_shards, random_lengths, seed):
    """Steps of many sequences of mixed lengths: ranks differ by little more than a sequence's tokens."""
    shards = make_shards(random_lengths(seed, documents=400, sentences=(1, 3), tokens=(1, 20)))
    data = PretrainingData(shards, max_length=64, seed=seed)
    steps = StepSamples(data)
    step = steps.next_step(0, tokens=6000)
    for world_size in (2, 4, 8):
        tokens = [int(steps.lengths(steps.share(step, r, world_size, by_tokens=True)).sum()) for r in range(world_size)]
        print(world_size, tokens)
        assert max(tokens) - min(tokens) <= 0.03 * max(tokens)


def test_wrong_arguments_are_one_line(data):
    steps = StepSamples(data)
    for call, message in (
        (lambda: steps.next_step(0), "either sequences or tokens"),
        (lambda: steps.next_step(0, sequences=1, tokens=1), "either sequences or tokens"),
        (lambda: steps.next_step(0, tokens=0), "tokens=0 must be at least 1"),
        (lambda: steps.next_step(-1, tokens=5), "sample_counter=-1 must not be negative"),
        (lambda: steps.micro_batches([1], sequences=0), "sequences=0 must be at least 1"),
        (lambda: steps.share(range(3), 2, 2), "rank=2 must be from 0 to world_size=2 - 1"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_an_epoch_without_samples_is_an_error():
    """As `locate` refuses it too, rather than looking for the next sample for ever."""

    class Empty:
        def lengths(self, epoch: int) -> np.ndarray:
            return np.zeros(0 if epoch else 3, np.int32) + 4

        def locate(self, sample_counter: int) -> tuple[int, int]:
            return divmod(sample_counter, 3)

    with pytest.raises(CorpusError, match="epoch 1 has no samples"):
        StepSamples(Empty()).next_step(1, tokens=100)
