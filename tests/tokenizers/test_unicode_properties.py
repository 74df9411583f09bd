"""Character classes, grapheme clusters and normalization forms equal the reference's, and the tables its results."""

import random
import sys
from pathlib import Path

import pytest

from fastbert import _C

FOLDER = Path(__file__).resolve().parents[2] / "csrc" / "unicode"


@pytest.fixture(scope="module")
def generate():
    sys.path.insert(0, str(FOLDER))
    try:
        import generate_properties
    finally:
        sys.path.remove(str(FOLDER))
    return generate_properties


@pytest.fixture(scope="module")
def reference(generate):
    tokenizers = pytest.importorskip("tokenizers")
    if tokenizers.__version__ != generate.REFERENCE_VERSION:
        pytest.skip(f"the tables come from tokenizers {generate.REFERENCE_VERSION}, here is {tokenizers.__version__}")
    return tokenizers


@pytest.fixture(scope="module")
def answers(generate, reference):
    return generate.query_reference()


def test_built_tables_equal_the_reference(generate, answers):
    assert generate.fingerprint(answers) == _C.UNICODE_PROPERTIES_FINGERPRINT
    classes, flags = _C.split_classes(), _C.character_flags()
    points = range(generate.CODE_POINTS)
    assert list(classes) == [value & 3 for value in answers.properties]
    assert {point for point in points if flags[point] & 1} == answers.white_space
    assert {point for point in points if flags[point] & 2} == answers.punctuation
    assert [flag & 12 for flag in flags] == [
        (4 if value & generate.NUMERIC else 0) + (8 if value & generate.COMBINING_MARK else 0)
        for value in answers.properties
    ]


def test_committed_file_is_what_the_generator_writes(generate, answers):
    assert generate.render(answers) == (FOLDER / "properties_tables.cpp").read_text()


def test_grapheme_clusters_equal_the_reference(generate, reference):
    """The reference replaces a cluster of fewer than 6 bytes by one "1", and each character of a longer one."""
    replace = reference.normalizers.Precompiled(generate.charsmap()).normalize_str
    # Characters of every class, of 1 to 4 bytes, and any others.
    alphabet = [
        *"a1 \r\t\0é가각갂中ا\u00ad\u200b\u0300\u0301\u0308\u0345\u0903\u093e\u0940\u094d\u200c\u200d\u0600\u06dd\u0890\u0d4e",
        *"\u1100\u115f\u1160\u1161\u11a8\u11ff\ua960\ud7b0\ud7cb\u0915\u0937\u09cd\u0995\u1000\u1039©®‼☀\ufe0f\u20e3\u0e33",
        *"\U0001f1e6\U0001f1e7\U0001f468\U0001f3fb\U000e0001\U000e0020\U00016d63\U00016d67\U00011133\U00011107\U000110bd",
    ]
    chance = random.Random(0)
    for _ in range(20_000):
        text = "".join(
            chr(chance.choice((chance.randrange(1, 0x800), chance.randrange(0x800, 0xD800))))
            if chance.random() < 0.1
            else chance.choice(alphabet)
            for _ in range(chance.randrange(1, 12))
        ).replace("\n", "")
        sizes, encoded, expected, at = _C.grapheme_sizes(text), text.encode(), 0, 0
        for size in sizes:
            expected += 1 if size < 6 else len(encoded[at : at + size].decode())
            at += size
        assert at == len(encoded)
        assert len(replace(text)) == expected, ascii(text)
    assert _C.grapheme_sizes("a\r\nb\n\r") == [1, 2, 1, 1, 1]
