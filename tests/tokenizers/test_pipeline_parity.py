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
