"""An n-gram model with interpolated modified Kneser-Ney smoothing, a baseline for neural language models.

Chen and Goodman 1999, section 3; estimated as by Heafield et al. 2013, in numpy and in memory. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fastbert.errors import UserError, require_whole
from fastbert.scoring.tokenized_texts import Progress, TokenizedTexts
from fastbert.tasks.rows import bounds
from fastbert.tokenizers.tokenizer import Tokenizer

ORDER, HIGHEST = 5, 10
MOST_TOKENS = 50_000_000
"""Tokens that a model is estimated from: about 10 GB of memory for 5-grams."""
DISCOUNTS = (0.5, 1.0, 1.5)  # where a corpus has too few counts of 1 to 4 to estimate them
_BATCH_SENTENCES = 1 << 14


@dataclass(frozen=True, eq=False)
class _Order:
    """The n-grams of one length, sorted by key = context * symbols + symbol, where a context is the number of the
    n-gram that it is among those one shorter."""

    keys: np.ndarray
    """int64 (n-grams,)."""
    discounted: np.ndarray
    """Share of the n-gram in its context after discounting, float64 (n-grams,)."""
    backoff: np.ndarray
    """Share of each context that goes to shorter n-grams, float64 (contexts,); 1 for contexts that nothing follows."""


class NgramModel:
    """A trained model: probabilities of the tokens of texts, each given the `order` - 1 tokens before it at most.

    A text begins with a mark and ends with one; the beginning is part of contexts, the end is not scored.
    """

    max_tokens = None

    def __init__(self, tokenizer: Tokenizer, orders: Sequence[_Order], tokens: int) -> None:
        self.tokenizer = tokenizer
        self._orders = orders
        self.tokens = tokens
        """Tokens that the model was estimated from."""
        self._symbols = len(tokenizer) + 2
        self._begin, self._end = len(tokenizer), len(tokenizer) + 1

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self._orders)

    @property
    def sizes(self) -> list[int]:
        """The number of distinct n-grams of each length."""
        return [len(order.keys) for order in self._orders]

    def log_probabilities(self, texts: TokenizedTexts, progress: Progress | None = None) -> np.ndarray:
        """Return the natural logarithm of each token's probability given those before it, float64 (tokens,)."""
        symbols, _ = _marked(texts.ids, texts.offsets, self._begin, self._end)
        scored = np.ones(len(symbols), bool)
        scored[symbols == self._begin] = scored[symbols == self._end] = False
        scores = np.log(self._probabilities(symbols)[scored])
        if progress is not None:
            progress(1.0)
        return scores

    def probabilities(self, context: Sequence[int]) -> np.ndarray:
        """Return the probability of each token after the tokens `context` of the beginning of a text, and of the end as
        the last item: float64 (tokens + 1,), whose sum is 1."""
        candidates = np.append(np.arange(len(self.tokenizer)), self._end)
        rows = np.empty((len(candidates), len(context) + 2), np.int64)
        rows[:, 0], rows[:, 1:-1], rows[:, -1] = self._begin, context, candidates
        return self._probabilities(rows.ravel()).reshape(rows.shape)[:, -1]

    def _probabilities(self, symbols: np.ndarray) -> np.ndarray:
        """Return the probability of each symbol after those before it back to a mark of the beginning."""
        unigrams = self._orders[0]
        # Every symbol but the beginning has a probability; the unigrams that occur add to the uniform share.
        probabilities = np.full(len(symbols), unigrams.backoff[0] / (self._symbols - 1))
        ngrams = _find(unigrams.keys, symbols)
        probabilities += np.where(ngrams >= 0, unigrams.discounted[ngrams], 0.0)
        for order in self._orders[1:]:
            contexts = _before(ngrams, symbols == self._begin)
            ngrams = np.where(contexts >= 0, _find(order.keys, contexts * self._symbols + symbols), -1)
            shares = np.where(ngrams >= 0, order.discounted[ngrams], 0.0)
            backoff = np.where(contexts >= 0, order.backoff[contexts], 1.0)
            probabilities = shares + backoff * probabilities
        return probabilities


def train_ngrams(
    sentences: Iterable[str],
    tokenizer: Tokenizer,
    order: int = ORDER,
    most_tokens: int = MOST_TOKENS,
) -> NgramModel:
    """Estimate a model from sentences, each of them a text of its own, up to `most_tokens` tokens.

    Counts of the longest n-grams, and of those that begin a sentence, are their occurrences; of others the number of
    different tokens before them. Each length has three discounts, for counts of 1, 2 and more. Raises `UserError` for
    an order outside 2 to 10, and for sentences without a token.
    """
    require_whole("order", order, 2)
    if order > HIGHEST:
        raise UserError(f"order={order} must be at most {HIGHEST}")
    begin, end = len(tokenizer), len(tokenizer) + 1
    parts, tokens, source = [], 0, iter(sentences)
    while tokens < most_tokens and (batch := list(islice(source, _BATCH_SENTENCES))):
        ids, offsets = tokenizer.encode_ragged(batch)
        parts.append(_marked(ids, offsets, begin, end)[0])
        tokens += len(ids)
    if not tokens:
        raise UserError("the corpus of the n-gram model holds no tokens; name files with text")
    return NgramModel(tokenizer, _estimate(np.concatenate(parts), begin, end + 1, order), tokens)


def _marked(ids: np.ndarray, offsets: np.ndarray, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return texts between marks, int64 (symbols,), and their offsets."""
    sizes = np.diff(offsets)
    marked = bounds(sizes + 2)
    symbols = np.empty(marked[-1], np.int64)
    symbols[marked[:-1]], symbols[marked[1:] - 1] = begin, end
    inside = np.ones(len(symbols), bool)
    inside[marked[:-1]] = inside[marked[1:] - 1] = False
    symbols[inside] = ids[offsets[0] : offsets[-1]]
    return symbols, marked


def _before(ngrams: np.ndarray, is_begin: np.ndarray) -> np.ndarray:
    """Return the n-gram that ends before each symbol in its text, -1 for none."""
    contexts = np.empty_like(ngrams)
    contexts[:1], contexts[1:] = -1, ngrams[:-1]
    contexts[is_begin] = -1
    return contexts


def _find(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the index of each key among sorted ones, -1 where there is none."""
    indices = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[indices] == wanted, indices, -1)


def _estimate(symbols: np.ndarray, begin: int, count_symbols: int, order: int) -> list[_Order]:
    """Return the n-grams of each length up to `order` in symbols between marks."""
    is_begin = symbols == begin
    keys, ngrams, occurrences = np.unique(symbols, return_inverse=True, return_counts=True)
    starts = keys == begin  # n-grams that begin a text have no token before them
    contexts_of = np.zeros(len(keys), np.int64)
    orders, contexts = [], 1
    for length in range(1, order + 1):
        following = None
        if length < order:
            before = _before(ngrams, is_begin)
            longer = np.where(before >= 0, before * count_symbols + symbols, -1)
            longer_keys, places, longer_ngrams, longer_occurrences = np.unique(
                longer, return_index=True, return_inverse=True, return_counts=True
            )
            if longer_keys[0] == -1:  # positions without so many symbols before them
                longer_keys, places, longer_occurrences = longer_keys[1:], places[1:], longer_occurrences[1:]
                longer_ngrams = longer_ngrams - 1
            following = (longer_keys, longer_ngrams, longer_occurrences)
            different = np.bincount(ngrams[places], minlength=len(keys))
            counts = np.where(starts, occurrences, different)
        else:
            counts = occurrences
        if length == 1:
            counts[starts] = 0  # the beginning is given, not predicted
        orders.append(_smoothed(keys, counts, contexts_of, contexts))
        if following is not None:
            contexts, starts_before = len(keys), starts
            keys, ngrams, occurrences = following
            contexts_of = keys // count_symbols
            starts = starts_before[contexts_of]
    return orders


def _smoothed(keys: np.ndarray, counts: np.ndarray, contexts_of: np.ndarray, contexts: int) -> _Order:
    """Return n-grams of one length with their shares, from counts and the number of each one's context."""
    discounts = _discounts(counts)
    total = np.bincount(contexts_of, weights=counts, minlength=contexts)
    discount = discounts[np.minimum(counts, 3)]
    removed = np.bincount(contexts_of, weights=discount, minlength=contexts)
    backoff = np.divide(removed, total, out=np.ones(contexts), where=total > 0)
    shares = np.divide(counts - discount, total[contexts_of], out=np.zeros(len(keys)), where=counts > 0)
    return _Order(keys, shares, backoff)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """Return the discounts of counts of 0, 1, 2, and more, float64 (4,).

    Chen and Goodman 1999, equation 26; `DISCOUNTS` where the counts of counts give none between 0 and the count.
    """
    one, two, three, four = (int((counts == number).sum()) for number in (1, 2, 3, 4))
    discounts = np.array((0.0, *DISCOUNTS))
    if not (one and two and three and four):
        return discounts
    ratio = one / (one + 2 * two)
    estimated = (1 - 2 * ratio * two / one, 2 - 3 * ratio * three / two, 3 - 4 * ratio * four / three)
    if all(0 < value <= count for count, value in enumerate(estimated, 1)):
        discounts[1:] = estimated
    return discounts
