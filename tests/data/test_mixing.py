"""Mixtures of corpora: proportions, passes over each source, and samples that depend on their number alone."""

import pickle

import numpy as np
import pytest

from fastbert.data.mixing import MixedData, apportioned, open_data, split_unigrams
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData, unigram_counts
from fastbert.data.step_samples import StepSamples
from fastbert.errors import UserError

RECIPE = {"objective": "mlm", "max_length": 32}
FIRST_IDS = (6, 3006, 6006)  # of the tokens of each source


@pytest.fixture
def sources(tmp_path, id_tokenizer, random_lengths, seed):
    """Three corpora with one vocabulary: a large one, a small one and one between; each token has its own id."""
    shards = []
    for number, documents in enumerate((24, 3, 9)):
        lengths = random_lengths(seed + number, documents=documents, sentences=(2, 8), tokens=(2, 24))
        next_id, corpus = FIRST_IDS[number], []
        for document in lengths:
            corpus.append([])
            for n in document:
                corpus[-1].append(" ".join(map(str, range(next_id, next_id + n))))
                next_id += n
        assert next_id <= FIRST_IDS[number] + 3000
        shards.append(prepare(corpus, id_tokenizer(9006), tmp_path / f"source{number}"))
    return shards


def source_of(sample) -> int:
    ids = sample.input_ids.clone()
    ids[sample.masked_positions] = sample.labels
    return int((ids[1] - 6) // 3000)


def fields(batch) -> dict:
    names = ("input_ids", "cu_seqlens", "sequence_ids", "dropout_key", "masked_positions", "labels")
    return {name: getattr(batch, name).tolist() for name in names}


def test_proportions_and_passes(sources, seed):
    data = open_data(sources, (0.2, 0.5, 0.3), seed=seed, **RECIPE)
    assert isinstance(data, MixedData)
    total = sum(source.samples_per_epoch(0) for source in data.sources)
    assert sum(data.counts) == data.samples_per_epoch(5) == total
    assert all(abs(n - total * w) < 1 for n, w in zip(data.counts, (0.2, 0.5, 0.3)))
    used: list[list[int]] = [[], [], []]
    for epoch in range(4):
        batch = data.batch(epoch, np.arange(total))
        where = [source_of(batch[i]) for i in range(total)]
        drawn = data.drawn(epoch)
        assert where == drawn.source.tolist()
        assert data.lengths(epoch).tolist() == batch.cu_seqlens.diff().tolist()
        assert (np.bincount(where, minlength=3) == data.counts).all()
        # Every stretch of the epoch has the proportions, to within two samples per source.
        for stop in range(1, total):
            shares = np.bincount(where[:stop], minlength=3) - np.array(data.counts) / total * stop
            assert abs(shares).max() <= 2
        for number in range(3):
            used[number] += drawn.counter[drawn.source == number].tolist()
    # Each source is read in its own order: a large one without repeats, a small one over and over.
    assert all(numbers == list(range(len(numbers))) for numbers in used)
    assert len(used[0]) < data.sources[0].samples_per_epoch(0) * 4
    assert len(used[1]) > data.sources[1].samples_per_epoch(0) * 4
    assert data.described().count("\n") == 2
    assert "50.0% of the samples" in data.described()


def test_a_sample_depends_on_its_number_alone(sources, seed):
    data = open_data(sources, (1, 3, 2), seed=seed, **RECIPE)
    size = data.samples_per_epoch(0)
    counters = [size + 2, 0, 3 * size - 1, 7, 3 * size, size - 1]
    batch = data.samples(counters, mask_prob=0.4)
    fresh = pickle.loads(pickle.dumps(open_data(sources, (1, 3, 2), seed=seed, **RECIPE)))
    for i, counter in enumerate(counters):
        epoch, index = data.locate(counter)
        assert fields(batch[i]) == fields(fresh.samples([counter], mask_prob=0.4))
        assert fields(batch[i]) == fields(data.batch(epoch, [index], mask_prob=0.4))
    other = open_data(sources, (1, 3, 2), seed=seed + 1, **RECIPE)
    assert fields(other.batch(0, range(9))) != fields(data.batch(0, range(9)))
    keys = data.batch(0, np.arange(size)).dropout_key.tolist()
    assert len(set(keys)) == size  # sources draw numbers of their own
    assert len(data.samples([])) == 0
    steps = StepSamples(data)
    step = steps.next_step(size - 3, tokens=400)
    assert sum(data.samples(step).cu_seqlens.diff()) <= 400
    assert steps.lengths(step).tolist() == data.samples(step).cu_seqlens.diff().tolist()


def test_one_source_is_pretraining_data(sources, seed):
    data = open_data(sources[:1], seed=seed, **RECIPE)
    assert isinstance(data, PretrainingData)
    assert fields(data.batch(1, [2])) == fields(PretrainingData(sources[0], seed=seed, **RECIPE).batch(1, [2]))
    weightless = open_data(sources, seed=seed, **RECIPE)
    assert isinstance(weightless, MixedData)
    assert weightless.counts == tuple(source.samples_per_epoch(0) for source in weightless.sources)


def test_validation_keeps_the_proportions(sources, seed):
    weights = (0.25, 0.25, 0.5)
    recipe = RECIPE | {"split": "validation", "validation_fraction": 0.4, "validation_mask_prob": 0.3}
    data = open_data(sources, weights, seed=seed, **recipe)
    size = data.samples_per_epoch(0)
    sizes = [source.samples_per_epoch(0) for source in data.sources]
    assert all(n <= own for n, own in zip(data.counts, sizes))
    assert any(n + 4 >= own for n, own in zip(data.counts, sizes))  # as many as the scarcest source allows
    drawn = data.drawn(0)
    assert data.drawn(3) is drawn
    for number in range(3):
        assert drawn.counter[drawn.source == number].tolist() == list(range(data.counts[number]))
    for stop in range(1, size + 1):
        assert abs(np.bincount(drawn.source[:stop], minlength=3) - np.array(data.counts) / size * stop).max() <= 1
    assert fields(data.samples([size + 1])) == fields(data.batch(0, [1]))
    assert len(data.batch(0, [0]).labels) == max(1, round(0.3 * int(data.lengths(0)[0] - 2)))


def test_unigrams(sources, seed):
    splits = [
        open_data(sources, (0.2, 0.5, 0.3), seed=seed, split=split, **RECIPE) for split in ("train", "validation")
    ]
    train, held_out = split_unigrams(*splits)
    for number, source in enumerate(splits[0].sources):
        own = unigram_counts(source.shards, objective="mlm", seed=source.seed)
        factor = splits[0].counts[number] / source.samples_per_epoch(0)
        rows = slice(FIRST_IDS[number], FIRST_IDS[number] + 3000)
        assert (train[rows] == np.ceil(own[0] * factor)[rows]).all()
        assert ((held_out > 0) == (own[1] > 0))[rows].all()
    alone = [open_data(sources[:1], seed=seed, split=split, **RECIPE) for split in ("train", "validation")]
    for left, right in zip(split_unigrams(*alone), unigram_counts(sources[0], objective="mlm", seed=seed)):
        assert (left == right).all()
    tokens = int((splits[0].lengths(0) - 2).sum())
    assert splits[0].tokens_per_epoch == pytest.approx(tokens, rel=0.3)  # documents differ in length


def test_apportioning():
    assert apportioned(10, (0.5, 0.25, 0.25)) == (5, 3, 2)
    assert apportioned(1, (0.3, 0.3, 0.4)) == (0, 0, 1)
    random = np.random.default_rng(0)
    for _ in range(200):
        weights = random.dirichlet(np.ones(5))
        counts = apportioned(997, weights.tolist())
        assert sum(counts) == 997
        assert (abs(np.array(counts) - 997 * weights) < 1).all()


def test_wrong_mixtures_are_one_line(sources, tmp_path, id_tokenizer):
    other = prepare([["7 8 9 10"] * 4] * 8, id_tokenizer(50), tmp_path / "other")
    for shards, weights, message in (
        ([sources[0], other], (0.5, 0.5), "was tokenized with a different vocabulary than .*source0; prepare both"),
        (sources, (0.5, 0.5), "2 weights for 3 sources"),
        (sources, (0.5, 0.5, 0.0), "a weight of 0.0 must be positive and finite"),
        (sources, (0.5, 0.5, float("nan")), "a weight of nan must be positive and finite"),
        (sources, (1e308, 1e308, 1e308), "the weights 1e+308 1e+308 1e+308 are too large".replace("+", r"\+")),
        (sources, (1e9, 1.0, 1.0), "source1: its share of 1e-09 is less than one of the"),
        (sources[:1], (0.5, 0.5), "2 weights for 1 sources"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            open_data(shards, weights, **RECIPE)
        assert "\n" not in str(caught.value)
    data = open_data(sources, **RECIPE)
    for call in (lambda: data.batch(0, [10**6]), lambda: data.batch(0, [-1]), lambda: data.samples([-1])):
        with pytest.raises(UserError):
            call()
    with pytest.raises(UserError, match="must have one max_length"):
        MixedData([PretrainingData(sources[0], max_length=n) for n in (16, 32)])
