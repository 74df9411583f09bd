"""WordPieceTokenizer by itself: options, shapes, errors, threads, pickling. The parity tests compare the ids."""

import pickle
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s", "!", "un", "##aff", "##able"]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(VOCAB)


def test_vocabulary_properties(tokenizer):
    assert tokenizer.vocab_size == len(tokenizer) == len(VOCAB)
    assert tokenizer.vocab == {token: index for index, token in enumerate(VOCAB)}
    assert [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.cls_token_id] == [0, 1, 2]
    assert [tokenizer.sep_token_id, tokenizer.mask_token_id] == [3, 4]
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    assert tokenizer.is_continuation.dtype == np.bool_
    assert np.flatnonzero(tokenizer.is_continuation).tolist() == [7, 10, 11]
    assert tokenizer.convert_tokens_to_ids("world") == 6
    assert tokenizer.convert_tokens_to_ids(["world", "nothing"]) == [6, 1]
    assert tokenizer.convert_ids_to_tokens(np.array([6, 7])) == ["world", "##s"]
    assert tokenizer.convert_ids_to_tokens(6) == "world"
    with pytest.raises(IndexError, match="id 12 is outside the vocabulary of 12 tokens"):
        tokenizer.convert_ids_to_tokens([12])


def test_the_papers_example(tokenizer):
    assert tokenizer.tokenize("Unaffable worlds!") == ["un", "##aff", "##able", "world", "##s", "!"]
    assert tokenizer.encode("hello") == [2, 5, 3]
    assert tokenizer.decode([2, 9, 10, 11, 8, 3], skip_special_tokens=True) == "unaffable!"


def test_ragged_arrays(tokenizer):
    ids, offsets = tokenizer.encode_ragged(["hello worlds", "", "xyz"])
    assert ids.dtype == np.int32
    assert offsets.dtype == np.int64
    assert ids.tolist() == [5, 6, 7, 1]
    assert offsets.tolist() == [0, 3, 3, 4]
    ids, offsets = tokenizer.encode_ragged(("hello", ""), add_special_tokens=True)
    assert ids.tolist() == [2, 5, 3, 2, 3]
    assert offsets.tolist() == [0, 3, 5]
    ids, offsets = tokenizer.encode_ragged([])
    assert ids.shape == (0,)
    assert offsets.tolist() == [0]


def test_call_single_and_batch(tokenizer):
    single = tokenizer("hello", "world")
    assert single.input_ids == [2, 5, 3, 6, 3]
    assert single["token_type_ids"] == [0, 0, 0, 1, 1]
    assert dict(**single).keys() == {"input_ids", "token_type_ids", "attention_mask"}
    batch = tokenizer(["hello", "hello world"], padding=True, return_tensors="np")
    assert batch.input_ids.dtype == np.int64
    assert batch.input_ids.tolist() == [[2, 5, 3, 0], [2, 5, 6, 3]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert tokenizer(["hello"], padding="max_length", max_length=5).attention_mask == [[1, 1, 1, 0, 0]]
    assert tokenizer("hello hello hello", max_length=3).input_ids == [2, 5, 3]
    assert tokenizer("hello", return_tensors="np").input_ids.shape == (1, 3)
    assert pickle.loads(pickle.dumps(single)).input_ids == single.input_ids


def test_tensors(tokenizer):
    torch = pytest.importorskip("torch")
    batch = tokenizer(["hello", "hello world"], padding=True, return_tensors="pt")
    assert batch.input_ids.dtype == torch.int64
    assert batch.to("cpu").attention_mask.sum().item() == 7


def test_pack(tokenizer):
    torch = pytest.importorskip("torch")
    batch = tokenizer.pack(["hello", "hello world"], ["world", "world " * 600], max_length=8)
    assert batch.input_ids.tolist() == [2, 5, 3, 6, 3, 2, 5, 6, 3, 6, 6, 6, 3]
    assert batch.token_type_ids.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]
    assert batch.cu_seqlens.tolist() == [0, 5, 13]
    assert batch.cu_seqlens.dtype == torch.int32
    assert batch.max_seqlen == 8


def test_long_text_is_no_error(tokenizer):
    assert len(tokenizer("hello " * 1000).input_ids) == 1002
    assert len(tokenizer("hello " * 1000, truncation=True).input_ids) == 512


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        pytest.param((b"hello",), {}, TypeError, "sequence of strings, not bytes; decode", id="bytes"),
        pytest.param((["a", b"b"],), {}, TypeError, r"text\[1\] must be a string, not bytes; decode", id="bytes-item"),
        pytest.param((["a", None],), {}, TypeError, r"text\[1\] must be a string, not NoneType", id="none-item"),
        pytest.param((None,), {}, TypeError, "sequence of strings, not NoneType", id="none"),
        pytest.param(("a\ud800b",), {}, TypeError, r"text\[0\] holds a lone surrogate", id="surrogate"),
        pytest.param((["a"], ["\udfff"]), {}, TypeError, r"text_pair\[0\] holds a lone surrogate", id="surrogate-pair"),
        pytest.param((["a", "b"], ["c"]), {}, ValueError, "text has 2 items but text_pair 1", id="unequal"),
        pytest.param((["a"], "b"), {}, TypeError, "text_pair must be a list", id="string-for-batch"),
        pytest.param(("a", ["b"]), {}, TypeError, "text_pair must be one too", id="batch-for-string"),
        pytest.param(("a",), {"max_length": 1}, ValueError, "max_length=1 has no room for the 2 special", id="no-room"),
        pytest.param(("a", "b"), {"max_length": 2}, ValueError, "no room for the 3 special", id="no-room-pair"),
        pytest.param(("a",), {"max_length": -1}, ValueError, "max_length=-1", id="negative"),
        pytest.param(("a",), {"truncation": "middle"}, ValueError, "truncation='middle' must be one", id="truncation"),
        pytest.param(("a",), {"padding": "left"}, ValueError, "padding='left' must be one", id="padding"),
        pytest.param(("a",), {"return_tensors": "tf"}, ValueError, "return_tensors='tf'", id="tensors"),
        pytest.param((["a", "a!"],), {"return_tensors": "pt"}, ValueError, "add padding=True", id="ragged-tensor"),
        pytest.param(
            ("hello " * 9,), {"max_length": 5, "truncation": "only_second"}, ValueError, "is not a pair", id="no-second"
        ),
        pytest.param(
            ("hello hello", "a"),
            {"max_length": 3, "truncation": "only_second"},
            None,
            None,
            id="room-for-specials-only-empties-both",
        ),
        pytest.param(
            ("hello " * 9, "hello"),
            {"max_length": 5, "truncation": "only_second"},
            ValueError,
            "row 0 cannot be cut to max_length=5",
            id="second-too-short",
        ),
    ],
)
def test_bad_calls(tokenizer, arguments, options, error, message):
    if error is None:
        assert tokenizer(*arguments, **options).input_ids == [2, 3, 3]
        return
    with pytest.raises(error, match=message) as caught:
        tokenizer(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_bad_vocabularies():
    with pytest.raises(UserError, match=r"vocab: mask_token='\[MASK\]' is not among its 4 tokens"):
        WordPieceTokenizer(VOCAB[:4])
    with pytest.raises(UserError, match=r"vocab\[12\]: token 'hello' is repeated \(first at vocab\[5\]\)"):
        WordPieceTokenizer([*VOCAB, "hello"])
    with pytest.raises(UserError, match=r"vocab\[12\]: empty token"):
        WordPieceTokenizer([*VOCAB, ""])
    with pytest.raises(TypeError, match=r"vocab\[12\]: a token must be a string, not int"):
        WordPieceTokenizer([*VOCAB, 3])
    with pytest.raises(ValueError, match="model_max_length=0"):
        WordPieceTokenizer(VOCAB, model_max_length=0)
    with pytest.raises(ValueError, match="threads=0"):
        WordPieceTokenizer(VOCAB).encode_ragged(["a"], threads=0)


def test_threads_do_not_change_the_result(seed, small_vocab, hostile_text):
    rng = random.Random(seed)
    tokenizer = WordPieceTokenizer(small_vocab)
    texts = [hostile_text(rng) * rng.choice([1, 1, 50]) for _ in range(3000)]
    texts.insert(17, " ".join(texts))
    ids, offsets = tokenizer.encode_ragged(texts, threads=1)
    for threads in (2, 3, 8):
        for expected, got in zip((ids, offsets), tokenizer.encode_ragged(texts, threads=threads)):
            np.testing.assert_array_equal(got, expected)
    assert ids[offsets[5] : offsets[6]].tolist() == tokenizer.encode_ragged([texts[5]])[0].tolist()


def test_pickle_and_fingerprint(tokenizer):
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy("hello worlds").input_ids == tokenizer("hello worlds").input_ids
    assert copy.fingerprint == tokenizer.fingerprint
    # None means what it resolves to, so it is the same tokenizer.
    assert WordPieceTokenizer(VOCAB, strip_accents=True).fingerprint == tokenizer.fingerprint
    others = [
        WordPieceTokenizer(VOCAB, do_lower_case=False),
        WordPieceTokenizer(VOCAB, strip_accents=False),
        WordPieceTokenizer(VOCAB, tokenize_chinese_chars=False),
        WordPieceTokenizer([*VOCAB, "x"]),
        WordPieceTokenizer([*VOCAB[:5], "world", "hello", *VOCAB[7:]]),
    ]
    assert len({tokenizer.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_additional_special_tokens():
    tokenizer = WordPieceTokenizer([*VOCAB, "<e>"], additional_special_tokens=["<e>"])
    assert tokenizer.tokenize("hello<e>world") == ["hello", "<e>", "world"]
    assert WordPieceTokenizer([*VOCAB, "<e>"]).tokenize("<e>") == ["[UNK]", "[UNK]", "[UNK]"]
    added = WordPieceTokenizer(VOCAB, additional_special_tokens=["<f>"])
    assert added.tokenize("<f>") == ["<f>"]
    assert (added.vocab_size, len(added)) == (len(VOCAB), len(VOCAB) + 1)


@pytest.mark.parametrize(
    "unit",
    ["a", "[", "[MAS", "é", "\u0301", "\U0001d165\u302e", "中", "[MASK]", "\x00", " ", "!", "𝒳\u0301"],
    ids=ascii,
)
def test_hostile_megabytes_take_no_more_than_linear_time(unit):
    vocab = [*VOCAB, *("a" * n for n in range(1, 80)), *("##" + "a" * n for n in range(1, 80)), "é", "##é"]
    tokenizer = WordPieceTokenizer(vocab, strip_accents=False)
    text = unit * (1_000_000 // len(unit.encode()))
    begin = time.perf_counter()
    tokenizer.encode_ragged([text, text.replace("a", "a" * 99 + " ", 10_000)], threads=1)
    # A hundredfold of what it takes; quadratic behaviour would take hours.
    assert time.perf_counter() - begin < 5


def test_import_needs_neither_torch_nor_tokenizers():
    code = (
        "import sys, fastbert.tokenizers; "
        "assert not {'torch', 'tokenizers', 'transformers', 'rich', 'tyro'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
