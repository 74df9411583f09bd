"""The masked-language-model corruption and the layout of a batch."""

import math

import numpy as np
import pytest

from fastbert import _C
from fastbert.data.continuations import continued
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData

CLS, SEP, MASK = 3, 4, 5


def batch_of(data: PretrainingData, epoch: int = 0):
    return data.batch(epoch, np.arange(data.samples_per_epoch(epoch)))


def original_ids(batch) -> np.ndarray:
    ids = batch.input_ids.numpy().copy()
    ids[batch.masked_positions.numpy()] = batch.labels.numpy()
    return ids


def near(successes: int, trials: int, probability: float) -> bool:
    return abs(successes - trials * probability) <= 5 * math.sqrt(trials * probability * (1 - probability)) + 1


@pytest.fixture
def shards(make_shards, random_lengths, seed):
    return make_shards(random_lengths(seed, documents=200))


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm", "mlm+sop"])
def test_layout(shards, objective, seed):
    data = PretrainingData(shards, objective=objective, max_length=64, seed=seed)
    batch = batch_of(data)
    a, a_length, b, b_length, label = data.plan(0).columns()
    ids = original_ids(batch)
    bounds = batch.cu_seqlens.numpy()
    assert bounds[0] == 0
    assert bounds[-1] == batch.num_tokens
    assert batch.max_seqlen == np.diff(bounds).max() <= 64
    for i in range(len(batch)):
        # Token t of the corpus has id t + 6.
        first = np.arange(a[i], a[i] + a_length[i]) + 6
        second = np.arange(b[i], b[i] + b_length[i]) + 6
        expected = [CLS, *first, SEP] if objective == "mlm" else [CLS, *first, SEP, *second, SEP]
        types = [0] * (a_length[i] + 2) + [1] * (len(expected) - a_length[i] - 2)
        here = slice(bounds[i], bounds[i + 1])
        assert ids[here].tolist() == expected
        assert batch.token_type_ids[here].tolist() == types
        assert batch.position_ids[here].tolist() == list(range(len(expected)))
        assert (batch.sequence_ids[here] == i).all()
    if objective == "mlm":
        assert batch.next_sentence_label is None
    else:
        assert (batch.next_sentence_label.numpy() == label).all()


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("mask_prob", [0.0, 0.001, 0.15, 0.4, 1.0])
def test_rates(shards, seed, mask_prob, exact, whole_word):
    data = PretrainingData(
        shards, max_length=64, seed=seed, mask_prob=mask_prob, exact_mask_count=exact, whole_word=whole_word
    )
    batch = batch_of(data)
    positions = batch.masked_positions.numpy()
    assert (np.diff(positions) > 0).all()
    ids = original_ids(batch)
    assert not np.isin(ids[positions], [CLS, SEP]).any()
    maskable = np.bincount(batch.sequence_ids.numpy(), minlength=len(batch)) - 3
    chosen = np.bincount(batch.sequence_ids.numpy()[positions], minlength=len(batch))
    if mask_prob == 0:
        assert len(positions) == 0
    elif mask_prob == 1:
        assert (chosen == maskable).all()
    elif exact:
        expected = np.maximum(1, np.floor(mask_prob * maskable + 0.5))
        if whole_word:
            assert (
                chosen <= np.maximum(expected, 2)
            ).all()  # at least one word, and the words here have up to 2 pieces
            assert (chosen >= 1).all()
            assert chosen.sum() > 0.8 * expected.sum()
        else:
            assert (chosen == expected).all()
    else:
        words = maskable.sum() if not whole_word else maskable.sum() // 2
        spread = 5 * math.sqrt(words * mask_prob * (1 - mask_prob)) * (2 if whole_word else 1) + 2
        assert abs(chosen.sum() - mask_prob * maskable.sum()) < spread


def test_eighty_ten_ten(shards, seed):
    batch = batch_of(PretrainingData(shards, max_length=64, seed=seed, mask_prob=0.5))
    now = batch.input_ids.numpy()[batch.masked_positions.numpy()]
    before = batch.labels.numpy()
    masked, unchanged = int((now == MASK).sum()), int((now == before).sum())
    print(f"{masked / len(now):.4f} masked, {unchanged / len(now):.4f} kept of {len(now)}")
    assert near(masked, len(now), 0.8)
    assert near(unchanged, len(now), 0.1)
    assert near(len(now) - masked - unchanged, len(now), 0.1)
    # Everything that is not chosen is untouched: the original text is whole.
    assert (np.diff(now[now != MASK]) != 0).any()


@pytest.mark.parametrize(
    "rule", [(1.0, 0.0, 0.0), (0.8, 0.0, 0.2), (0.8, 0.2, 0.0), (0.0, 0.2, 0.8), (0.0, 0.0, 1.0), (0.25, 0.5, 0.25)]
)
def test_replacement_rules(shards, seed, rule):
    """Table 8 of the BERT paper: the rule changes what a masked token becomes, and nothing else."""
    for split in ("train", "validation"):
        recipe = {"max_length": 64, "seed": seed, "mask_prob": 0.5, "split": split}
        usual = batch_of(PretrainingData(shards, **recipe))
        data = PretrainingData(shards, mask_replacement=rule, **recipe)
        batch = batch_of(data)
        for name in ("masked_positions", "labels", "cu_seqlens", "dropout_key"):
            assert (getattr(batch, name) == getattr(usual, name)).all(), name
        assert (original_ids(batch) == original_ids(usual)).all()
        now, before = batch.input_ids.numpy()[batch.masked_positions.numpy()], batch.labels.numpy()
        masked, unchanged = int((now == MASK).sum()), int((now == before).sum())
        for count, share in zip((masked, len(now) - masked - unchanged, unchanged), rule, strict=True):
            # A random token is the original one in a few of a thousand.
            assert near(count, len(now), share), (rule, split)
            assert count == 0 or share > 0 or count < 0.01 * len(now)
        alone = data.batch(0, [len(batch) - 1])
        assert (alone.input_ids == batch[len(batch) - 1].input_ids).all()


def test_every_position_is_chosen_equally_often(make_shards, seed):
    data = PretrainingData(make_shards([[61]] * 400), objective="mlm", max_length=63, seed=seed, short_sequence_prob=0)
    histogram = np.zeros(63, int)
    for epoch in range(20):
        batch = batch_of(data, epoch)
        histogram += np.bincount(batch.position_ids.numpy()[batch.masked_positions.numpy()], minlength=63)
    assert histogram[0] == 0
    assert histogram[62] == 0
    expected = histogram.sum() / 61
    chi_square = ((histogram[1:62] - expected) ** 2 / expected).sum()
    print("chi-square of 60 degrees of freedom:", chi_square)
    assert chi_square < 60 + 6 * math.sqrt(120)


def test_random_tokens_are_never_special_or_unused_and_otherwise_uniform(tmp_path, id_tokenizer, seed):
    tokenizer = id_tokenizer(26)
    documents = [[" ".join(["7"] * 50)] * 40 for _ in range(60)]
    shards = prepare(documents, tokenizer, tmp_path / "out")
    batch = batch_of(PretrainingData(shards, max_length=64, seed=seed, mask_prob=1.0))
    drawn = batch.input_ids.numpy()[batch.masked_positions.numpy()]
    drawn = drawn[(drawn != MASK) & (drawn != 7)]
    counts = np.bincount(drawn, minlength=26)
    assert counts[:6].sum() == 0  # [PAD] [unused0] [UNK] [CLS] [SEP] [MASK]
    ordinary = np.delete(counts[6:], 1)
    assert (abs(ordinary - ordinary.mean()) < 6 * math.sqrt(ordinary.mean())).all()


def test_special_tokens_are_special_by_position_not_by_id(tmp_path, id_tokenizer, seed):
    """Text that spells [SEP] is text like any other."""
    documents = [[f"{SEP} {CLS} 7"] * 30 for _ in range(20)]
    shards = prepare(documents, id_tokenizer(20), tmp_path / "out")
    batch = batch_of(PretrainingData(shards, max_length=32, seed=seed, mask_prob=1.0))
    assert {SEP, CLS, 7} == set(batch.labels.tolist())
    lengths = batch.cu_seqlens.diff()
    assert len(batch.labels) == int(lengths.sum()) - 3 * len(batch)


def test_the_commonest_mark_decides_which_tokens_continue_words() -> None:
    """Byte-level vocabularies hold "###", and those of WordPiece may hold "▁"."""
    assert continued(["###", "Ġ", "Ġhouse", "s", "Ġa"]) == [True, False, False, True, False]
    assert continued(["###", "▁house", "s", "▁a"]) == [True, False, True, False]
    assert continued(["un", "##kind", "##s", "##", "▁"]) == [False, True, True, True, False]
    assert continued(["one", "two"]) == [False, False]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("mask_prob", [0.15, 0.6])
def test_whole_words(shards, seed, exact, mask_prob):
    data = PretrainingData(
        shards, max_length=48, seed=seed, whole_word=True, exact_mask_count=exact, mask_prob=mask_prob
    )
    batch = batch_of(data)
    ids, bounds = original_ids(batch), batch.cu_seqlens.numpy()
    chosen = np.zeros(len(ids), bool)
    chosen[batch.masked_positions.numpy()] = True
    special = np.zeros(len(ids), bool)
    special[bounds[:-1]] = special[bounds[1:] - 1] = True
    special[np.flatnonzero(np.diff(batch.token_type_ids.numpy()) == 1)] = True
    continues = (ids >= 8) & (ids % 3 == 2) & ~special
    follows_text = np.concatenate([[False], ~special[:-1]])
    pieces = np.flatnonzero(continues & follows_text)
    assert len(pieces) > 1000
    assert (chosen[pieces] == chosen[pieces - 1]).all()


def test_masks_are_fresh_each_epoch_and_differ_between_splits(make_shards, seed):
    shards = make_shards([[60]] * 100)
    recipe = {"objective": "mlm", "max_length": 62, "seed": seed, "validation_fraction": 0.5}
    train = PretrainingData(shards, **recipe)
    validation = PretrainingData(shards, split="validation", **recipe)
    first, second, held_out = (batch_of(train, 0), batch_of(train, 1), batch_of(validation))
    assert len(first.masked_positions) == len(second.masked_positions) == len(held_out.masked_positions)
    assert (first.masked_positions != second.masked_positions).any()
    assert (first.masked_positions != held_out.masked_positions).any()
    keys = [batch.dropout_key.tolist() for batch in (first, second, held_out)]
    assert len({key for row in keys for key in row}) == 150


def tiny_plan():
    corpus = _C.TokenCorpus([(np.array([5, 6, 7, 8], np.uint32), np.array([0, 2, 4]))])
    vocabulary = _C.VocabularyTable(
        is_continuation=np.zeros(9, bool), replacements=np.array([5]), cls_id=1, sep_id=2, mask_id=3
    )
    plan = _C.EpochPlan(
        corpus,
        np.array([[0, 1], [1, 2]]),
        vocabulary,
        objective="mlm",
        budget=4,
        short_probability=0.0,
        seed=0,
        epoch=0,
        validation=False,
    )
    return corpus, vocabulary, plan


def test_wrong_arguments_are_errors():
    corpus, vocabulary, plan = tiny_plan()
    recipe = {"mask_probability": 0.15, "exact_count": True, "masking": "token"}
    assert len(plan.collate(corpus, np.array([1, 0, 0]), vocabulary, **recipe)["cu_seqlens"]) == 4
    assert plan.collate(corpus, np.zeros(0, np.int64), vocabulary, **recipe)["cu_seqlens"].tolist() == [0]
    for probability in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="mask_prob must be from 0 to 1"):
            plan.collate(corpus, np.array([0]), vocabulary, **recipe | {"mask_probability": probability})
    for shares in ((0.8, 0.1, 0.2), (1.1, -0.1, 0.0), (float("nan"), 0.0, 1.0)):
        with pytest.raises(ValueError, match="mask_replacement"):
            plan.collate(corpus, np.array([0]), vocabulary, **recipe, mask_replacement=shares)
    for index in (-1, 2, 1 << 40):
        with pytest.raises(IndexError, match=f"sample {index} of an epoch of 2 samples"):
            plan.collate(corpus, np.array([index]), vocabulary, **recipe)
    small = _C.VocabularyTable(
        is_continuation=np.zeros(6, bool), replacements=np.array([5]), cls_id=1, sep_id=2, mask_id=3
    )
    with pytest.raises(ValueError, match="outside the vocabulary of 6"):
        plan.collate(corpus, np.array([0, 1]), small, **recipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replacements": np.zeros(0, np.int64)}, "at least one id"),
        ({"replacements": np.array([9])}, "replacements 9 is outside the vocabulary of 9"),
        ({"mask_id": -1}, "mask_id -1 is outside"),
        ({"cls_id": 9}, "cls_id 9 is outside"),
        ({"sep_id": 1 << 40}, "is outside"),
    ],
)
def test_vocabulary_tables_are_checked(change, message):
    good = {"is_continuation": np.zeros(9, bool), "replacements": np.array([5]), "cls_id": 1, "sep_id": 2, "mask_id": 3}
    with pytest.raises(ValueError, match=message):
        _C.VocabularyTable(**good | change)
