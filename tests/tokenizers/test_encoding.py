"""The result of a call: its mappings, types and errors, pickling, and its use by transformers and by torch."""

import os
import pickle
import signal
import threading
import time
import warnings
from functools import partial

import numpy as np
import pytest
import torch

TEXT, PAIR = "un affable [MASK] cafe\u0301", "hello world!"


@pytest.fixture(scope="module")
def ours(small_vocab, make_ours):
    return make_ours(small_vocab, model_max_length=64)


@pytest.fixture(scope="module")
def reference(small_vocab, make_reference):
    return make_reference(small_vocab, model_max_length=64)


@pytest.fixture
def both(ours, reference):
    """Applies a function to our tokenizer and to the reference; gives the two results or the types of the errors."""

    def run(function):
        results = []
        for tokenizer in (ours, reference):
            try:
                results.append(function(tokenizer))
            except Exception as error:  # noqa: BLE001  # whatever the reference raises
                results.append(type(error))
        return results

    return run


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("token_to_word", (0,)),
        ("token_to_word", (2,)),
        ("token_to_word", (1, 2)),
        ("token_to_word", (1, 999)),
        ("token_to_word", (9, 0)),
        ("token_to_sequence", (0,)),
        ("token_to_sequence", (0, 3)),
        ("token_to_sequence", (0, 999)),
        ("token_to_sequence", (7, 0)),
        ("token_to_chars", (0,)),
        ("token_to_chars", (1,)),
        ("token_to_chars", (1, 999)),
        ("token_to_chars", (7, 0)),
        ("word_to_tokens", (0,)),
        ("word_to_tokens", (1,)),
        ("word_to_tokens", (999,)),
        ("word_to_tokens", (0, 0, 1)),
        ("word_to_tokens", (0, 1, 1)),
        ("word_to_tokens", (1, 0, 1)),
        ("word_to_tokens", (7, 0)),
        ("word_to_chars", (0,)),
        ("word_to_chars", (0, 3)),
        ("word_to_chars", (0, 0, 1)),
        ("word_to_chars", (7, 0)),
        ("char_to_token", (0,)),
        ("char_to_token", (2,)),
        ("char_to_token", (22,)),
        ("char_to_token", (999,)),
        ("char_to_token", (0, 5, 1)),
        ("char_to_token", (0, 6, 1)),
        ("char_to_token", (1, 0)),
        ("char_to_token", (7, 0)),
        ("char_to_word", (0,)),
        ("char_to_word", (3,)),
        ("char_to_word", (0, 6, 1)),
        ("char_to_word", (999,)),
        ("tokens", (1,)),
        ("tokens", (-1,)),
        ("tokens", (2,)),
        ("word_ids", (1,)),
        ("word_ids", (2,)),
        ("sequence_ids", (1,)),
        ("sequence_ids", (2,)),
    ],
)
def test_mappings(method, arguments, both):
    for pairs in ([PAIR, "a"], None):
        got, expected = both(lambda t, pairs=pairs: getattr(t([TEXT, "b c"], pairs, padding=True), method)(*arguments))
        assert got == expected
        assert type(got).__name__ == type(expected).__name__


def test_mappings_of_a_known_text(ours):
    encoding = ours(TEXT, PAIR)
    assert encoding.tokens()[:7] == ["[CLS]", "un", "aff", "##able", "[MASK]", "cafe", "[SEP]"]
    assert encoding.word_ids()[:7] == [None, 0, 1, 1, 2, 3, None]
    assert encoding.sequence_ids() == [None, 0, 0, 0, 0, 0, None, 1, 1, 1, None]
    assert encoding.word_to_tokens(1) == (2, 4)
    assert (encoding.word_to_tokens(1).start, encoding.word_to_tokens(1).end) == (2, 4)
    assert encoding.word_to_chars(1) == (3, 10)
    assert (encoding.token_to_chars(3).start, encoding.token_to_chars(3).end) == (6, 10)
    assert encoding.char_to_token(11) == 4
    assert encoding.char_to_token(0, 6, 1) == encoding.char_to_token(6, sequence_index=1) == 8
    assert encoding.char_to_token(10) is None
    assert encoding.token_to_word(0) is None
    assert encoding.token_to_sequence(6) is None
    assert encoding[0].special_tokens_mask == [1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "ask",
    [
        lambda encoding: encoding["labels"],
        lambda encoding: encoding.labels,
        lambda encoding: encoding[2],
        lambda encoding: encoding[-3],
        lambda encoding: encoding.get("labels"),
        lambda encoding: encoding.get("labels", 3),
        lambda encoding: hasattr(encoding, "labels"),
        lambda encoding: "labels" in encoding,
        lambda encoding: "input_ids" in encoding,
        lambda encoding: list(encoding.keys()),
        lambda encoding: list(encoding.values()),
        lambda encoding: list(encoding.items()),
        lambda encoding: list(encoding),
        lambda encoding: len(encoding),
        lambda encoding: dict(encoding),
        lambda encoding: dict(**encoding),
        lambda encoding: encoding.data,
        lambda encoding: encoding.pop("attention_mask"),
        lambda encoding: encoding.update(labels=[1]) or dict(encoding),
        lambda encoding: encoding.setdefault("labels", 7),
        lambda encoding: encoding.is_fast,
        lambda encoding: encoding.n_sequences,
        lambda encoding: len(encoding.encodings),
        lambda encoding: encoding[-1].tokens,
        lambda encoding: len(encoding[1]),
        lambda encoding: encoding.convert_to_tensors("nonsense"),
        lambda encoding: encoding.convert_to_tensors(None).input_ids,
        lambda encoding: encoding.convert_to_tensors("np").input_ids.tolist(),
        lambda encoding: encoding.convert_to_tensors("pt").input_ids.tolist(),
        lambda encoding: encoding.convert_to_tensors("pt", prepend_batch_axis=True).input_ids.shape,
    ],
)
def test_container(ask, both):
    got, expected = both(lambda tokenizer: ask(tokenizer(["a b", "c"], [PAIR, ""], padding=True)))
    assert got == expected
    got, expected = both(lambda tokenizer: ask(tokenizer([TEXT, TEXT])))
    assert got == expected


def test_values_can_be_set(ours):
    encoding = ours(["a", "b"])
    encoding["labels"] = [0, 1]
    assert encoding.labels == [0, 1]
    assert list(encoding)[-1] == "labels"
    del encoding["labels"]
    assert "labels" not in encoding


@pytest.mark.parametrize("kind", ["np", "pt"])
@pytest.mark.parametrize("single", [True, False])
def test_tensors(kind, single, ours):
    flags = {f"return_{name}": True for name in ("special_tokens_mask", "offsets_mapping", "length")}
    text = TEXT if single else [TEXT, "a", ""]
    encoding = ours(text, padding="max_length", max_length=12, truncation=True, return_tensors=kind, **flags)
    rows = 1 if single else 3
    shapes = dict.fromkeys(encoding, (rows, 12)) | {"offset_mapping": (rows, 12, 2), "length": (rows,)}
    assert {key: tuple(value.shape) for key, value in encoding.items()} == shapes
    expected = (np.ndarray, np.dtype(np.int64)) if kind == "np" else (torch.Tensor, torch.int64)
    assert {(type(value), value.dtype) for value in encoding.values()} == {expected}
    for value in encoding.values():
        # Writing into one result changes no other.
        value[0] = 7
    again = ours(text, padding="max_length", max_length=12, truncation=True, return_tensors=kind, **flags)
    assert again["input_ids"][0, 0] != 7


def test_to_a_device(ours):
    encoding = ours(TEXT, return_tensors="pt")
    assert encoding.to("cpu") is encoding
    assert encoding.to(torch.device("cpu")).input_ids.device == torch.device("cpu")
    assert encoding.to("meta").input_ids.device == torch.device("meta")
    assert ours(TEXT).to("cpu").input_ids == ours(TEXT).input_ids


@pytest.mark.parametrize("options", [{}, {"padding": True, "return_tensors": "pt", "return_offsets_mapping": True}])
def test_pickle(options, ours):
    encoding = ours([TEXT, "a"], [PAIR, "b"], **options)
    copy = pickle.loads(pickle.dumps(encoding))
    assert list(copy) == list(encoding)
    for key, value in encoding.items():
        assert torch.equal(torch.as_tensor(copy[key]), value) if options else copy[key] == value
    assert copy.tokens(1) == encoding.tokens(1)
    assert copy.word_ids() == encoding.word_ids()
    assert copy[0].offsets == encoding[0].offsets
    assert copy.char_to_token(0, 6, 1) == encoding.char_to_token(0, 6, 1)


def same_batches(got, expected):
    assert list(got) == list(expected)
    for key in expected:
        assert got[key].dtype == expected[key].dtype
        assert torch.equal(got[key], expected[key]), key


@pytest.fixture(scope="module")
def features(ours, reference):
    """Rows of our results and of the reference's, with a label per token."""

    def make(tokenizer, as_encoding, **options):
        rows = [tokenizer(text, pair, **options) for text, pair in ((TEXT, PAIR), ("a [SEP] b", None), ("", "c"))]
        for row in rows:
            row["labels"] = list(range(len(row["input_ids"])))
        return rows if as_encoding else [dict(row) for row in rows]

    return lambda **options: (make(ours, **options), make(reference, **options))


@pytest.mark.parametrize("as_encoding", [True, False])
@pytest.mark.parametrize("mask", [True, False])
def test_collators_of_transformers(as_encoding, mask, ours, reference, features):
    transformers = pytest.importorskip("transformers")
    options = {"as_encoding": as_encoding, "return_special_tokens_mask": mask}
    collators = [
        (transformers.DataCollatorForTokenClassification, {"pad_to_multiple_of": 8}),
        (transformers.DataCollatorForTokenClassification, {"padding": "max_length", "max_length": 20}),
        (transformers.DataCollatorWithPadding, {}),
        (transformers.DataCollatorWithPadding, {"padding": "max_length", "max_length": 16}),
        (transformers.DataCollatorForLanguageModeling, {"mlm_probability": 0.5}),
        (transformers.DataCollatorForLanguageModeling, {"mlm_probability": 0.5, "pad_to_multiple_of": 8}),
        (transformers.DataCollatorForLanguageModeling, {"mlm": False}),
    ]
    for collator, settings in collators:
        batches = []
        for tokenizer, rows in zip((ours, reference), features(**options)):
            if collator is not transformers.DataCollatorForTokenClassification:
                for row in rows:
                    del row["labels"]
            torch.manual_seed(5)
            batches.append(collator(tokenizer, **settings)(rows))
        same_batches(*batches)


def test_default_data_collator(ours, reference):
    transformers = pytest.importorskip("transformers")
    batches = []
    for tokenizer in (ours, reference):
        rows = [tokenizer(text, padding="max_length", max_length=12, truncation=True) for text in (TEXT, PAIR)]
        for label, row in enumerate(rows):
            row["label"] = label
        batches.append(transformers.default_data_collator(rows))
    same_batches(*batches)


def test_sides_can_be_changed(small_vocab, make_ours, make_reference):
    texts = ["a b c d e f", "a"]
    for padding_side, truncation_side in (("left", "left"), ("right", "left"), ("left", "right")):
        results = []
        for make in (make_ours, make_reference):
            tokenizer = make(small_vocab)
            tokenizer.padding_side, tokenizer.truncation_side = padding_side, truncation_side
            results.append(dict(tokenizer(texts, max_length=5, truncation=True, padding=True)))
        assert results[0] == results[1]


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        ({"input_ids": [[5], [5, 6]]}, {}),
        ([{"input_ids": [5], "token_type_ids": [1]}, {"input_ids": [5, 6], "token_type_ids": [0, 1]}], {}),
        ({"input_ids": [5, 6]}, {"padding": "max_length", "max_length": 4}),
        ({"input_ids": [5, 6]}, {"padding": "max_length", "max_length": 1}),
        ({"input_ids": [5, 6], "special_tokens_mask": [1, 0]}, {"padding": "max_length"}),
        ({"input_ids": [[5], [5, 6]]}, {"pad_to_multiple_of": 4, "return_attention_mask": False}),
        ({"input_ids": [[5], [5, 6]]}, {"padding_side": "left"}),
        ({"input_ids": [[5], [5, 6]]}, {"padding": False}),
        ({"input_ids": [[5], [5, 6]], "attention_mask": [[0], [1, 0]]}, {"padding": "max_length", "max_length": 3}),
        ({"input_ids": [[5], [5, 6]], "labels": [1, 2], "note": ["x", "y"]}, {}),
        ({"input_ids": [[5], [5, 6]], "labels": [1, 2]}, {"return_tensors": "pt"}),
        ({"input_ids": np.array([[5], [6]])}, {"pad_to_multiple_of": 2}),
        ({"input_ids": torch.tensor([[5], [6]])}, {"padding": "max_length", "max_length": 3}),
        ({"input_ids": []}, {}),
        ({"input_ids": [[]]}, {}),
        ({"input_ids": [[], [5]]}, {}),
        ({"words": [[5]]}, {}),
        ({"input_ids": [[5], [5, 6]]}, {"padding_side": "middle"}),
    ],
)
def test_pad(rows, options, both):
    def pad(tokenizer):
        copy = [dict(row) for row in rows] if isinstance(rows, list) else dict(rows)
        padded = tokenizer.pad(copy, **options)
        return {key: (type(value).__name__, np.asarray(value).tolist()) for key, value in padded.items()}

    got, expected = both(pad)
    assert got == expected


def test_special_tokens_around(ours, both):
    ids = ours("a [SEP] b", add_special_tokens=False).input_ids
    for pair in (False, True):
        got, expected = both(lambda tokenizer, pair=pair: tokenizer.num_special_tokens_to_add(pair))
        assert got == expected
    row = [2, *ids, 3, 0]
    got, expected = both(lambda tokenizer: tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True))
    assert got == expected == [1, 0, 1, 0, 1, 1]
    got, expected = both(lambda t: t.get_special_tokens_mask(row, [1], already_has_special_tokens=True))
    assert got is expected is ValueError
    if hasattr(ours, "build_inputs_with_special_tokens"):
        assert ours.build_inputs_with_special_tokens(ids) == ours("a [SEP] b").input_ids
        assert ours.build_inputs_with_special_tokens(ids, [70]) == [2, *ids, 3, 70, 3]


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_data_loader_workers(context, workers, ours):
    texts = [TEXT, PAIR, "a", "", "b c"] * 3
    collate = partial(ours, padding=True, return_tensors="pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork beside threads
        loader = torch.utils.data.DataLoader(
            texts, batch_size=2, collate_fn=collate, num_workers=workers, multiprocessing_context=context
        )
        batches = list(loader)
    assert len(batches) == 8
    for start, batch in zip(range(0, 15, 2), batches):
        same_batches(batch, collate(texts[start : start + 2]))
        assert batch.tokens(0)[0] == "[CLS]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_while_threads_encode(ours):
    texts = [f"{TEXT} {PAIR} {number}" for number in range(200)]
    expected = dict(ours(texts, truncation=True, max_length=8, stride=2, return_overflowing_tokens=True))
    done, failures = threading.Event(), []

    def check():
        if dict(ours(texts, truncation=True, max_length=8, stride=2, return_overflowing_tokens=True)) != expected:
            failures.append("a result changed")

    def work():
        while not done.is_set():
            check()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                status = 1
                try:
                    check()
                    status = len(failures)
                finally:
                    os._exit(status)
            assert wait_for(child) == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures


def wait_for(child):
    """Its exit status; a child that hangs is killed."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung for 30 s"
