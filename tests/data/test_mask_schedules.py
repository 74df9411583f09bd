"""Mask rates by call, and the fixed masks of --static-masks."""

import numpy as np
import pytest

from fastbert.data.pretraining import PretrainingData


def fields(batch) -> dict:
    names = ("input_ids", "cu_seqlens", "dropout_key", "masked_positions", "labels", "next_sentence_label")
    return {name: getattr(batch, name).tolist() for name in names}


def text_of(sample) -> tuple:
    ids = sample.input_ids.clone()
    ids[sample.masked_positions] = sample.labels
    return tuple(ids.tolist())


@pytest.fixture
def shards(make_shards, random_lengths, seed):
    return make_shards(random_lengths(seed, documents=40, sentences=(1, 12)))


@pytest.mark.parametrize("masking", ["token", "whole-word", "span"])
def test_a_rate_by_call_is_that_of_a_recipe(shards, masking, seed):
    recipe = {"max_length": 48, "seed": seed, "masking": masking}
    data, other = PretrainingData(shards, **recipe), PretrainingData(shards, mask_prob=0.4, **recipe)
    counters = range(data.samples_per_epoch(0) - 5, data.samples_per_epoch(0) + 5)
    assert fields(data.samples(counters, mask_prob=0.4)) == fields(other.samples(counters))
    assert fields(data.samples(counters)) == fields(other.samples(counters, mask_prob=0.15))
    assert fields(data.batch(1, [3, 0], mask_prob=0.4)) == fields(other.batch(1, [3, 0]))
    few, many = data.samples(counters, mask_prob=0.15), data.samples(counters, mask_prob=0.4)
    assert len(many.labels) > 2 * len(few.labels)
    assert (few.dropout_key == many.dropout_key).all()
    assert len(data.samples(counters, mask_prob=0.0).labels) == 0


def test_validation_has_its_own_rate(shards, seed):
    recipe = {"max_length": 48, "seed": seed, "mask_prob": 0.4, "validation_mask_prob": 0.15}
    usual = PretrainingData(shards, max_length=48, seed=seed, split="validation")
    held_out = PretrainingData(shards, split="validation", **recipe)
    assert fields(held_out.batch(0, range(9))) == fields(usual.batch(0, range(9)))
    assert PretrainingData(shards, **recipe).mask_prob == 0.4


def test_objectives_without_masks_ignore_the_rate(shards, seed):
    data = PretrainingData(shards, objective="ltr", max_length=48, seed=seed)
    assert (data.samples([3, 4], mask_prob=0.4).input_ids == data.samples([3, 4]).input_ids).all()


def test_static_masks(shards, seed):
    recipe = {"max_length": 48, "seed": seed, "masking": "span"}
    fresh, static = PretrainingData(shards, **recipe), PretrainingData(shards, static_masks=2, **recipe)
    sizes = [fresh.samples_per_epoch(epoch) for epoch in (0, 1)]
    epochs = []
    for epoch in range(5):
        assert static.samples_per_epoch(epoch) == sizes[epoch % 2]
        batch = static.batch(epoch, np.arange(sizes[epoch % 2]))
        assert static.lengths(epoch).tolist() == batch.cu_seqlens.diff().tolist()
        epochs.append([batch[i] for i in range(len(batch))])
        assert static.locate(sum(sizes[e % 2] for e in range(epoch))) == (epoch, 0)
    for epoch in (0, 1):  # the first ones are those of any run
        assert fields(fresh.batch(epoch, np.arange(sizes[epoch]))) == fields(
            static.batch(epoch, np.arange(sizes[epoch]))
        )

    def masked(samples) -> list:
        return [(tuple(sample.input_ids.tolist()), tuple(sample.labels.tolist())) for sample in samples]

    for first, later in ((0, 2), (1, 3), (0, 4)):
        assert masked(epochs[first]) != masked(epochs[later])  # in another order,
        assert sorted(masked(epochs[first])) == sorted(masked(epochs[later]))  # the same pairs and masks
        keys = [{int(sample.dropout_key) for sample in epochs[epoch]} for epoch in (first, later)]
        assert len(keys[0]) == len(keys[1]) == len(epochs[first])
        assert not keys[0] & keys[1]  # with new dropout
    assert masked(epochs[2]) != masked(epochs[4])
    assert {text_of(sample) for sample in epochs[0]} != {text_of(sample) for sample in epochs[1]}
    # A sample depends on its counter alone.
    counter = sum(sizes) + 7
    assert fields(PretrainingData(shards, static_masks=2, **recipe).samples([counter])) == fields(epochs[2][7])
    unchanged = PretrainingData(shards, max_length=48, seed=seed, split="validation")
    held_out = PretrainingData(shards, max_length=48, seed=seed, split="validation", static_masks=1)
    assert fields(held_out.batch(0, range(5))) == fields(unchanged.batch(0, range(5)))
