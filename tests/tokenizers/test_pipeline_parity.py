"""Byte-level BPE and Unigram with random steps: every result equals that of the `tokenizers` library."""

import random

import pytest
from hostile_texts import PARTS, every_offset
from tokenizer_parity import assert_same, load_random
from tokenizer_pipelines import random_tokenizer

from fastbert import _C

pytest.importorskip("tokenizers")


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_every_part_at_every_offset(tmp_path, kind):
    rng = random.Random(kind)
    content = random_tokenizer(rng, PARTS, _C.byte_level_alphabet(), kind)
    ours, reference = load_random(tmp_path, content, split_special_tokens=False)
    assert_same(ours, reference, list(every_offset()))


@pytest.mark.parametrize("prepend", ["first", "always"])
@pytest.mark.parametrize("right", [False, True])
def test_visible_characters_that_become_spaces_are_stripped(tmp_path, prepend, right):
    """In the reference, a text whose first character is stripped no longer begins where the raw text does."""
    quote = {"type": "Replace", "pattern": {"String": "'"}, "content": " "}
    word = {"type": "Replace", "pattern": {"String": "ab"}, "content": " x "}
    strip = {"type": "Strip", "strip_left": True, "strip_right": right}
    content = {
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [quote, word, strip]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend, "split": True},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "byte_fallback": False,
            "vocab": [["<unk>", 0.0], *([piece, -1.0 - index] for index, piece in enumerate("▁cxabd'"))],
        },
    }
    ours, reference = load_random(tmp_path, content, split_special_tokens=False)
    texts = ["'c d", "c'", "'", "ab", "abc", "c ab", "'ab'", "c d", " c", "c 'd", "d' ab c"]
    assert_same(ours, reference, [*texts, *(f"{text} {'c d ' * 30}{text}" for text in texts)])
