"""Splits, epochs and batches: the same samples whoever makes them, in whatever batches."""

import dataclasses
import hashlib
import itertools
import math
import pickle

import numpy as np
import pytest
import torch

from fastbert.data.pretraining import PretrainingData, split_documents, unigram_counts, unigram_cross_entropy
from fastbert.errors import CorpusError, UserError
from fastbert.packing import PackedBatch


def fields_of(batch: PackedBatch) -> dict:
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


def assert_same(left: PackedBatch, right: PackedBatch) -> None:
    for name, value in fields_of(left).items():
        other = fields_of(right)[name]
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, name


def one_by_one(batch: PackedBatch) -> list[PackedBatch]:
    return [batch[i] for i in range(len(batch))]


@pytest.mark.parametrize(
    ("objective", "digest"),
    [
        ("mlm+nsp", "2bb4a542e46e3866"),
        ("mlm", "bb30991e56332a72"),
        ("mlm+sop", "2e5f170d24e77bda"),
        ("ltr", "2105fb0dde044033"),
    ],
)
def test_a_seed_keeps_its_meaning(make_shards, objective, digest):
    """Samples of a fixed corpus, as first released: a change here breaks the resumption of every run."""
    shards = make_shards([[3 + (i * j) % 17 for j in range(i % 9 + 3)] for i in range(40)])
    data = PretrainingData(shards, objective=objective, max_length=40, seed=2**63 + 5)
    hashed = hashlib.sha256()
    for value in fields_of(data.batch(3, np.arange(data.samples_per_epoch(3)))).values():
        hashed.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else str(value).encode())
    assert hashed.hexdigest()[:16] == digest


@pytest.fixture
def shards(make_shards, random_lengths, seed):
    return make_shards(random_lengths(seed, documents=50), shard_tokens=5000)


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm", "mlm+sop"])
def test_a_sample_does_not_depend_on_its_batch(shards, objective, seed):
    recipe = {"objective": objective, "max_length": 48, "seed": seed}
    data = PretrainingData(shards, **recipe)
    size = data.samples_per_epoch(3)
    together = one_by_one(data.batch(3, np.arange(size)))
    random = np.random.default_rng(seed)
    fresh = PretrainingData(shards, **recipe)
    for _ in range(5):
        chosen = random.integers(size, size=9)
        for index, sample in zip(chosen, one_by_one(fresh.batch(3, chosen))):
            assert_same(sample, together[index])


def test_fields_have_the_promised_types(shards, seed):
    batch = PretrainingData(shards, seed=seed).batch(0, [0, 1, 2])
    assert len(batch) == 3
    for name, value in fields_of(batch).items():
        if name == "max_seqlen":
            assert isinstance(value, int)
        else:
            assert value.dtype == (torch.int32 if name == "cu_seqlens" else torch.int64), name
    derived = PackedBatch(input_ids=batch.input_ids, cu_seqlens=batch.cu_seqlens, max_seqlen=batch.max_seqlen)
    assert torch.equal(batch.position_ids, derived.position_ids)
    assert torch.equal(batch.sequence_ids, derived.sequence_ids)
    assert len(PretrainingData(shards, seed=seed).batch(0, [])) == 0


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("num_workers", [1, 4])
def test_workers_change_nothing(shards, seed, num_workers):
    recipe = {"max_length": 64, "seed": seed}
    alone, shared = PretrainingData(shards, **recipe), PretrainingData(shards, **recipe)
    stop = alone.samples_per_epoch(0) + 100  # across an epoch's end
    expected = list(alone.step_batches(32, stop=stop))
    batches = list(shared.step_batches(32, stop=stop, num_workers=num_workers))
    assert len(batches) == len(expected) == math.ceil(stop / 32)
    for left, right in zip(expected, batches):
        assert_same(left, right)


def test_spawned_workers_reopen_the_shards(shards, seed):
    data = PretrainingData(shards, max_length=64, seed=seed, whole_word=True)
    assert_same(pickle.loads(pickle.dumps(data)).batch(1, [5, 3]), data.batch(1, [5, 3]))


@pytest.mark.parametrize("start", [0, 17, 1000])
def test_a_run_resumes_at_any_sample(shards, seed, start):
    recipe = {"max_length": 48, "seed": seed}
    whole = PretrainingData(shards, **recipe)
    batches = PretrainingData(shards, **recipe).step_batches(16, start=start)
    for number, batch in enumerate(itertools.islice(batches, 5)):
        assert_same(batch, whole.samples(range(start + 16 * number, start + 16 * (number + 1))))


def test_ranks_share_a_step(shards, seed):
    data = PretrainingData(shards, max_length=48, seed=seed)
    whole = one_by_one(next(data.step_batches(12)))
    for rank in range(3):
        part = one_by_one(next(data.step_batches(12, rank=rank, world_size=3)))
        assert len(part) == 4
        for left, right in zip(part, whole[rank::3]):
            assert_same(left, right)


def test_samples_across_epochs(shards, seed):
    data = PretrainingData(shards, max_length=48, seed=seed)
    sizes = [data.samples_per_epoch(epoch) for epoch in range(4)]
    ends = np.cumsum(sizes)
    assert data.locate(0) == (0, 0)
    assert data.locate(int(ends[0]) - 1) == (0, sizes[0] - 1)
    assert data.locate(int(ends[0])) == (1, 0)
    assert data.locate(int(ends[2]) + 5) == (3, 5)
    counters = [int(ends[1]) - 1, int(ends[1]), 0, int(ends[0]), int(ends[0]) + 1]
    batch = data.samples(counters)
    assert batch.max_seqlen == int(batch.cu_seqlens.diff().max())
    for counter, sample in zip(counters, one_by_one(batch)):
        epoch, index = data.locate(counter)
        assert_same(sample, data.batch(epoch, [index]))
    assert len(data.samples([])) == 0


def test_validation_is_fixed(shards, seed):
    data = PretrainingData(shards, max_length=48, seed=seed, split="validation")
    size = data.samples_per_epoch(0)
    assert data.samples_per_epoch(7) == size
    assert_same(data.batch(7, np.arange(size)), data.batch(0, np.arange(size)))
    assert data.locate(2 * size + 3) == (2, 3)
    assert_same(data.samples([2 * size + 3]), data.batch(0, [3]))


@pytest.mark.parametrize(
    ("documents", "fraction", "objective", "expected"),
    [(50, 0.1, "mlm+nsp", 5), (5, 0.1, "mlm+nsp", 2), (4, 0.9, "mlm+nsp", 2), (5, 0.1, "mlm", 1), (20, 0, "mlm", 0)],
)
def test_the_split_is_exact_and_disjoint(make_shards, documents, fraction, objective, expected):
    shards = make_shards([[3, 4]] * documents)
    splits = []
    for seed in range(20):
        train, validation = split_documents(shards, objective=objective, seed=seed, validation_fraction=fraction)
        assert len(validation) == expected
        assert sorted([*train.tolist(), *validation.tolist()]) == shards.document_ranges().tolist()
        assert train.tolist() == sorted(train.tolist())
        splits.append(str(validation))
    assert len(set(splits)) > 1 or expected == 0


def test_the_splits_share_no_text(shards, seed):
    texts = []
    for split in ("train", "validation"):
        data = PretrainingData(shards, max_length=48, seed=seed, split=split, mask_prob=0)
        ids = set()
        for epoch in range(3):
            ids |= set(data.batch(epoch, np.arange(data.samples_per_epoch(epoch))).input_ids.tolist())
        texts.append({i for i in ids if i >= 6})
    assert texts[0]
    assert texts[1]
    assert not texts[0] & texts[1]


def test_one_document_is_split_inside(make_shards):
    shards = make_shards([[10] * 20])
    for objective in ("mlm", "mlm+sop"):
        train, validation = split_documents(shards, objective=objective, validation_fraction=0.1)
        assert train.tolist() == [[0, 18]]
        assert validation.tolist() == [[18, 20]]
        data = PretrainingData(shards, objective=objective, max_length=16, split="validation")
        assert min(data.batch(0, [0]).labels.tolist()) >= 6 + 180


def test_unigram_cross_entropy(make_shards, tmp_path, id_tokenizer):
    from fastbert.data.prepare import prepare

    random = np.random.default_rng(0)
    documents = [[" ".join(map(str, random.zipf(1.5, size=40).clip(6, 40)))] for _ in range(30)]
    shards = prepare(documents, id_tokenizer(41), tmp_path / "out")
    train, validation = split_documents(shards, seed=3)
    counts = []
    for part in (train, validation):
        tokens = [int(token) for first, last in part for i in range(first, last) for token in shards.sentence(i)]
        counts.append(np.bincount(tokens, minlength=41))
    probabilities = (counts[0] + 1) / (counts[0] + 1).sum()
    expected = -(counts[1] * np.log(probabilities)).sum() / counts[1].sum()
    assert unigram_cross_entropy(*unigram_counts(shards, seed=3)) == pytest.approx(expected, rel=1e-12)
    assert 0 < expected < math.log(41)


@pytest.mark.parametrize(
    ("lengths", "options", "error", "message"),
    [
        pytest.param([[5, 5]], {}, CorpusError, "only one document.*--objective mlm", id="one-document"),
        pytest.param(
            [[5, 5]] * 3, {}, CorpusError, "only 3 documents.*at least 4.*--objective mlm", id="three-documents"
        ),
        pytest.param([[50]], {"objective": "mlm"}, CorpusError, "a single sentence", id="one-sentence"),
        pytest.param([[1]] * 4, {}, CorpusError, "too short for one sample", id="one-token-documents"),
        pytest.param([[5, 5]] * 9, {"max_length": 4}, UserError, "max_length=4 must be from 5", id="max-length-pairs"),
        pytest.param(
            [[5, 5]] * 9,
            {"max_length": 2, "objective": "mlm"},
            UserError,
            "max_length=2 must be from 3",
            id="max-length",
        ),
        pytest.param([[5, 5]] * 9, {"max_length": 1 << 30}, UserError, "max_length=1073741824", id="max-length-huge"),
        pytest.param([[5, 5]] * 9, {"objective": "clm"}, UserError, "objective='clm' must be one of", id="objective"),
        pytest.param([[5, 5]] * 9, {"split": "test"}, UserError, "split='test'", id="split"),
        pytest.param([[5, 5]] * 9, {"mask_prob": 1.5}, UserError, "mask_prob=1.5 must be from 0 to 1", id="mask-prob"),
        pytest.param(
            [[5, 5]] * 9, {"mask_replacement": (0.8, 0.1, 0.2)}, UserError, "add up to 1", id="mask-replacement"
        ),
        pytest.param([[5, 5]] * 9, {"short_sequence_prob": -1}, UserError, "short_sequence_prob=-1", id="short-prob"),
        pytest.param([[5, 5]] * 9, {"seed": -1}, UserError, "seed=-1", id="seed"),
        pytest.param([[5, 5]] * 9, {"validation_fraction": 1.0}, UserError, "validation_fraction=1.0", id="fraction"),
        pytest.param(
            [[5, 5]] * 9,
            {"validation_fraction": 0.0, "split": "validation"},
            UserError,
            "leaves no validation documents",
            id="no-validation",
        ),
    ],
)
def test_wrong_input_is_one_line(make_shards, lengths, options, error, message):
    shards = make_shards(lengths)
    with pytest.raises(error, match=message) as caught:
        PretrainingData(shards, **options)
    assert "\n" not in str(caught.value)


def test_wrong_samples_are_one_line(shards):
    data = PretrainingData(shards)
    size = data.samples_per_epoch(2)
    for call in (
        lambda: data.batch(2, [size]),
        lambda: data.batch(2, [-1]),
        lambda: data.batch(-1, [0]),
        lambda: data.locate(-1),
        lambda: data.step_batches(2, rank=2, world_size=2),
        lambda: data.step_batches(1, world_size=2),
    ):
        with pytest.raises(UserError):
            call()


@pytest.mark.parametrize("max_length", [5, 6, 7, 16])
@pytest.mark.parametrize("lengths", [[[1, 1]] * 4, [[1]] * 3 + [[2, 9]] * 4, [[300], [1, 1], [1], [2], [7]]])
def test_awkward_corpora_do_not_stumble(make_shards, lengths, max_length):
    for objective in ("mlm+nsp", "mlm", "mlm+sop"):
        data = PretrainingData(
            make_shards(lengths),
            objective=objective,
            max_length=max_length,
            validation_fraction=0,
            short_sequence_prob=0.5,
        )
        for epoch in range(20):
            batch = data.batch(epoch, np.arange(data.samples_per_epoch(epoch)))
            assert batch.max_seqlen <= max_length
