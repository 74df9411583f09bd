"""Span masking (SpanBERT): an independent implementation in Python draws the same spans; their lengths and shares."""

import itertools
import math

import numpy as np
import pytest

from fastbert import _C
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.errors import UserError

CLS, SEP, MASK = 3, 4, 5
MASKED_POSITIONS, MASKED_TOKENS = 2, 3  # purposes of random_stream.h


def words_of(seed: int, epoch: int, sample: int, purpose: int, validation: bool = False):
    """Yield the 32-bit words of a stream of random numbers, as random_stream.h names them."""
    for block in itertools.count():
        last = (sample >> 32) | purpose << 16 | int(validation) << 31
        yield from _C.philox4x32([block, epoch, sample & 0xFFFFFFFF, last], [seed & 0xFFFFFFFF, seed >> 32])


def below(stream, bound: int) -> int:
    while (product := next(stream) * bound) % 2**32 < 2**32 % bound:
        pass
    return product >> 32


def chance(stream, probability: float) -> bool:
    return next(stream) < int(probability * 2**32)


def span_length(stream) -> int:
    """Invert the distribution function of lengths 1 to 10 with P(n) ~ 0.8 ** n."""
    weights = [0.8**n for n in range(10)]
    u, total = next(stream) / 2**32, 0.0
    for length, weight in enumerate(weights, 1):
        total += weight / sum(weights)
        if u < total:
            return length
    return 10


def oracle(ids, segments, continues, replacements, rate, shares, names) -> tuple[list[int], set[int]]:
    """Return the corrupted ids and the masked positions of one sequence, by sets of positions as in the released code.

    `segments`: lists of the positions that may be masked. `names`: (seed, epoch, sample, validation).
    """
    seed, epoch, sample, validation = names
    words = []  # (segment, positions)
    for number, positions in enumerate(segments):
        for place, i in enumerate(positions):
            if place and continues[ids[i]]:
                words[-1][1].append(i)
            else:
                words.append((number, [i]))
    count = sum(map(len, segments))
    target = max(1, math.floor(rate * count + 0.5)) if rate else 0
    draws = words_of(seed, epoch, sample, MASKED_POSITIONS, validation)
    masked: set[int] = set()
    free = list(range(len(words)))  # a word that is taken leaves its place to the last one
    while len(masked) < target and free:
        length = span_length(draws)
        start = free[below(draws, len(free))]
        for word in range(start, start + length):
            if word >= len(words) or words[word][0] != words[start][0] or len(masked) >= target:
                break
            if word in free:
                free[free.index(word)] = free[-1]
                free.pop()
            for i in words[word][1]:
                if len(masked) < target:
                    masked.add(i)
    kinds = words_of(seed, epoch, sample, MASKED_TOKENS, validation)
    out = list(ids)
    for positions in segments:
        for run, group in itertools.groupby(positions, key=masked.__contains__):
            if not run:
                continue
            mask = chance(kinds, shares[0])
            random = not mask and chance(kinds, shares[1] / (shares[1] + shares[2]) if shares[1] else 0.0)
            for i in group:
                if mask:
                    out[i] = MASK
                elif random:
                    out[i] = replacements[below(kinds, len(replacements))]
    return out, masked


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
def test_the_reference_draws_the_same_spans(make_shards, random_lengths, id_tokenizer, objective, seed):
    shards = make_shards(random_lengths(seed, documents=60, sentences=(1, 12)))
    vocabulary = np.array(shards.vocabulary)
    continues = [token.startswith("##") for token in vocabulary]
    replacements = list(range(6, len(vocabulary)))
    rates, shares = (0.15, 0.4, 1.0, 0.0, 0.01), ((0.8, 0.1, 0.1), (0.5, 0.5, 0.0), (0.0, 0.3, 0.7))
    for number, split in enumerate(("train", "validation", "train")):
        data = PretrainingData(
            shards,
            objective=objective,
            max_length=(64, 16, 128)[number],
            masking="span",
            mask_replacement=shares[number],
            seed=seed + (1 << 40),
            split=split,
            validation_fraction=0.2,
            short_sequence_prob=0.3,
        )
        epoch = 3 if split == "train" else 0
        for rate in rates:
            size = data.samples_per_epoch(epoch)
            batch = data.batch(epoch, np.arange(size), mask_prob=rate)
            ids, bounds = batch.input_ids.numpy().copy(), batch.cu_seqlens.numpy()
            where = batch.masked_positions.numpy()
            corrupted = ids.copy()
            ids[where] = batch.labels.numpy()
            a_length = data.plan(epoch).columns()[1]
            assert (np.diff(where) > 0).all()
            for i in range(size):
                here = slice(bounds[i], bounds[i + 1])
                length = int(bounds[i + 1] - bounds[i])
                a_end = int(a_length[i]) + 1
                segments = [range(1, a_end)] + ([range(a_end + 1, length - 1)] if objective != "mlm" else [])
                names = (data.seed, epoch, i, split == "validation")
                expected, masked = oracle(
                    ids[here].tolist(), segments, continues, replacements, rate, shares[number], names
                )
                assert corrupted[here].tolist() == expected
                assert (where[(where >= here.start) & (where < here.stop)] - here.start).tolist() == sorted(masked)


def test_lengths_and_shares(tmp_path, id_tokenizer, seed):
    """Spans of 3.8 words on average at a low rate, where few overlap; each all [MASK], all random or unchanged."""
    words = " ".join(["6 8"] * 30)  # "w6 ##8": words of two pieces
    shards = prepare([[words] * 40] * 60, id_tokenizer(4000), tmp_path / "out")
    data = PretrainingData(shards, objective="mlm", max_length=62, masking="span", mask_prob=0.3, seed=seed)
    batch = data.batch(0, np.arange(data.samples_per_epoch(0)))
    chosen = np.zeros(batch.num_tokens, bool)
    chosen[batch.masked_positions.numpy()] = True
    ids = batch.input_ids.numpy()
    lengths = batch.cu_seqlens.diff().numpy()
    counts = np.add.reduceat(chosen, batch.cu_seqlens.numpy()[:-1])
    assert (counts == np.maximum(1, np.floor(0.3 * (lengths - 2) + 0.5))).all()
    kinds = []
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.view(np.int8), [0]])))
    for begin, end in edges.reshape(-1, 2):
        span = set(ids[begin:end].tolist())
        kinds.append("mask" if span == {MASK} else "same" if span <= {6, 8} else "random")
        assert kinds[-1] != "random" or not span & {MASK}
        # It begins with a word; one span per sequence may end inside one.
        assert batch.position_ids[begin] % 2 == 1
    ends_inside = [end for end in edges[1::2] if batch.position_ids[end] % 2 == 0]
    assert len(ends_inside) <= len(batch)
    for kind, share in (("mask", 0.8), ("random", 0.1), ("same", 0.1)):
        spread = 5 * math.sqrt(len(kinds) * share * (1 - share))
        assert abs(kinds.count(kind) - share * len(kinds)) < spread, kind
    low = PretrainingData(shards, objective="mlm", max_length=2402, masking="span", mask_prob=0.04, seed=seed)
    batch = low.batch(0, np.arange(low.samples_per_epoch(0)))
    chosen = np.zeros(batch.num_tokens + 1, np.int8)
    chosen[batch.masked_positions.numpy()] = 1
    spans = int((np.diff(chosen) == 1).sum())
    mean = chosen.sum() / spans / 2
    print(f"{spans} spans of {mean:.2f} words, 80/10/10: {[kinds.count(kind) for kind in ('mask', 'random', 'same')]}")
    assert 3.3 < mean < 4.2  # 3.8, less what the last span of a sequence loses, and more where spans touch


def test_masking_names(make_shards, seed):
    shards = make_shards([[20] * 4] * 20)
    data = PretrainingData(shards, max_length=32, whole_word=True, seed=seed)
    assert data.masking == "whole-word"
    same = PretrainingData(shards, max_length=32, masking="whole-word", seed=seed)
    assert (data.batch(0, [0, 1]).input_ids == same.batch(0, [0, 1]).input_ids).all()
    for options, message in (
        ({"masking": "word"}, "masking='word' must be one of token, whole-word, span"),
        ({"masking": "span", "whole_word": True}, "whole_word=True is masking='whole-word', not 'span'"),
        ({"masking": "span", "exact_mask_count": False}, "masking='span' needs exact_mask_count"),
        ({"static_masks": 0}, "static_masks=0 must be at least 1"),
        ({"validation_mask_prob": 2.0, "split": "validation"}, "validation_mask_prob=2.0 must be from 0 to 1"),
    ):
        with pytest.raises(UserError, match=message):
            PretrainingData(shards, **options)
    with pytest.raises(UserError, match="mask_prob=1\\.2 must be from 0 to 1"):
        data.samples([0], mask_prob=1.2)
