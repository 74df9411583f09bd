"""Character classes, grapheme clusters and normalization forms equal the reference's, and the tables its results."""

import functools
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


# Other planes have no characters but those of private use, which all have the same properties.
PLANES = (range(0x40000), range(0xE0000, 0xE1000))


@pytest.fixture(scope="module", params=["planes-with-characters", pytest.param("all", marks=pytest.mark.slow)])
def answers(request, generate, reference):
    """The reference's answers: of every code point, or of all with a character and one in a hundred of the others; the
    tables are then compared with the properties that the others must have."""
    every = generate.all_scalars()
    few = "".join(
        char for point, char in enumerate(every) if point % 100 == 0 or any(ord(char) in plane for plane in PLANES)
    )
    with pytest.MonkeyPatch.context() as patched:
        if request.param != "all":
            patched.setattr(generate, "all_scalars", lambda: few)
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
        *"a1 \r\t\0é가각갂中ا\u00ad\u200b\u0300\u0301\u0308\u0345\u0903\u093e\u0940\u094d\u200c\u200d\u0600\u06dd",
        *"\u0890\u0d4e\u1100\u115f\u1160\u1161\u11a8\u11ff\ua960\ud7b0\ud7cb\u0915\u0937\u09cd\u0995\u1000\u1039©®‼☀\ufe0f\u20e3\u0e33",
        *"\U0001f1e6\U0001f468\U0001f3fb\U000e0001\U000e0020\U00016d63\U00016d67\U00011133\U00011107\U000110bd",
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


@pytest.fixture(scope="module")
def normalizers(generate, reference):
    """By name: our function, the reference's text, and the reference's offsets of each character."""

    def make(name, ours):
        tokenizer = reference.Tokenizer(reference.models.BPE(vocab={"?": 0}, merges=[], unk_token="?"))
        tokenizer.normalizer = getattr(reference.normalizers, name)()
        return ours, tokenizer.normalizer.normalize_str, lambda text: tokenizer.encode(text).offsets

    forms = {name: make(name, functools.partial(_C.normalize_form, name)) for name in generate.FORMS}
    return forms | {
        "Lowercase": make("Lowercase", _C.lowercase),
        "StripAccents": make("StripAccents", _C.strip_accents),
    }


def assert_same(normalizers, name: str, text: str) -> None:
    ours, normalize, offsets = normalizers[name]
    normalized, sources = ours(text)
    assert normalized == normalize(text), (name, ascii(text))
    assert [(source, source + 1) for source in sources] == offsets(text), (name, ascii(text))


def test_each_scalar_is_normalized_like_the_reference(generate, normalizers):
    chars = [char for char in generate.all_scalars() if char != "\n"]
    for name, (ours, normalize, _) in normalizers.items():
        expected = generate.apply(normalize, chars)
        assert generate.apply(lambda text, ours=ours: ours(text)[0], chars) == expected, name
        changed = [char for char, result in zip(chars, expected, strict=True) if char != result]
        assert len(changed) > 1000
        for start in range(0, len(changed), 1000):
            assert_same(normalizers, name, "a".join(changed[start : start + 1000]))


def test_random_texts_are_normalized_like_the_reference(generate, normalizers):
    """Texts of few pools: compositions, their parts, compatibility characters, marks, Hangul and anything else."""
    decompose, decompose_compatibly = normalizers["NFD"][1], normalizers["NFKD"][1]
    scalars = generate.all_scalars()
    compatible = [char for char in scalars if decompose_compatibly(char) != char]
    canonical = [char for char in compatible if decompose(char) != char and ord(char) not in generate.HANGUL]
    marks = [char for char, flags in zip(map(chr, range(0x110000)), _C.character_flags()) if flags & 8]
    jamo = [*map(chr, range(0x1100, 0x1200)), *map(chr, range(0xAC00, 0xD7A4, 13))]
    parts = [part for char in canonical for part in decompose(char)]
    pools = [compatible, canonical, marks, parts, jamo, scalars, "aeiouAEIOUSsZz=<>ΑαΩωЕеИиあかはハウab \n"]
    chance = random.Random(1)
    inert = 0
    for _ in range(5_000):
        selected = chance.sample(pools, chance.randrange(1, 5))
        length = chance.choice((1, 2, 3, 4, 6, 10, 40))
        text = "".join(chance.choice(chance.choice(selected)) for _ in range(length))
        for name in normalizers:
            assert_same(normalizers, name, text)
            if name in generate.FORMS and _C.is_inert(name, text):
                inert += 1
                assert normalizers[name][0](text) == (text, list(range(len(text))))
    assert inert > 1000


def test_text_of_most_languages_is_inert():
    texts = [
        "plain ASCII " * 10,
        "élève à Zürich",
        "Съешь ещё",
        "Ελληνικά ή",
        "我们都是人。",
        "こんにちはガギ",
        "안녕하세요",
        "",
    ]
    assert all(_C.is_inert("NFC", text) for text in texts)
    assert not any(_C.is_inert("NFC", text) for text in ("e\u0301", "\u1100\u1161", "\u212b", "ASCII " * 10 + "\u0340"))
    assert [_C.is_inert(form, "é") for form in ("NFC", "NFD", "NFKC", "NFKD")] == [True, False, True, False]
    assert [_C.is_inert(form, "ﬁ") for form in ("NFC", "NFD", "NFKC", "NFKD")] == [True, True, False, False]
    with pytest.raises(ValueError, match="NFX"):
        _C.is_inert("NFX", "a")
