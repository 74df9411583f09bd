"""Byte-level BPE and Unigram with random steps: every result equals that of the `tokenizers` library."""

import base64
import random

import pytest
from hostile_texts import PARTS, every_offset
from tokenizer_parity import assert_same, load_random
from tokenizer_pipelines import charsmap, random_tokenizer

from fastbert import _C

pytest.importorskip("tokenizers")


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_every_part_at_every_offset(tmp_path, kind):
    rng = random.Random(kind)
    content = random_tokenizer(rng, PARTS, _C.byte_level_alphabet(), kind)
    ours, reference = load_random(tmp_path, content, split_special_tokens=False)
    assert_same(ours, reference, list(every_offset()))


def unigram(normalizers, pre_tokenizer):
    """Return a Unigram tokenizer of single characters."""
    pieces = [["<unk>", 0.0], *([piece, -1.0 - index] for index, piece in enumerate("▁cxabd'"))]
    return {
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": pieces},
    }


QUOTE = {"type": "Replace", "pattern": {"String": "'"}, "content": " "}
WORD = {"type": "Replace", "pattern": {"String": "ab"}, "content": " x "}
GONE = {"type": "Replace", "pattern": {"String": "xd"}, "content": ""}
RUN = {"type": "Replace", "pattern": {"Regex": "a{2,}"}, "content": " "}
SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
LEFT, BOTH = ({"type": "Strip", "strip_left": True, "strip_right": right} for right in (False, True))


@pytest.mark.parametrize("prepend", ["first", "always"])
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([QUOTE, WORD, LEFT], id="left"),
        pytest.param([QUOTE, WORD, BOTH], id="both"),
        pytest.param([RUN, SPACES], id="runs"),
        pytest.param([QUOTE, WORD, GONE, SPACES], id="spaces"),
        pytest.param([RUN, GONE, WORD, SPACES, LEFT], id="all"),
    ],
)
def test_visible_characters_become_spaces(tmp_path, prepend, steps):
    """They are stripped, or join a run. In the reference, a text whose first character goes no longer begins where the
    raw text does."""
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend, "split": True}
    ours, reference = load_random(tmp_path, unigram(steps, metaspace), split_special_tokens=False)
    texts = [
        "'c d",
        "c'",
        "'",
        "ab",
        "abc",
        "c ab",
        "'ab'",
        "c d",
        " c",
        "c 'd",
        "d' ab c",
        "aaa c",
        "c aa d",
        "xd c xd",
    ]
    assert_same(ours, reference, [*texts, *(f"{text} {'c d ' * 30}{text}" for text in texts)])


@pytest.mark.parametrize("value", ["", " ", "x", " x", "x y"])
def test_ends_of_windows_lines_become_anything(tmp_path, value):
    """A carriage return and a line feed are one character to a map, although a text is cut before line feeds."""
    encoded = base64.b64encode(charsmap({b"\r\n": value, b"\n": " "})).decode()
    split = {
        "type": "Sequence",
        "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "split": True}],
    }
    content = unigram([{"type": "Precompiled", "precompiled_charsmap": encoded}], split)
    ours, reference = load_random(tmp_path, content, split_special_tokens=False)
    assert_same(
        ours, reference, [f"{start}{end}" for start in ("a", "", "a ") for end in ("\r\nb c", "\nb", "\r\n", "\r")]
    )
