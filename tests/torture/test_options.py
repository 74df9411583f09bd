"""Row 2 of the scorecard: all options of a call give what they give with BertTokenizerFast, in all that it returns.

Wanted deviations, where ours raises a ValueError that names the value and the cure: a length with no room for the
special tokens (the reference then cuts nothing), a stride that leaves no step forward (the reference panics), and
only_first or only_second that would remove a whole sequence (the reference raises a bare Exception).

One file: the draws of a call and the comparison of its results belong together.
"""

import random
import re
import warnings
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torture.campaign import Campaign
from torture.ledger import Figures
from torture.scorecard import scored
from wordpiece_cases import draw_call, small_vocabulary

from fastbert.tokenizers import WordPieceTokenizer

SETTINGS = [
    {"do_lower_case": True, "model_max_length": 16},
    {"do_lower_case": False, "truncation_side": "left", "model_max_length": 20},
    {"strip_accents": False, "padding_side": "left", "model_max_length": 512},
    {"do_lower_case": False, "strip_accents": True, "padding_side": "left", "truncation_side": "left"},
    {"tokenize_chinese_chars": False},
]
ROW_FIELDS = ("ids", "tokens", "type_ids", "offsets", "word_ids", "sequence_ids", "attention_mask")
ROW_FIELDS += ("special_tokens_mask", "n_sequences")
UNLIMITED = int(1e30)


@pytest.fixture(scope="module")
def contenders():
    """(settings, ours, reference) for each of the settings."""
    transformers = pytest.importorskip("transformers")
    made, vocab = [], small_vocabulary()
    numbered = {token: index for index, token in enumerate(vocab)}
    for settings in SETTINGS:
        settings = {"model_max_length": UNLIMITED, **settings}
        reference = transformers.BertTokenizerFast(vocab=numbered, **settings)
        made.append((settings, WordPieceTokenizer(vocab, **settings), reference))
    return made


def leaf(value):
    """The first item that is no list, tuple or array of arrays."""
    while isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        if len(value) == 0:
            return None
        value = value[0]
    return value


def assert_same_value(name, got, expected):
    assert type(got) is type(expected), f"{name}: a {type(got)}, not a {type(expected)}"
    if isinstance(expected, list):
        assert got == expected, f"{name}: {got} instead of {expected}"
        assert type(leaf(got)) is type(leaf(expected)), f"{name}: items of {type(leaf(got))}"
        return
    assert got.dtype == expected.dtype, f"{name}: {got.dtype} instead of {expected.dtype}"
    assert got.shape == expected.shape, f"{name}: shape {got.shape} instead of {expected.shape}"
    if isinstance(expected, torch.Tensor):
        assert torch.equal(got, expected), f"{name}: {got} instead of {expected}"
        return
    if expected.dtype == object:
        # Rows of different lengths: an array of arrays.
        assert type(leaf(got)) is type(leaf(expected)), f"{name}: items of {type(leaf(got))}"
        same = all(np.array_equal(ours, theirs) for ours, theirs in zip(got, expected))
    else:
        same = np.array_equal(got, expected)
    assert same, f"{name}: {got} instead of {expected}"


def assert_same_row(where, got, expected):
    assert len(got) == len(expected), f"{where}: {len(got)} tokens instead of {len(expected)}"
    for field in ROW_FIELDS:
        ours, theirs = getattr(got, field), getattr(expected, field)
        assert ours == theirs, f"{where}.{field}: {ours} instead of {theirs}"
        assert type(leaf(ours)) is type(leaf(theirs)), f"{where}.{field}: items of {type(leaf(ours))}"


def answer(result, method, *arguments):
    """What a method of the result says; errors by type."""
    try:
        return getattr(result, method)(*arguments)
    except (TypeError, IndexError) as error:
        # The reference unpacks None when there is no such word: None is as good.
        return None if "after * must be" in str(error) else type(error)


def assert_same_mappings(rng, got, expected, row):
    size, words = len(expected[row]), [word for word in expected.word_ids(row) if word is not None]
    token, char, sequence = rng.randrange(size + 2), rng.randrange(40), rng.choice([0, 0, 1, 1, 2])
    word = rng.choice([*words, rng.randrange(12)])
    forms = [(row, token), (row + 1 if len(expected.encodings) > row else row, token)]
    questions = [(name, form) for name in ("token_to_word", "token_to_sequence", "token_to_chars") for form in forms]
    questions += [(name, (row, char, sequence)) for name in ("char_to_token", "char_to_word")]
    questions += [(name, (row, word, sequence)) for name in ("word_to_tokens", "word_to_chars")]
    # Without the index of the row, it is the first.
    questions += [("token_to_word", (token,)), ("char_to_token", (char, None, sequence))]
    questions += [("word_to_tokens", (word, None, sequence)), ("word_to_chars", (word,)), ("char_to_word", (char,))]
    for method, arguments in questions:
        ours, theirs = answer(got, method, *arguments), answer(expected, method, *arguments)
        assert ours == theirs, f"{method}{arguments}: {ours} instead of {theirs}"
        assert type(ours) is type(theirs) or tuple(ours) == tuple(theirs), f"{method}{arguments}: a {type(ours)}"
    for method, arguments in (("token_to_chars", (token,)), ("word_to_chars", (word, sequence))):
        ours, theirs = (getattr(result[row], method)(*arguments) for result in (got, expected))
        assert ours == theirs, f"[{row}].{method}{arguments}: {ours} instead of {theirs}"


def assert_same_result(rng, got, expected, overflow):
    assert list(got) == list(expected), f"keys {list(got)} instead of {list(expected)}"
    for name in expected:
        assert_same_value(name, got[name], expected[name])
        assert getattr(got, name) is got[name], f"{name}: attribute and item differ"
    assert len(got.encodings) == len(expected.encodings)
    assert got.n_sequences == expected.n_sequences
    assert got.is_fast is True
    rows = len(expected.encodings)
    for row in {0, rows - 1, rng.randrange(rows)}:
        assert_same_row(f"[{row}]", got[row], expected[row])
        for method in ("tokens", "word_ids", "sequence_ids"):
            assert getattr(got, method)(row) == getattr(expected, method)(row), f"{method}({row})"
        assert_same_mappings(rng, got, expected, row)
    if overflow and len(expected[0].overflowing) < 200:
        assert len(got[0].overflowing) == len(expected[0].overflowing), "number of overflowing rows"
        for index, (ours, theirs) in enumerate(zip(got[0].overflowing, expected[0].overflowing)):
            assert_same_row(f"[0].overflowing[{index}]", ours, theirs)


def is_batch(call):
    words = call.options.get("is_split_into_words", False)
    return isinstance(call.text[0] if words and call.text else "" if words else call.text, list | tuple)


def expected_refusal(call, model_max_length):
    """What our refusal must say, if the length or the stride alone is wrong."""
    options = call.options
    is_pair = call.pair is not None if is_batch(call) else bool(call.pair)
    truncation, length = options.get("truncation"), options.get("max_length")
    cuts = truncation not in (None, False, "do_not_truncate")
    if truncation is None and length is not None and options.get("padding", False) is False:
        cuts = True
    length = model_max_length if length is None else length
    added = (3 if is_pair else 2) if options.get("add_special_tokens", True) else 0
    if not cuts or length == UNLIMITED:
        return None
    if length < added:
        return rf"(?=.*max_length={length}\b).*larger"
    stride = options.get("stride", 0)
    return rf"(?=.*stride={stride}\b).*(smaller|larger)" if stride and stride >= length - added else None


def check_call(rng, ours, reference, call):
    """One call; says whether results were compared."""
    got = call.of(ours)
    if refusal := expected_refusal(call, reference.model_max_length):
        assert isinstance(got, ValueError), f"{got!r} instead of a ValueError"
        assert re.search(refusal, str(got)), f"{str(got)!r} does not match {refusal!r}"
        return "refused"
    expected = call.of(reference)
    overflow = call.options.get("return_overflowing_tokens", False)
    if isinstance(expected, BaseException):
        message = str(expected)
        if type(expected).__name__ == "PanicException" and not overflow:
            # Windows that nobody asked for: the ids may be given or refused.
            assert not isinstance(got, BaseException) or isinstance(got, ValueError), repr(got)
            return "refused"
        assert isinstance(got, ValueError), f"{got!r} instead of a ValueError for {expected!r}"
        assert "\n" not in str(got)
        cures = ["longest_first"] if "Truncation error" in message else []
        if "stride" in message or (cures and call.options.get("stride") and is_batch(call)):
            # Rows of a batch may fail in both ways, and which one the reference tells is up to its threads.
            cures += [f"stride={call.options['stride']}", *(["longest_first"] if is_batch(call) else [])]
        if cures:
            assert any(cure in str(got) for cure in cures), f"{got!r} for {expected!r}"
        elif "pad_to_multiple_of" in message:
            # Ours looks at the stride first.
            wrong = [f"{name}={call.options.get(name)}" for name in ("pad_to_multiple_of", "stride")]
            assert any(name in str(got) for name in wrong), str(got)
        else:
            assert "Unable to create tensor" in message, message
        return "refused"
    if call.options.get("return_tensors") == "pt" and len({len(row) for row in expected.encodings}) > 1:
        # Where the first row is empty, torch makes a tensor without items and says nothing of the other rows.
        assert isinstance(got, ValueError), f"{got!r} instead of a ValueError"
        return "refused"
    if isinstance(got, BaseException):
        raise AssertionError(f"ours raises {got!r}") from got
    assert_same_result(rng, got, expected, overflow)
    if rng.random() < 0.1:
        assert_same_value("encode", ours.encode(call.text, call.pair, **call.options), expected["input_ids"])
    if rng.random() < 0.1 and not is_batch(call):
        split = {"is_split_into_words": True} if "is_split_into_words" in call.options else {}
        for specials in (False, True):
            arguments = {"add_special_tokens": specials, **split}
            tokens = reference.tokenize(call.text, call.pair, **arguments)
            assert_same_value("tokenize", ours.tokenize(call.text, call.pair, **arguments), tokens)
    return "overflow" if overflow and expected[0].overflowing else "compared"


def check_calls(contenders, numbers):
    """Compare calls, each of which its number alone determines; return how many were compared, and how."""
    kinds = Counter()
    for number in numbers:
        settings, ours, reference = contenders[number % len(contenders)]
        rng = random.Random(f"calls {number}")
        call = draw_call(rng)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kinds[check_call(rng, ours, reference, call)] += 1
        except AssertionError as error:
            raise AssertionError(f"call {number}, {settings}\n{call}\n{error}") from None
    return kinds


@scored(
    row=2, unit="calls", short=1500, full=1_000_000, chunk=25_000, goal="no difference beyond the published deviations"
)
def test_options_of_generated_calls(campaign: Campaign, contenders) -> None:
    """Keys, types, ids, masks, offsets, words, windows, mappings and refusals of any call are the reference's."""

    def call(numbers: range) -> Figures:
        kinds = check_calls(contenders, numbers)
        if len(numbers) >= 1000:
            assert kinds["compared"] > len(numbers) / 2, kinds
            assert min(kinds["overflow"], kinds["refused"]) > len(numbers) / 30, kinds
        return {name: float(count) for name, count in kinds.items()}

    campaign.run(call)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        pytest.param(("a", ""), {}, id="empty-second-is-no-pair"),
        pytest.param((["a"], [""]), {}, id="empty-second-of-a-batch-is-one"),
        pytest.param(([("a", "b"), ("a", "c d")],), {"padding": True}, id="list-of-pairs"),
        pytest.param(([["a", "b"], ["a", "c d"]],), {}, id="lists-are-pairs"),
        pytest.param(([(["a"], ["b", "c"]), ([], ["d"])],), {"is_split_into_words": True}, id="list-of-word-pairs"),
        pytest.param((["a"], ("b",)), {}, id="tuple-of-pairs"),
        pytest.param((["a", "b"], []), {"is_split_into_words": True}, id="no-second-words"),
        pytest.param(([],), {"is_split_into_words": True}, id="no-words"),
        pytest.param(([[]],), {"is_split_into_words": True}, id="batch-without-words"),
        pytest.param(("a b c",), {"max_length": 2, "return_overflowing_tokens": True}, id="no-room-one-window"),
        pytest.param(("a b", "c d"), {"max_length": 3, "return_overflowing_tokens": True}, id="no-room-in-a-pair"),
        pytest.param(("a b c",), {"max_length": 0, "add_special_tokens": False}, id="nothing-left"),
        pytest.param(
            ("a b c d e",),
            {"max_length": 4, "stride": 2, "add_special_tokens": False, "return_overflowing_tokens": True},
            id="stride-without-special-tokens",
        ),
        pytest.param(("a b c",), {"stride": 99, "truncation": False}, id="stride-of-no-use"),
        pytest.param((["a", "b c"],), {"return_tensors": "np"}, id="array-of-arrays"),
        pytest.param(("a b c",), {"padding": "max_length", "max_length": 4, "return_tensors": "pt"}, id="over-length"),
        pytest.param(("",), {"add_special_tokens": False, "return_tensors": "pt"}, id="nothing-as-tensor"),
        pytest.param((["", ""],), {"add_special_tokens": False, "return_tensors": "np"}, id="nothing-as-arrays"),
    ],
)
def test_named_calls(arguments, options, contenders):
    for _, ours, reference in contenders:
        got, expected = ours(*arguments, **options), reference(*arguments, **options)
        assert_same_result(random.Random(0), got, expected, options.get("return_overflowing_tokens"))


class FaultyRow:
    """A row of the reference of which one thing is wrong."""

    def __init__(self, row, name, change):
        self.row, self.name, self.change = row, name, change

    def __len__(self):
        return self.change(len(self.row)) if self.name == "__len__" else len(self.row)

    def __getattr__(self, name):
        value = getattr(self.row, name)
        if name != self.name:
            return value
        return (lambda *arguments: self.change(value(*arguments))) if callable(value) else self.change(value)


class Faulty:
    """The reference with our refusals, and with one fault of options, result or method."""

    def __init__(self, reference, options=None, result=None, method=None):
        self.reference, self.method = reference, method
        self.change_options, self.change_result = options, result

    def __call__(self, text, pair=None, **options):
        refusal = f"smaller or larger, longest_first: {' '.join(f'{name}={value}' for name, value in options.items())}"
        call = SimpleNamespace(text=text, pair=pair, options=dict(options))
        if expected_refusal(call, self.reference.model_max_length):
            raise ValueError(f"max_length={self.reference.model_max_length} {refusal}")
        if self.change_options:
            self.change_options(self.reference, options)
        side = self.reference.truncation_side
        if self.method == "cut":
            self.reference.truncation_side = "left" if side == "right" else "right"
        try:
            result = self.reference(text, pair, **options)
        except BaseException as error:  # the reference panics with a bare BaseException
            raise ValueError(refusal) from error
        finally:
            self.reference.truncation_side = side
        if self.change_result:
            self.change_result(result)
        return result

    def encode(self, *arguments, **options):
        ids = self(*arguments, **options)["input_ids"]
        return ids[:-1] if self.method == "encode" else ids

    def tokenize(self, *arguments, **options):
        tokens = self.reference.tokenize(*arguments, **options)
        return [*tokens, "x"] if self.method == "tokenize" else tokens


def wrong_row(name, change):
    def apply(result):
        result._encodings = [FaultyRow(row, name, change) for row in result.encodings]

    return {"result": apply}


def wrong_value(name, change):
    def apply(result):
        if name in result.data:
            result.data[name] = change(result.data[name])

    return {"result": apply}


def other(value):
    """Almost the same value."""
    if isinstance(value, list | tuple):
        return type(value)([*value[:-1], other(value[-1])]) if len(value) else value
    if isinstance(value, str | type(None)):
        return "x"
    if isinstance(value, np.ndarray) and value.dtype == object:
        return np.array([*value[:-1], other(value[-1])], dtype=object)
    return value + 1


def swap_padding_side(reference, options):
    side = options.get("padding_side") or reference.padding_side
    options["padding_side"] = "left" if side == "right" else "right"


def lengthen_stride(reference, options):
    options["stride"] = options.get("stride", 0) + 1


def reverse_keys(result):
    result.data = dict(reversed(result.data.items()))


def narrow(value):
    if isinstance(value, list):
        return value
    return value.to(torch.int32) if isinstance(value, torch.Tensor) else value.astype(np.int32)


def shift_by_one(rows):
    return [(begin + 1, end + 1) for begin, end in rows]


KEYS = "input_ids token_type_ids attention_mask special_tokens_mask offset_mapping length overflow_to_sample_mapping"
MAPPINGS = "token_to_word token_to_sequence token_to_chars char_to_token char_to_word word_to_tokens word_to_chars"
FAULTS = {
    "padding-side": {"options": swap_padding_side},
    "truncation-side": {"method": "cut"},
    "stride": {"options": lengthen_stride},
    "key-order": {"result": reverse_keys},
    "missing-key": {"result": lambda result: result.data.popitem()},
    "int32": wrong_value("input_ids", narrow),
    "no-tensors": wrong_value("input_ids", lambda value: value if isinstance(value, list) else value.tolist()),
    "extra-axis": wrong_value("input_ids", lambda value: value if isinstance(value, list) else value[None]),
    "numpy-items": wrong_value("length", lambda value: list(np.array(value)) if isinstance(value, list) else value),
    "shifted-offsets": wrong_row("offsets", shift_by_one),
    "overflowing": wrong_row("overflowing", lambda rows: rows[:-1]),
    "len": wrong_row("__len__", lambda size: size + 1),
    "encode": {"method": "encode"},
    "tokenize": {"method": "tokenize"},
    **{f"key-{name}": wrong_value(name, other) for name in KEYS.split()},
    **{f"row-{name}": wrong_row(name, other) for name in ROW_FIELDS},
    **{f"mapping-{name}": wrong_row(name, lambda value: None if value else (5, 6)) for name in MAPPINGS.split()},
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_found(fault, contenders):
    broken = [(settings, Faulty(reference, **fault), reference) for settings, _, reference in contenders]
    with pytest.raises(AssertionError, match=r"^call \d+, "):
        check_calls(broken, range(2_000))


def test_without_a_fault_the_reference_passes(contenders):
    same = [(settings, Faulty(reference), reference) for settings, _, reference in contenders]
    check_calls(same, range(1_000))
    with pytest.raises(AssertionError, match=r"instead of a ValueError|does not match"):
        check_calls([(s, reference, reference) for s, _, reference in contenders], range(1_000))
