"""Buckets of batches: they fill little and are few, and every batch fits its own."""

import pytest
from graphed_models import SMALL, batch_of
from sweeps import sweep

from fastbert.errors import UserError
from fastbert.graphs import Buckets


@pytest.mark.parametrize("per_doubling", [4, 8])
def test_buckets_fill_little_and_are_few(per_doubling: int) -> None:
    rule = Buckets(per_doubling=per_doubling)
    sizes = [rule._up(tokens, rule.tokens) for tokens in range(1, 40_000)]
    for tokens, size in enumerate(sizes, start=1):
        assert tokens <= size < tokens + max(rule.tokens, tokens / per_doubling)
        assert size % rule.tokens == 0
    assert len(set(sizes)) < 10 * per_doubling
    assert sizes == sorted(sizes)


@sweep("lengths", [(), (0,), (1,), (1,) * 64, (100,), (7, 0, 33), (16,) * 16, (64, 65), (3,) * 300], ids=str)
@sweep("rule", [Buckets(), SMALL, Buckets(tokens=1, sequences=1, per_doubling=1000)], ids=str)
def test_every_batch_fits_its_bucket(lengths: tuple[int, ...], rule: Buckets) -> None:
    batch = batch_of(*lengths)
    bucket = rule.of(batch)
    filled = bucket.fill(batch)
    assert (filled.num_tokens, len(filled), filled.max_seqlen) == (bucket.tokens, bucket.sequences, bucket.max_seqlen)
    assert bucket.tokens != bucket.sequences
    assert rule.of(batch) == bucket


def test_batches_of_one_bucket_differ_in_tokens_only() -> None:
    """The number of sequences of a bucket does not depend on how full it is."""
    buckets = {Buckets().of(batch_of(*[100] * 20, extra)) for extra in range(1, 100)}
    assert {bucket.sequences for bucket in buckets} == {24}
    assert len(buckets) == 2


@pytest.mark.parametrize("values", [{"tokens": 0}, {"per_doubling": -1}, {"shortest": 2.5}])
def test_buckets_out_of_range_are_named(values: dict) -> None:
    ((name, value),) = values.items()
    with pytest.raises(UserError, match=f"{name}={value} must be a whole number"):
        Buckets(**values)
