"""Ids and tokens back to text, and between ids and tokens, against BertTokenizerFast."""

import random

import numpy as np
import pytest
import torch

OPTIONS = [
    {},
    {"skip_special_tokens": True},
    {"clean_up_tokenization_spaces": True},
    {"clean_up_tokenization_spaces": None},
    {"skip_special_tokens": True, "clean_up_tokenization_spaces": True},
]


@pytest.fixture(scope="module")
def vocab(small_vocab):
    """With what the clean-up of spaces looks for: contractions, marks, pieces that are marks or empty after "##"."""
    more = ["n't", "'s", "'m", "'ve", "'re", "##n't", "##'s", "##.", "##,", "##", "do", "not", "ca", "it", "##'", "# #"]
    return [*small_vocab, *more]


@pytest.fixture(scope="module")
def ours(vocab, make_ours):
    return make_ours(vocab)


@pytest.fixture(scope="module")
def reference(vocab, make_reference):
    return make_reference(vocab)


def same(method, ours, reference, *arguments, **options):
    """The result of both, which is of the same type and equal."""
    got = getattr(ours, method)(*arguments, **options)
    expected = getattr(reference, method)(*arguments, **options)
    assert type(got) is type(expected), f"{method}: a {type(got)}, not a {type(expected)}"
    assert got == expected, f"{method}: {got!a} instead of {expected!a}"
    return expected


def draw_ids(rng, vocab, outside=0.05):
    """Ids with many marks, special tokens and pieces, a few outside the vocabulary."""
    marks = [vocab.index(token) for token in ".?!,'" for _ in range(2)]
    pools = [marks, range(5), range(len(vocab) - 16, len(vocab)), range(len(vocab))]
    return [
        len(vocab) + rng.randrange(1000) if rng.random() < outside else rng.choice(rng.choice(pools))
        for _ in range(rng.choice([0, 1, 2, 5, 12, 30]))
    ]


def test_random_ids(ours, reference, vocab, seed):
    rng = random.Random(seed)
    seen = set()
    for case in range(6_000):
        ids, options = draw_ids(rng, vocab), rng.choice(OPTIONS)
        try:
            seen.add(same("decode", ours, reference, ids, **options))
            ids = [index for index in ids if index < len(vocab)]
            same("convert_ids_to_tokens", ours, reference, ids, bool(options.get("skip_special_tokens")))
            tokens = [vocab[index] for index in ids] + rng.choices(["nonsense", "##x", ""], k=2)
            same("convert_tokens_to_ids", ours, reference, tokens)
            same("convert_tokens_to_string", ours, reference, tokens)
        except AssertionError as error:
            pytest.fail(f"--seed {seed}, case {case}: ids {ids}, {options}: {error}", pytrace=False)
    assert len(seen) > 3_000


def test_random_batches(ours, reference, vocab, seed):
    rng = random.Random(seed)
    for case in range(500):
        rows = [draw_ids(rng, vocab) for _ in range(rng.randint(1, 4))]
        options = rng.choice(OPTIONS)
        square = np.array([(row * 4 + [0] * 4)[:4] for row in rows])
        forms = [rows, tuple(tuple(row) for row in rows), [np.array(row, dtype=np.int64) for row in rows]]
        forms += [[torch.tensor(row, dtype=torch.int64) for row in rows], square, torch.from_numpy(square)]
        forms += [square.astype(np.int32), square.astype(np.uint16), torch.from_numpy(square).int(), list(square)]
        for form in forms:
            for method in ("decode", "batch_decode"):
                try:
                    same(method, ours, reference, form, **options)
                except AssertionError as error:
                    pytest.fail(f"--seed {seed}, case {case}: {form}, {options}: {error}", pytrace=False)


def test_text_comes_back(ours, reference, draw_text, seed):
    rng = random.Random(seed)
    for _ in range(1_000):
        ids = ours(draw_text(rng), draw_text(rng))["input_ids"]
        for options in OPTIONS:
            same("decode", ours, reference, ids, **options)


@pytest.mark.parametrize(
    "ids",
    [
        5,
        np.int64(5),
        np.array(5),
        torch.tensor(5),
        [],
        (),
        [[]],
        [[], [70]],
        [5, 6],
        (5, 6),
        [np.int64(5), 6],
        [torch.tensor(5)],
        [True],
        np.array([5, 6]),
        np.zeros((0,), dtype=np.int64),
        np.zeros((2, 0), dtype=np.int64),
        torch.tensor([[5], [6]]),
        [[70], [71, 2]],
        [999_999],
        [2**32 - 1],
        {"input_ids": [70, 71]},
    ],
)
def test_forms_of_ids(ids, ours, reference):
    for options in OPTIONS:
        same("decode", ours, reference, ids, **options)
        if not isinstance(ids, dict):
            same("batch_decode", ours, reference, ids, **options)


def test_results_of_a_call(ours, reference):
    same_text = [tokenizer.decode(tokenizer("a b", "c")) for tokenizer in (ours, reference)]
    assert same_text == ["[CLS] a b [SEP] c [SEP]"] * 2
    tensors = ours(["a b", "c"], padding=True, return_tensors="pt").input_ids
    assert ours.batch_decode(tensors, skip_special_tokens=True) == ["a b", "c"]
    assert ours.decode(tensors, skip_special_tokens=True) == ["a b", "c"]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["##able", "##able", "."], "##ableable."),
        (["do", "n't"], "don't"),
        (["do", "not"], "do not"),
        (["it", "'", "s"], "it ' s"),
        (["##", "a", "##"], "## a"),
        (["[CLS]", "un", "##aff", "##able", "!", "[SEP]"], "[CLS] unaffable! [SEP]"),
        (["", "a", ""], " a "),
        ([], ""),
    ],
)
def test_tokens_to_string(tokens, text, ours, reference):
    assert same("convert_tokens_to_string", ours, reference, tokens) == text


def test_clean_up_of_the_whole_text(ours, reference, vocab):
    ids = [vocab.index(token) for token in ("it", "'", "a", "do", "n't", ".", ".", "b", ",", "c", "'", "'s")]
    assert same("decode", ours, reference, ids) != same(
        "decode", ours, reference, ids, clean_up_tokenization_spaces=True
    )


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("convert_ids_to_tokens", (5,)),
        ("convert_ids_to_tokens", (2, True)),
        ("convert_ids_to_tokens", ([2, 70, 0, 4, 3], True)),
        ("convert_ids_to_tokens", (np.array([2, 70]), True)),
        ("convert_ids_to_tokens", (torch.tensor([2, 70]), True)),
        ("convert_ids_to_tokens", ((70, 71),)),
        ("convert_ids_to_tokens", ([],)),
        ("convert_tokens_to_ids", ("hello",)),
        ("convert_tokens_to_ids", ("nonsense",)),
        ("convert_tokens_to_ids", ("",)),
        ("convert_tokens_to_ids", ("Hello",)),
        ("convert_tokens_to_ids", (" hello",)),
        ("convert_tokens_to_ids", ("[SEP]",)),
        ("convert_tokens_to_ids", (["hello", "nonsense", "[PAD]"],)),
        ("convert_tokens_to_ids", (("hello", "##able"),)),
        ("convert_tokens_to_ids", ([],)),
    ],
)
def test_conversions(method, arguments, ours, reference):
    same(method, ours, reference, *arguments)


def test_items_of_arrays_are_python_values(ours):
    assert type(ours.convert_ids_to_tokens(np.array([5]))[0]) is str
    assert type(ours.convert_tokens_to_ids(["a"])[0]) is int


class Wrong:
    """The reference with one method that answers almost right."""

    def __init__(self, reference, method, change):
        self.reference, self.method, self.change = reference, method, change

    def __getattr__(self, name):
        right = getattr(self.reference, name)
        if name != self.method:
            return right
        return lambda *arguments, **options: self.change(right(*arguments, **options))


@pytest.mark.parametrize(
    ("method", "change", "test"),
    [
        ("decode", lambda text: text.replace(" ' ", "'"), test_random_ids),
        ("decode", lambda text: text.replace("##", ""), test_random_ids),
        ("convert_ids_to_tokens", lambda tokens: [token for token in tokens if token != "[MASK]"], test_random_ids),
        ("convert_tokens_to_ids", lambda ids: [max(index, 2) for index in ids], test_random_ids),
        ("convert_tokens_to_string", lambda text: text.strip(), test_random_ids),
        ("decode", lambda text: [text] if isinstance(text, str) else text[::-1], test_random_batches),
        ("batch_decode", tuple, test_random_batches),
    ],
)
def test_a_fault_is_found(method, change, test, reference, vocab):
    with pytest.raises(pytest.fail.Exception, match=f"--seed 1, case .*{method}"):
        test(Wrong(reference, method, change), reference, vocab, 1)
