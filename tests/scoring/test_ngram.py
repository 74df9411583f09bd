"""The n-gram model against Chen and Goodman's formulas over dictionaries, and as a distribution."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from language_models import WORDS, tokenizer

from fastbert.errors import UserError
from fastbert.scoring.ngram import DISCOUNTS, train_ngrams
from fastbert.scoring.scorer import score_with

Gram = tuple[int, ...]
BEGIN, END = -1, -2


class Reference:
    """Interpolated modified Kneser-Ney, written as in the paper."""

    def __init__(self, sentences: list[list[int]], order: int, vocabulary: int) -> None:
        self.vocabulary = vocabulary + 1  # and the end
        rows = [[BEGIN, *sentence, END] for sentence in sentences]
        raw: dict[int, Counter[Gram]] = {
            size: Counter(tuple(row[at : at + size]) for row in rows for at in range(len(row) - size + 1))
            for size in range(1, order + 1)
        }
        self.counts: dict[int, dict[Gram, int]] = {order: dict(raw[order])}
        for size in range(1, order):
            before: dict[Gram, set[int]] = defaultdict(set)
            for gram in raw[size + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[size] = {
                gram: count if gram[0] == BEGIN else len(before[gram]) for gram, count in raw[size].items()
            }
        self.counts[1][(BEGIN,)] = 0

    def discount(self, size: int, count: int) -> float:
        values = Counter(self.counts[size].values())
        one, two, three, four = (values[number] for number in (1, 2, 3, 4))
        chosen = DISCOUNTS
        if one and two and three and four:
            y = one / (one + 2 * two)
            estimated = (1 - 2 * y * two / one, 2 - 3 * y * three / two, 3 - 4 * y * four / three)
            if all(0 < value <= number for number, value in enumerate(estimated, 1)):
                chosen = estimated
        return chosen[min(count, 3) - 1] if count else 0.0

    def probability(self, context: Gram, word: int) -> float:
        size = len(context) + 1
        lower = self.probability(context[1:], word) if context else 1 / self.vocabulary
        followers = {gram: count for gram, count in self.counts[size].items() if gram[:-1] == context}
        total = sum(followers.values())
        if not total:
            return lower
        count = self.counts[size].get((*context, word), 0)
        rest = sum(self.discount(size, each) for each in followers.values()) / total
        return (count - self.discount(size, count)) / total + rest * lower


def corpus(seed: int, count: int) -> list[str]:
    """Sentences in which some words follow others more often than not."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        words = [rng.choice(WORDS)]
        while len(words) < 8 and rng.random() < 0.85:
            at = WORDS.index(words[-1])
            words.append(WORDS[(at + rng.choice((1, 1, 1, 2, 2, 5))) % len(WORDS)])
        texts.append(" ".join(words))
    return texts


@pytest.mark.parametrize(("order", "count"), [(2, 60), (3, 60), (4, 3), (3, 400)])
def test_probabilities_are_those_of_the_paper(order: int, count: int) -> None:
    words = tokenizer()
    texts = corpus(seed=order, count=count)
    model = train_ngrams(texts, words, order)
    rows = [words(text, add_special_tokens=False)["input_ids"] for text in texts]
    reference = Reference(rows, order, len(words))
    assert (model.order, model.tokens) == (order, sum(map(len, rows)))
    assert model.sizes == [len(reference.counts[size]) for size in range(1, order + 1)]
    held_out = corpus(seed=9, count=6)
    scores = score_with(model, held_out)
    for text, begin in zip(held_out, scores.offsets.tolist()):
        row = [BEGIN, *words(text, add_special_tokens=False)["input_ids"]]
        for at in range(1, len(row)):
            expected = reference.probability(tuple(row[max(0, at - order + 1) : at]), row[at])
            assert scores.tokens[begin + at - 1] == pytest.approx(np.log(expected), abs=1e-10)


def test_probabilities_sum_to_one_and_know_the_text() -> None:
    words = tokenizer()
    model = train_ngrams(corpus(seed=0, count=300), words)
    for context in ([], [7], [7, 8, 9], [30, 31], [5] * 12):
        following = model.probabilities(context)
        assert following.shape == (len(words) + 1,)
        assert following.min() > 0
        assert following.sum() == pytest.approx(1.0, abs=1e-12)
    known = score_with(model, corpus(seed=0, count=20)).tokens.mean()
    shuffled = [" ".join(random.Random(3).sample(text.split(), len(text.split()))) for text in corpus(0, 20)]
    assert known > score_with(model, shuffled).tokens.mean() + 0.3
    assert len(score_with(model, [])) == 0
    few = train_ngrams((text for text in corpus(seed=0, count=40_000)), words, 2, most_tokens=100)
    assert 100 <= few.tokens < 100_000  # reading stops with the batch that reaches it


def test_wrong_orders_and_empty_corpora() -> None:
    for order in (1, 11, 2.5):
        with pytest.raises(UserError, match=f"order={order}"):
            train_ngrams(["a"], tokenizer(), order)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="holds no tokens"):
        train_ngrams(["", " "], tokenizer())
