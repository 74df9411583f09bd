"""Which text goes into which sample: pairs, segments, lengths. Every token has its own id, so text can be traced."""

import math

import numpy as np
import pytest

from fastbert import _C
from fastbert.data.pretraining import PretrainingData, special_tokens

LONG = [[20] * 60 for _ in range(40)]
ENDLESS = [[20] * 1000 for _ in range(8)]


class Plan:
    """An epoch's plan as columns, and where tokens belong."""

    def __init__(self, data: PretrainingData, epoch: int = 0) -> None:
        columns = data.plan(epoch).columns()
        self.a, self.a_length, self.b, self.b_length, self.label = columns
        self.length = self.a_length + self.b_length
        self.budget = data.max_length - special_tokens(data.objective)
        shards = data.shards
        self.sentence_ends = np.cumsum([len(shards.sentence(i)) for i in range(shards.num_sentences)])
        self.document_ends = self.sentence_ends[shards.document_ranges()[:, 1] - 1]

    def document(self, token):
        return np.searchsorted(self.document_ends, token, side="right")

    def sentence(self, token):
        return np.searchsorted(self.sentence_ends, token, side="right")

    def __len__(self) -> int:
        return len(self.a)


def within_binomial(successes: int, trials: int, probability: float) -> bool:
    """Within five standard deviations: a false alarm in two million."""
    sigma = math.sqrt(trials * probability * (1 - probability))
    return abs(successes - trials * probability) <= 5 * sigma + 1


@pytest.fixture
def mixed(make_shards, random_lengths, seed):
    return make_shards(random_lengths(seed, documents=300), shard_tokens=50_000)


@pytest.mark.parametrize("max_length", [5, 16, 64, 128, 512])
def test_next_sentence_pairs(mixed, seed, max_length):
    plan = Plan(PretrainingData(mixed, max_length=max_length, seed=seed))
    assert (plan.a_length >= 1).all()
    assert (plan.b_length >= 1).all()
    assert (plan.length <= plan.budget).all()
    # No segment leaves its document.
    assert (plan.document(plan.a) == plan.document(plan.a + plan.a_length - 1)).all()
    assert (plan.document(plan.b) == plan.document(plan.b + plan.b_length - 1)).all()
    # Half are true continuations, half from another document.
    assert within_binomial(int(plan.label.sum()), len(plan), 0.5)
    same = plan.document(plan.a) == plan.document(plan.b)
    assert (same == (plan.label == 0)).all()
    # A true continuation follows at once, up to what truncation took from the end of A and the front of B.
    gap = (plan.b - plan.a - plan.a_length)[plan.label == 0]
    assert (gap >= 0).all()
    assert (gap <= 2 * plan.budget).all()
    untruncated = plan.length[plan.label == 0] < plan.budget
    assert (gap[untruncated] == 0).all()


def test_pairs_meet_at_sentence_boundaries_or_inside_a_lone_sentence(mixed, seed):
    plan = Plan(PretrainingData(mixed, max_length=128, seed=seed))
    whole = (plan.label == 0) & (plan.length < plan.budget)
    starts_sentence = np.isin(plan.b, plan.sentence_ends)
    lone = whole & ~starts_sentence
    assert (plan.sentence(plan.a) == plan.sentence(plan.b + plan.b_length - 1))[lone].all()
    assert starts_sentence[whole].mean() > 0.5


def test_lone_sentences_are_cut_at_word_boundaries_and_stay_balanced(make_shards, seed):
    shards = make_shards([[30] for _ in range(3000)])
    plan = Plan(PretrainingData(shards, max_length=128, seed=seed))
    assert len(plan) > 2500
    assert within_binomial(int(plan.label.sum()), len(plan), 0.5)
    continues = (plan.b + 6) % 3 == 2  # the tokenizer's ids that continue a word; all ids here are above 8
    starts_sentence = plan.b % 30 == 0
    assert not continues[~starts_sentence].any()
    positives = plan.label == 0
    assert (plan.length[positives & (plan.a % 30 == 0)] == 30).all()


def test_a_sentence_longer_than_the_budget_is_used_in_full(make_shards, seed):
    shards = make_shards([[5000], [40] * 50, [40] * 50, [40] * 50])
    data = PretrainingData(shards, max_length=64, seed=seed, validation_fraction=0, objective="mlm+sop")
    plan = Plan(data)
    inside = plan.document(plan.a) == 0
    assert inside.sum() >= 5000 / plan.budget - 1
    ends = np.maximum(plan.a + plan.a_length, plan.b + plan.b_length)[inside].max()
    assert ends > 5000 - plan.budget
    assert (plan.length[inside] >= 1).all()


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm", "mlm+sop"])
def test_nine_tenths_are_full(make_shards, objective, seed):
    shards = make_shards(ENDLESS)

    def lengths(probability):
        recipe = {"objective": objective, "max_length": 64, "seed": seed, "short_sequence_prob": probability}
        plan = Plan(PretrainingData(shards, **recipe))
        return plan.length, plan.budget

    length, budget = lengths(0.1)
    full = int((length == budget).sum())
    assert full > 0.9 * len(length) - 5 * math.sqrt(0.09 * len(length)) - 40  # 5 leftovers of a document at most
    assert full < 0.97 * len(length)  # a short target near the budget may be reached by a sentence that fills it
    length, budget = lengths(0.0)
    assert (length == budget).mean() > 0.98
    length, budget = lengths(1.0)
    assert (length < budget).mean() > 0.5
    assert len(np.unique(length)) > 2


def test_length_does_not_tell_the_label(make_shards, random_lengths, seed):
    shards = make_shards(random_lengths(seed, documents=1500, sentences=(1, 30)))
    for max_length in (16, 64, 256):
        plan = Plan(PretrainingData(shards, max_length=max_length, seed=seed))
        full = plan.length == plan.budget
        counts = [np.bincount(full[plan.label == label], minlength=2) for label in (0, 1)]
        rates = [count[1] / count.sum() for count in counts]
        pooled = full.mean()
        sigma = math.sqrt(pooled * (1 - pooled) * sum(1 / count.sum() for count in counts))
        print(max_length, "full", rates, "sigma", sigma)
        assert abs(rates[0] - rates[1]) < 5 * sigma + 0.02


def test_negatives_come_from_every_document(make_shards, seed):
    plan = Plan(PretrainingData(make_shards(LONG), max_length=64, seed=seed, validation_fraction=0))
    drawn = np.bincount(plan.document(plan.b[plan.label == 1]), minlength=40)
    assert (drawn > 0).all()
    assert drawn.max() < 3 * drawn.mean()


def test_unused_sentences_of_a_negative_are_put_back(make_shards, seed):
    """Read as A only: the A segments of an epoch and the B segments of positives cover nearly all text."""
    shards = make_shards(LONG)
    plan = Plan(PretrainingData(shards, max_length=64, seed=seed, validation_fraction=0))
    covered = np.zeros(shards.num_tokens, bool)
    for i in range(len(plan)):
        covered[plan.a[i] : plan.a[i] + plan.a_length[i]] = True
        if plan.label[i] == 0:
            covered[plan.b[i] : plan.b[i] + plan.b_length[i]] = True
    assert covered.mean() > 0.75  # truncation leaves out the rest


def test_single_segments_cover_all_text_once(mixed, seed):
    data = PretrainingData(mixed, objective="mlm", max_length=64, seed=seed, validation_fraction=0)
    for epoch in range(2):
        plan = Plan(data, epoch)
        assert (plan.b_length == 0).all()
        assert (plan.label == 0).all()
        order = np.argsort(plan.a)
        starts, ends = plan.a[order], (plan.a + plan.a_length)[order]
        assert starts[0] == 0
        assert ends[-1] == mixed.num_tokens
        assert (starts[1:] == ends[:-1]).all()
        assert (plan.document(plan.a) == plan.document(plan.a + plan.a_length - 1)).all()


def test_sentence_order_pairs(mixed, seed):
    plan = Plan(PretrainingData(mixed, objective="mlm+sop", max_length=64, seed=seed))
    assert within_binomial(int(plan.label.sum()), len(plan), 0.5)
    assert ((plan.a < plan.b) == (plan.label == 0)).all()
    assert (plan.document(plan.a) == plan.document(plan.b)).all()
    whole = plan.length < plan.budget
    swapped = plan.label == 1
    assert (plan.a + plan.a_length == plan.b)[whole & ~swapped].all()
    assert (plan.b + plan.b_length == plan.a)[whole & swapped].all()


def test_order_is_a_fresh_permutation_each_epoch(make_shards, seed):
    data = PretrainingData(make_shards(LONG), objective="mlm", max_length=64, seed=seed, short_sequence_prob=0)
    first, second = Plan(data, 0), Plan(data, 1)
    assert sorted(first.a) == sorted(second.a)
    assert (first.a != second.a).mean() > 0.9
    assert abs(np.corrcoef(np.arange(len(first)), first.a)[0, 1]) < 0.3
    other = Plan(PretrainingData(data.shards, objective="mlm", max_length=64, seed=seed + 1, short_sequence_prob=0))
    assert len(other) == len(first)
    assert (other.a != first.a).any()


def test_pairs_are_fresh_each_epoch(mixed, seed):
    data = PretrainingData(mixed, max_length=64, seed=seed)
    pairs = [set(zip(plan.a.tolist(), plan.b.tolist())) for plan in (Plan(data, 0), Plan(data, 1))]
    assert len(pairs[0] & pairs[1]) < 0.3 * len(pairs[0])


def table(size: int = 10) -> _C.VocabularyTable:
    return _C.VocabularyTable(
        is_continuation=np.zeros(size, bool), replacements=np.array([1]), cls_id=2, sep_id=3, mask_id=4
    )


def corpus(tokens=(1, 2, 3, 4), sentences=(0, 2, 4), dtype=np.uint16) -> _C.TokenCorpus:
    return _C.TokenCorpus([(np.array(tokens, dtype), np.array(sentences, np.int64))])


DEFAULTS = {
    "objective": "mlm+nsp",
    "budget": 8,
    "short_probability": 0.1,
    "seed": 0,
    "epoch": 0,
    "validation": False,
}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda: corpus(sentences=(0, 2, 2, 4)), "does not rise", id="empty-sentence"),
        pytest.param(lambda: corpus(sentences=(0, 5)), "does not rise", id="past-the-end"),
        pytest.param(lambda: corpus(sentences=()), "does not rise", id="no-offsets"),
        pytest.param(lambda: corpus(dtype=np.int32), "uint16 or uint32", id="dtype"),
        pytest.param(lambda: _C.TokenCorpus([]), "at least one shard", id="no-shards"),
        pytest.param(lambda: plan(documents=[[0, 1]]), "at least 2 documents, not 1", id="one-document"),
        pytest.param(lambda: plan(documents=[[0, 1], [1, 3]]), "are not a document", id="range"),
        pytest.param(lambda: plan(documents=[[0, 1], [1, 1]]), "are not a document", id="empty-range"),
        pytest.param(lambda: plan(documents=[[-1, 1], [1, 2]]), "are not a document", id="negative-range"),
        pytest.param(lambda: plan(documents=[0, 1]), "shape", id="shape"),
        pytest.param(lambda: plan(objective="clm"), "objective must be mlm", id="objective"),
        pytest.param(lambda: plan(budget=1), "budget must be from 2", id="budget"),
        pytest.param(lambda: plan(short_probability=1.5), "from 0 to 1", id="probability"),
        pytest.param(lambda: plan(short_probability=float("nan")), "from 0 to 1", id="nan"),
        pytest.param(lambda: plan(epoch=-1), "epoch must be", id="epoch"),
        pytest.param(lambda: plan(size=4), "token 4 is outside the vocabulary of 4", id="vocabulary"),
    ],
)
def test_wrong_arguments_are_value_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def plan(documents=((0, 1), (1, 2)), size=10, **changes) -> _C.EpochPlan:
    small = size < 5
    vocabulary = _C.VocabularyTable(
        is_continuation=np.zeros(size, bool), replacements=np.array([1]), cls_id=2, sep_id=3, mask_id=3 if small else 4
    )
    return _C.EpochPlan(corpus(), np.array(documents, np.int64), vocabulary, **(DEFAULTS | changes))


def test_a_plan_of_another_corpus_is_refused():
    longer = _C.TokenCorpus([(np.ones(4000, np.uint16), np.arange(0, 4001, 2))])
    other = _C.EpochPlan(longer, np.array([[1990, 2000]]), table(), **DEFAULTS | {"objective": "mlm", "budget": 4})
    with pytest.raises(ValueError, match=r"are not in one shard of the corpus of 4 tokens"):
        other.collate(corpus(), np.array([0]), table(), mask_probability=0.15, exact_count=True, masking="token")


def test_plan_on_a_tiny_corpus():
    assert len(plan()) >= 2
