"""Byte-level BPE and Unigram with random steps: every result equals that of the `tokenizers` library."""

import random
from itertools import pairwise

import pytest
from hostile_texts import PARTS, every_offset, hostile_texts
from tokenizer_parity import assert_same, assert_same_call, assert_same_decoding, load_random, random_call, read_both
from tokenizer_pipelines import random_tokenizer

from fastbert import _C

pytest.importorskip("tokenizers")


def check_tokenizer(folder, number, texts, calls):
    """Compare one random tokenizer, which its number alone determines; return the number of rows compared."""
    rng = random.Random(number)
    content = random_tokenizer(rng, PARTS, _C.byte_level_alphabet())
    both = load_random(folder, content, split_special_tokens=rng.random() < 0.2)
    if both is None:
        return 0
    ours, reference = both
    drawn = hostile_texts(rng, texts)
    try:
        assert_same(ours, reference, drawn)
        short = [text[:40] for text in drawn if text]
        rows = 0
        for _ in range(calls):
            paired, words = rng.random() < 0.4, rng.random() < 0.3
            size = rng.randint(1, 4)
            sides = [
                [rng.sample(short, rng.randint(1, 4)) if words else rng.choice(short) for _ in range(size)]
                for _ in range(1 + paired)
            ]
            options = random_call(rng, ours, sides[0], paired=paired, words=words)
            rows += assert_same_call(reference, ours, sides[0], sides[1] if paired else None, options)
        ids, bounds = ours.encode_ragged(drawn[:20])
        if number % 5 == 0:
            ours.save_pretrained(folder / "saved")
            saved = read_both(folder / "saved" / "tokenizer.json", split_special_tokens=ours.split_special_tokens)
            assert_same(ours, saved[1], drawn)
            assert saved[0].fingerprint == ours.fingerprint
        drawn_ids = [[rng.randrange(len(ours)) for _ in range(rng.randint(0, 12))] for _ in range(20)]
        assert_same_decoding(ours, reference, [*(ids[a:b] for a, b in pairwise(bounds)), *drawn_ids])
    except AssertionError as error:
        raise AssertionError(f"tokenizer {number}: {error}\n{dict(content, model=content['model']['type'])}") from None
    return texts + rows


def test_random_tokenizers(tmp_path, seed):
    rows = sum(check_tokenizer(tmp_path, seed * 1_000_000 + number, 60, 8) for number in range(60))
    assert rows > 3_000


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_tokenizers(tmp_path, seed, block):
    first = seed * 1_000_000 + 1_000 + block * 250
    assert sum(check_tokenizer(tmp_path, number, 200, 20) for number in range(first, first + 250)) > 50_000


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_every_part_at_every_offset(tmp_path, kind):
    rng = random.Random(kind)
    content = random_tokenizer(rng, PARTS, _C.byte_level_alphabet(), kind)
    ours, reference = load_random(tmp_path, content, split_special_tokens=False)
    assert_same(ours, reference, list(every_offset()))
