"""Wrong input is refused by type, value and place, where the reference refuses it too (if sometimes oddly)."""

import pytest

SPLIT = {"is_split_into_words": True}
CUT = {"truncation": True}
OVERFLOW = {"return_overflowing_tokens": True}
SIX = "a b c a b c"

# Arguments, options, our error, what it says, and the reference's error where that is another one.
CALLS = [
    ((b"hello",), {}, TypeError, "bytes", ValueError),
    (([b"hello"],), {}, TypeError, r"text\[0\].*bytes", ValueError),
    ((["a", b"b"],), {}, TypeError, r"text\[1\].*bytes", None),
    ((None,), {}, TypeError, "NoneType", ValueError),
    ((["a", None],), {}, TypeError, r"text\[1\].*NoneType", None),
    ((3,), {}, TypeError, "int", ValueError),
    (([3],), {}, TypeError, r"text\[0\].*int", ValueError),
    ((["a", 3.5],), {}, TypeError, r"text\[1\].*float", None),
    (({"a": 1},), {}, TypeError, "dict", ValueError),
    ((iter("ab"),), {}, TypeError, "iterator", ValueError),
    (("a", 3), {}, TypeError, "text_pair.*int", ValueError),
    (("a", b"b"), {}, TypeError, "text_pair.*bytes", ValueError),
    (("a", ["b"]), {}, TypeError, "text_pair.*list", None),
    ((["a"], "b"), {}, TypeError, "text_pair.*list", None),
    ((["a", "b"], ["c", None]), {}, TypeError, r"text_pair\[1\].*NoneType", None),
    ((["a", "b"], ["c"]), {}, ValueError, "2.*1", None),
    ((["a"], ["b", "c"]), {}, ValueError, "1.*2", None),
    (([[["a"]]],), {}, TypeError, r"text\[0\]", None),
    (([["a", "b", "c"]],), {}, TypeError, r"text\[0\].*3", None),
    (([["a", ["b"]]],), {}, TypeError, r"\[0\].*list", None),
    (("a\ud800",), {}, TypeError, r"text\[0\].*surrogate", None),
    ((["a", "\udfff"],), {}, TypeError, r"text\[1\].*surrogate", None),
    ((["a"], ["\ud800"]), {}, TypeError, r"text_pair\[0\].*surrogate", None),
    # Words
    (("a b",), SPLIT, TypeError, "words|list|sequence", None),
    ((["a"], "b"), SPLIT, TypeError, "text_pair", None),
    (([["a"]], ["b"]), SPLIT, TypeError, r"text_pair\[0\].*str", None),
    (([["a"], "b"],), SPLIT, TypeError, r"text\[1\].*str", None),
    (([["a"], ["b", None]],), SPLIT, TypeError, "text.*NoneType", None),
    (([["a", 3]],), SPLIT, TypeError, "text.*int", None),
    (([["a"]], [["b"], ["c"]]), SPLIT, ValueError, "1.*2", None),
    (([[["a"]]],), SPLIT, TypeError, r"text\[0\]", None),
    (([["a", "\ud800"]],), SPLIT, TypeError, "surrogate", None),
    # Options
    (("a",), {"padding": "left"}, ValueError, "padding='left'.*longest", None),
    (("a",), {"padding": 1}, ValueError, "padding=1", None),
    (("a",), {"padding": None}, ValueError, "padding=None", None),
    (("a",), {"truncation": "middle"}, ValueError, "truncation='middle'.*longest_first", None),
    (("a",), {"truncation": 1}, ValueError, "truncation=1", None),
    (("a",), {"return_tensors": "tf"}, ValueError, "return_tensors='tf'.*pt", None),
    (("a",), {"return_tensors": True}, ValueError, "return_tensors=True", None),
    (("a",), {"padding": True, "padding_side": "middle"}, ValueError, "padding_side='middle'.*left", None),
    ((["a", "b c"],), {"return_tensors": "pt"}, ValueError, "padding=True", None),
    # Lengths
    (("a",), {"max_length": -1, **CUT}, ValueError, "max_length=-1", OverflowError),
    (("a",), {"max_length": -6, "padding": "max_length"}, ValueError, "max_length=-6", OverflowError),
    (("a",), {"max_length": 2.5, **CUT}, TypeError, "float", None),
    (("a",), {"max_length": "4", **CUT}, TypeError, "str", None),
    (("a",), {"max_length": 4, "stride": -1, **CUT}, ValueError, "stride=-1", OverflowError),
    (("a",), {"max_length": 4, "stride": "1", **CUT}, TypeError, "str", None),
    (("a",), {"padding": True, "pad_to_multiple_of": -8}, ValueError, "pad_to_multiple_of=-8", OverflowError),
    (
        ("a",),
        {"padding": True, "max_length": 6, "pad_to_multiple_of": 4, **CUT},
        ValueError,
        r"(?=.*max_length=6).*pad_to_multiple_of=4",
        None,
    ),
    # Where the reference goes wrong: it panics, or raises a bare Exception.
    ((SIX,), {"max_length": 5, "stride": 4, **CUT}, ValueError, "stride=4.*3", None),
    ((SIX,), {"max_length": 5, "stride": 3, **CUT}, ValueError, "stride=3.*3", BaseException),
    ((SIX, SIX), {"max_length": 9, "stride": 3, **CUT, **OVERFLOW}, ValueError, "stride=3", BaseException),
    (("a", SIX), {"max_length": 6, "truncation": "only_first"}, ValueError, "longest_first", Exception),
    ((SIX, "a"), {"max_length": 6, "truncation": "only_second"}, ValueError, "longest_first", Exception),
    ((SIX,), {"max_length": 4, "truncation": "only_second"}, ValueError, "only_second", Exception),
]


@pytest.fixture(scope="module")
def ours(small_vocab, make_ours):
    return make_ours(small_vocab)


@pytest.fixture(scope="module")
def reference(small_vocab, make_reference):
    return make_reference(small_vocab)


def error_of(function):
    try:
        function()
    except BaseException as error:  # noqa: BLE001  # a Rust panic is a bare BaseException
        return error
    pytest.fail("no error")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message", "of_reference"),
    # Without addresses, which differ from process to process.
    [pytest.param(*case, id=f"{ascii(case[0])[:32]}-{'-'.join(map(str, case[1].items()))[:60]}") for case in CALLS],
)
def test_calls(arguments, options, error, message, of_reference, ours, reference):
    theirs = error_of(lambda: reference(*arguments, **options))
    assert isinstance(theirs, of_reference or error), f"the reference raises {theirs!r}"
    assert of_reference is None or not isinstance(theirs, error), "the reference agrees: no need to name its error"
    with pytest.raises(error, match=message) as caught:
        ours(*arguments, **options)
    assert "\n" not in str(caught.value)
    # The next call is not harmed.
    assert ours("a").input_ids == reference("a").input_ids


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        pytest.param(("a",), {"paddding": True}, TypeError, "paddding", id="unknown-option"),
        pytest.param(("a",), {"padding_side": "middle"}, ValueError, "padding_side='middle'", id="side-of-no-use"),
        pytest.param(("a",), {"max_length": -1, "truncation": False}, ValueError, "max_length=-1", id="no-use"),
        pytest.param(
            ("a",), {"padding": True, "pad_to_multiple_of": 0}, ValueError, "pad_to_multiple_of=0", id="multiple"
        ),
        pytest.param((SIX,), {"max_length": 1, **CUT}, ValueError, "max_length=1 .*2 special.*larger", id="no-room"),
        pytest.param((SIX, "a"), {"max_length": 2, **CUT}, ValueError, "max_length=2 .*3 special", id="no-room-pair"),
        pytest.param(
            (["a"], ["b"]), {"max_length": 0, **CUT}, ValueError, "max_length=0 .*3 special", id="no-room-batch"
        ),
        pytest.param(
            ([SIX, "a"],), {"max_length": 1, "stride": 9}, ValueError, "max_length=1 ", id="no-room-and-stride"
        ),
    ],
)
def test_what_the_reference_lets_pass(arguments, options, error, message, ours):
    with pytest.raises(error, match=message):
        ours(*arguments, **options)


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message", "of_reference"),
    [
        ("decode", ("a",), TypeError, "str", None),
        ("decode", (["a"],), TypeError, "str", None),
        ("decode", (None,), TypeError, "NoneType|None", None),
        ("decode", ([None],), TypeError, "NoneType|None", None),
        ("decode", ([5.0],), TypeError, "float", None),
        ("decode", ([5, -1],), (ValueError, IndexError), "-1", OverflowError),
        ("decode", ([[[5]]],), TypeError, "list", None),
        ("batch_decode", ([[5], [5.5]],), TypeError, "float", None),
        ("batch_decode", ([[5], [-100]],), (ValueError, IndexError), "-100", OverflowError),
        ("convert_ids_to_tokens", (None,), TypeError, "None", None),
        ("convert_ids_to_tokens", ([None],), TypeError, "None", None),
        ("convert_ids_to_tokens", (-1,), IndexError, "-1", OverflowError),
        ("convert_ids_to_tokens", ([5, -1],), IndexError, "-1", OverflowError),
        ("convert_tokens_to_ids", (None,), TypeError, "None", None),
        ("convert_tokens_to_ids", (["a", None],), TypeError, "None", None),
        ("convert_tokens_to_ids", ([5],), TypeError, "int", None),
        ("convert_tokens_to_ids", ([["a"]],), TypeError, "list", None),
        ("convert_tokens_to_ids", (b"a",), TypeError, "bytes|int", None),
        ("convert_tokens_to_string", (None,), TypeError, "None", None),
        ("convert_tokens_to_string", ("ab",), TypeError, "str", None),
        ("convert_tokens_to_string", ([5],), TypeError, "int", None),
        ("tokenize", (b"a",), TypeError, "bytes", ValueError),
        ("tokenize", ("a", 3), TypeError, "int", ValueError),
        ("encode", (None,), TypeError, "None", ValueError),
        ("pad", ({"words": [[5]]},), ValueError, "input_ids.*words", None),
        ("pad", ([],), (TypeError, ValueError), "input_ids", AttributeError),
        ("pad", ([[5]],), (TypeError, ValueError), "mapping", AttributeError),
        ("pad", ({"input_ids": [[5]]}, "left"), ValueError, "padding='left'", None),
        (
            "pad",
            ([{"input_ids": [5], "token_type_ids": [0]}, {"input_ids": [5]}],),
            (KeyError, ValueError),
            "token_type_ids",
            None,
        ),
    ],
)
def test_methods(method, arguments, error, message, of_reference, ours, reference):
    theirs = error_of(lambda: getattr(reference, method)(*arguments))
    assert isinstance(theirs, of_reference or error), f"the reference raises {theirs!r}"
    with pytest.raises(error, match=message):
        getattr(ours, method)(*arguments)


def test_tensors_of_strings(ours, reference):
    rows = {"input_ids": [["a"], ["b"]]}
    assert isinstance(error_of(lambda: reference.pad(dict(rows), return_tensors="pt")), ValueError)
    with pytest.raises((TypeError, ValueError)):
        ours.pad(dict(rows), return_tensors="pt")


def test_ids_outside_the_vocabulary(ours, small_vocab):
    # The reference gives None, which fails later and elsewhere.
    size = len(small_vocab)
    for ids in (size, [5, size]):
        with pytest.raises(IndexError, match=f"id {size} is outside the vocabulary of {size} tokens"):
            ours.convert_ids_to_tokens(ids)


@pytest.mark.parametrize("name", ["padding_side", "truncation_side"])
def test_sides_of_the_tokenizer(name, small_vocab, make_ours, make_reference):
    for make in (make_ours, make_reference):
        with pytest.raises(ValueError, match=r"(?=.*right).*left"):
            make(small_vocab, **{name: "middle"})("a", padding=True, truncation=True, max_length=8)


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("token_to_word", ("a",), TypeError),
        ("token_to_word", (1.5,), TypeError),
        ("word_to_tokens", (1.5,), TypeError),
        ("char_to_token", (None,), TypeError),
        ("char_to_token", ("a",), TypeError),
        ("tokens", ("a",), TypeError),
        ("tokens", (9,), IndexError),
        ("word_ids", (-9,), IndexError),
        ("token_to_word", (9, 0), IndexError),
    ],
)
def test_methods_of_the_result(method, arguments, error, ours, reference):
    for tokenizer in (ours, reference):
        with pytest.raises(error):
            getattr(tokenizer("a b"), method)(*arguments)


def test_values_without_texts_have_no_rows(ours):
    padded = ours.pad({"input_ids": [[5], [5, 6]]})
    with pytest.raises(KeyError):
        padded[0]
    with pytest.raises(KeyError, match="labels"):
        padded["labels"]
