"""Added tokens equal those of BertTokenizerFast: ids, places and words, for every flag, in hostile text."""

import pickle
import random
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from sweeps import sweep

from fastbert.data.prepare import prepare
from fastbert.errors import UserError
from fastbert.tokenizers import AddedToken, WordPieceTokenizer
from fastbert.tokenizers.extension import extend_vocabulary

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["ab", "abc", "foo", "bar", "hello", "##bc", "가", "ᄀ", "##ᅡ", "x ", "\u2028"]
VOCAB = list(
    dict.fromkeys([*SPECIAL, *"abcdefghijk中国.<>[]{}é𝒳_-", *(f"##{char}" for char in "abcdefghijké"), *WORDS])
)
# What tokens and texts are made of.
PARTS = [
    *["a", "b", "c", "ab", "A", "B", "É", "e\u0301", "\u0301", "\u0327", "\u0344", "\u0f73", "\u0345", " ", "  "],
    *["\u3000", "\n", "\x85", "\u2028", "中", "国", "가", "[", "]", "<", "x>", "_", "1", "\u200d", "\u0e33", "İ", "ß"],
    *["\xad", "\ufffd", "\0", "\uf900", "\U0001d15e", "\u0315", "\U0002b820", "-", "K", "\u212a", "ǆ"],
]
ONE_WORD = {"single_word": True, "normalized": False}


def draw(rng, most):
    return "".join(rng.choice(PARTS) for _ in range(rng.randint(1, most)))


def reference_token(token):
    tokenizers = pytest.importorskip("tokenizers")
    fields = token.to_dict()
    return tokenizers.AddedToken(fields.pop("content"), **fields)


@pytest.fixture
def make_pair(make_reference):
    """Our tokenizer and the reference with the same options and added tokens."""

    def make(tokens, vocab=VOCAB, **options):
        reference = make_reference(vocab, **options)
        reference.add_tokens([reference_token(token) for token in tokens])
        return WordPieceTokenizer(vocab, added_tokens=tokens, **options), reference

    return make


def test_tokens_show_the_spaces_that_they_took(small_vocab, make_reference):
    make_token = pytest.importorskip("tokenizers").AddedToken
    ours, reference = WordPieceTokenizer(small_vocab), make_reference(small_vocab)
    for tokenizer in (ours, reference):
        flags = {"lstrip": True, "rstrip": True}
        tokenizer.add_tokens([make_token("<x>", normalized=False, **flags)])
        tokenizer.add_tokens([make_token("Foo", lstrip=True)])
    for text in ("a  <x>  b", "Foo a  Foo b <x>", "<x><x> FOO"):
        assert ours(text).tokens() == reference(text).tokens()
    words = (["a", " <x> b"], ["b", " Foo "])
    got, expected = (tokenizer(*words, is_split_into_words=True) for tokenizer in (ours, reference))
    assert got.tokens() == expected.tokens()
    assert pickle.loads(pickle.dumps(got)).tokens() == expected.tokens()


def rows_of(tokenizer, texts):
    """Id, place and word of each token of each text."""
    ids, begins, ends, words, offsets = tokenizer.encode_aligned_ragged(texts, threads=1)
    fast_ids, fast_offsets = tokenizer.encode_ragged(texts)
    np.testing.assert_array_equal(fast_ids, ids)
    np.testing.assert_array_equal(fast_offsets, offsets)
    tokens = list(zip(ids.tolist(), zip(begins.tolist(), ends.tolist()), words.tolist()))
    return [tokens[begin:end] for begin, end in pairwise(offsets)]


def assert_same(ours, reference, texts):
    for text, row in zip(texts, rows_of(ours, texts), strict=True):
        expected = reference.backend_tokenizer.encode_batch([text], add_special_tokens=False)[0]
        assert row == list(zip(expected.ids, expected.offsets, expected.word_ids)), f"differs for {text!a}"


def assert_same_flags(ours, reference):
    names = list(AddedToken("a").to_dict())
    expected = {
        index: {name: getattr(token, name) for name in names} for index, token in reference.added_tokens_decoder.items()
    }
    assert {index: token.to_dict() for index, token in ours.added_tokens_decoder.items()} == expected


def draw_tokens(rng, normalize):
    """A few tokens, no two of which are the same when normalised: which of them the reference finds is chance."""
    tokens, seen = {}, set()
    for _ in range(rng.randint(1, 6)):
        content = rng.choice([draw(rng, 4), draw(rng, 2), rng.choice(VOCAB), "<x>", "ab c"])
        flags = {name: rng.random() < 0.3 for name in ("lstrip", "rstrip", "single_word", "special")}
        normalized = rng.random() < 0.5
        form = normalize(content) if normalized else content
        # White space that takes more of it panics in the reference.
        if content in SPECIAL or form in seen or not form or content.isspace():
            continue
        seen.add(form)
        tokens.setdefault(content, AddedToken(content, normalized=normalized, **flags))
    return list(tokens.values())


@sweep("seed", range(80))
def test_random_tokens_in_hostile_text(seed, make_pair, make_reference, hostile_text):
    rng = random.Random(seed)
    options = {
        "do_lower_case": rng.random() < 0.7,
        "strip_accents": rng.choice([None, True, False]),
        "tokenize_chinese_chars": rng.random() < 0.8,
        "split_special_tokens": rng.random() < 0.3,
    }
    tokens = draw_tokens(rng, make_reference(VOCAB, **options).backend_tokenizer.normalizer.normalize_str)
    ours, reference = make_pair(tokens, **options)
    assert len(ours) == len(reference)
    assert ours.get_vocab() == reference.get_vocab()
    assert ours.added_tokens_encoder == reference.added_tokens_encoder
    contents = [token.content for token in tokens] or ["[SEP]"]
    texts = []
    for _ in range(40):
        parts = [draw(rng, 4), rng.choice(contents), rng.choice(contents).upper(), "[MASK]", hostile_text(rng)]
        texts.append("".join(rng.choices(parts, k=rng.randint(0, 8))))
    assert_same(ours, reference, texts)


@pytest.mark.parametrize(
    ("tokens", "text", "expected"),
    [
        # (id or token, (begin, end)); ids of added tokens begin behind the vocabulary.
        pytest.param([], "foo[SEP]bar", [("foo", (0, 3)), ("[SEP]", (3, 8)), ("bar", (8, 11))], id="no-word-boundary"),
        pytest.param(
            [AddedToken("ab", **ONE_WORD), AddedToken("abc", **ONE_WORD)],
            "abcd ab",
            [("abc", (0, 3)), ("##d", (3, 4)), ("ab", (5, 7))],
            id="refused-is-consumed",
        ),
        pytest.param([AddedToken("ab", **ONE_WORD)], "ab\u200dc", [("abc", (0, 4))], id="joiner-is-word"),
        pytest.param(
            [AddedToken("<x>", lstrip=True, rstrip=True)], "a  <x> b", [("a", (0, 1)), (0, (1, 7)), ("b", (7, 8))]
        ),
        pytest.param(
            [AddedToken("<x>", lstrip=True, rstrip=True, normalized=False)],
            "<x> \u2028<x>\u3000",
            [(0, (0, 5)), (0, (5, 9))],
            id="strip-ends-at-last-match",
        ),
        pytest.param(
            [AddedToken("<a>", rstrip=True, normalized=False), AddedToken(" x", normalized=False)],
            "<a>  x",
            [(0, (0, 5)), (1, (4, 6))],
            id="overlap-by-white-space",
        ),
        pytest.param([AddedToken("Foo Bar")], "x FOO BAR", [("[UNK]", (0, 1)), (0, (2, 9))], id="normalized"),
        pytest.param([AddedToken("Foo Bar")], "fo\u0301o\tbar", [(0, (0, 8))], id="normalized-places"),
        pytest.param([AddedToken("中")], "a中b", [("a", (0, 1)), ("中", (1, 2)), ("b", (2, 3))], id="chinese"),
        pytest.param([AddedToken("É")], "abe\u0301 é", [("ab", (0, 2)), (0, (2, 3)), (0, (5, 6))], id="base-of-a-mark"),
        pytest.param(
            [AddedToken("[MASK]", lstrip=True, special=True)], "a [MASK]", [("a", (0, 1)), ("[MASK]", (1, 8))]
        ),
    ],
)
def test_named_cases(tokens, text, expected, make_pair):
    ours, reference = make_pair(tokens)
    row = rows_of(ours, [text])[0]
    target = [
        (len(VOCAB) + token if isinstance(token, int) else VOCAB.index(token), position) for token, position in expected
    ]
    assert [(index, position) for index, position, _ in row] == target
    assert_same(ours, reference, [text])


@pytest.mark.parametrize("strip_accents", [True, False])
def test_characters_that_become_those_of_a_token(strip_accents, make_pair):
    """Only texts with a mark of a token, or with a character that becomes one ("≮"), are searched for it."""
    marks = [char for char in map(chr, range(33, 127)) if not char.isalnum()]
    ours, reference = make_pair([AddedToken(f"{mark}x") for mark in marks], strip_accents=strip_accents)
    changed = [
        char for char in map(chr, range(0x80, 0x30000)) if char.lower() != char or unicodedata.decomposition(char)
    ]
    texts = [f"{char}x" for char in [*marks, *changed]]
    assert_same(ours, reference, texts)
    for char, is_found in (("≮", strip_accents), ("\u037e", strip_accents), ("<", True), ("K", False)):
        assert (ours.encode_ragged([f"a {char}x b"])[0] >= len(VOCAB)).any() == is_found
    # One kind of token alone, in short texts side by side and in long ones.
    ours, reference = make_pair([AddedToken("<x>", lstrip=True)], strip_accents=strip_accents)
    assert_same(ours, reference, ["a b", "a <x>", "≮x>", "a", "<", "foo ab " * 900 + "a  <x> b", "foo ≮x> " * 900])


def test_every_neighbour_of_a_single_word(make_pair):
    ours, reference = make_pair([AddedToken("<x>", single_word=True, normalized=False)])
    # Characters of each general category, and all of the first planes in steps.
    by_category = {}
    for point in range(0x110000):
        if not 0xD800 <= point < 0xE000:
            by_category.setdefault(unicodedata.category(chr(point)), []).append(chr(point))
    chars = [char for chars in by_category.values() for char in chars[:: max(1, len(chars) // 200)]]
    assert_same(ours, reference, [f"{char}<x> <x>{char}" for char in chars])


def test_special_tokens_as_text(make_pair):
    tokens = [AddedToken("<s>", special=True), AddedToken("<p>"), AddedToken("K]x", normalized=False)]
    ours, reference = make_pair(tokens, split_special_tokens=True)
    texts = ["<s><p>[SEP]", "[MASK]x", "K]x", "a [MASK"]
    assert_same(ours, reference, texts)
    # "K]x" begins within "[MASK]", which is passed over whole.
    assert len(VOCAB) + 2 not in ours.encode_ragged(["[MASK]x"])[0]


def test_texts_of_a_batch_do_not_touch(make_pair):
    # Short texts are read side by side: a token across two of them is none, nor may it hide one of the second.
    ours, reference = make_pair([AddedToken("a b", **ONE_WORD), AddedToken("b"), AddedToken("ab", **ONE_WORD)])
    assert_same(ours, reference, ["xa", "b", "a", "b c", "", "ab", "ab"] * 20)
    ours, reference = make_pair([AddedToken("a b", **ONE_WORD), AddedToken("b", normalized=False)])
    assert_same(ours, reference, ["xa", "b", "a", "b c", "", "ab", "ab"] * 20)


def test_long_texts_and_truncation(make_pair):
    ours, reference = make_pair([AddedToken("Foo Bar"), AddedToken("<x>", lstrip=True, normalized=False)])
    text = "hello foo bar, é <x> " * 5000
    assert_same(ours, reference, [text, text.upper()])
    for length in (3, 4, 7, 50):
        expected = reference(text, truncation=True, max_length=length)["input_ids"]
        assert list(ours(text, truncation=True, max_length=length).input_ids) == expected
    ids, offsets = ours.encode_ragged([text] * 6, threads=3)
    assert np.array_equal(ids.reshape(6, -1)[5], ids[: offsets[1]])


def test_ids_and_names(make_pair):
    tokens = [AddedToken("Foo Bar"), AddedToken("ab"), AddedToken("<x>", special=True)]
    ours, reference = make_pair(tokens)
    assert (ours.vocab_size, len(ours)) == (reference.vocab_size, len(reference)) == (len(VOCAB), len(VOCAB) + 2)
    assert ours.get_added_vocab() == reference.get_added_vocab()
    everything = range(len(ours))
    assert ours.convert_ids_to_tokens(everything) == reference.convert_ids_to_tokens(everything)
    names = [*ours.get_vocab(), "foo bar", "nothing"]
    assert ours.convert_tokens_to_ids(names) == reference.convert_tokens_to_ids(names)
    for skip in (False, True):
        assert ours.decode(everything, skip) == reference.decode(everything, skip_special_tokens=skip)
    assert ours.is_continuation.tolist() == [name.startswith("##") for name in VOCAB] + [False, False]
    assert_same_flags(ours, reference)


def test_adding(make_reference):
    ours, reference = WordPieceTokenizer(VOCAB), make_reference(VOCAB)
    for tokens, special in ((["<a>", "<b>"], False), ("<a>", False), (["<c>", "ab"], True), (["<a>", "<d>"], False)):
        assert ours.add_tokens(tokens, special) == reference.add_tokens(tokens, special)
        assert_same_flags(ours, reference)
    for change in (
        {"additional_special_tokens": ["<e>", "<a>"]},
        {"mask_token": "<mask>"},
        {"extra_special_tokens": ["<f>"], "pad_token": "ab"},
    ):
        assert ours.add_special_tokens(change) == reference.add_special_tokens(change)
        assert_same_flags(ours, reference)
        assert ours.all_special_tokens == reference.all_special_tokens
    assert (ours.mask_token_id, ours.pad_token_id) == (reference.mask_token_id, reference.pad_token_id)
    texts = ["<a><b> <C>ab<e>[MASK]<mask><f>", "<d>[PAD]"]
    assert_same(ours, reference, texts)
    again = pickle.loads(pickle.dumps(ours))
    assert rows_of(again, texts) == rows_of(ours, texts)
    assert again.fingerprint == ours.fingerprint


def test_tokens_of_the_reference_may_be_given():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = WordPieceTokenizer(VOCAB, added_tokens=[tokenizers.AddedToken("<x>", rstrip=True, special=True)])
    assert tokenizer.added_tokens == [AddedToken("<x>", rstrip=True, special=True, normalized=False)]


def test_failed_change_changes_nothing():
    tokenizer = WordPieceTokenizer(VOCAB, added_tokens=["<x>"])
    before = tokenizer.fingerprint
    with pytest.raises(UserError, match=r"added token '\\u0301': normalising it leaves nothing"):
        tokenizer.add_tokens(["<y>", "\u0301"])
    assert tokenizer.fingerprint == before
    assert tokenizer.tokenize("<x><y>")[0] == "<x>"
    assert len(tokenizer) == len(VOCAB) + 1
    assert tokenizer.add_tokens(AddedToken("\u0301", normalized=False)) == 1


def test_fingerprint():
    plain = WordPieceTokenizer(VOCAB).fingerprint
    assert WordPieceTokenizer(VOCAB, added_tokens=[AddedToken("[MASK]", special=True)]).fingerprint == plain
    seen = {plain}
    for flags in ({}, {"lstrip": True}, {"special": True}, {"normalized": False}):
        seen.add(WordPieceTokenizer(VOCAB, added_tokens=[AddedToken("<x>", **flags)]).fingerprint)
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: AddedToken(""), ValueError, "must not be empty"),
        (lambda: AddedToken("a\ud800"), ValueError, "lone surrogate"),
        (lambda: AddedToken(7), TypeError, "must be a string, not int"),
        (lambda: AddedToken("a", lstrip=1), TypeError, "'a': lstrip=1 must be True or False"),
        (lambda: WordPieceTokenizer(VOCAB, added_tokens=[3]), TypeError, "a string or an AddedToken, not int"),
        (lambda: WordPieceTokenizer(VOCAB, padding_side="up"), ValueError, "padding_side='up' must be 'right' or"),
        (lambda: WordPieceTokenizer(VOCAB, truncation_side=1), ValueError, "truncation_side=1 must be 'right' or"),
        (lambda: WordPieceTokenizer(VOCAB, unk_token="<u>", added_tokens=["<u>"]), UserError, "unk_token='<u>' is not"),
        (lambda: WordPieceTokenizer(VOCAB).add_special_tokens({"bos": "a"}), ValueError, "'bos' must be one of"),
    ],
)
def test_what_cannot_be_added(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_vocabulary_extension_keeps_added_tokens():
    tokenizer = WordPieceTokenizer(VOCAB, added_tokens=["<x>", AddedToken("ab", normalized=False)])
    extension = extend_vocabulary(tokenizer, ["hijk"])
    extended = extension.tokenizer
    assert extension.base_size == len(VOCAB) + 1
    assert (extension.entries[0].id, len(extended)) == (len(VOCAB) + 1, len(VOCAB) + 2)
    assert extended.convert_tokens_to_ids(["<x>", "ab"]) == tokenizer.convert_tokens_to_ids(["<x>", "ab"])
    assert extended.tokenize("hijk<x>ab") == ["hijk", "<x>", "ab"]
    with pytest.raises(UserError, match="added token 'kji' is after the vocabulary"):
        extend_vocabulary(WordPieceTokenizer(VOCAB, added_tokens=["kji"]), ["hijk"])


def test_shards_refuse_tokens_behind_the_vocabulary(tmp_path):
    tokenizer = WordPieceTokenizer(VOCAB, added_tokens=["<x>"])
    with pytest.raises(UserError, match=r"added tokens after its vocabulary .'<x>', id"):
        prepare([["a b"]], tokenizer, tmp_path / "refused")
    within = WordPieceTokenizer([*VOCAB, "<x>"], added_tokens=["<x>"])
    assert prepare([["a <x> b"]], within, tmp_path / "taken").num_tokens == 3
