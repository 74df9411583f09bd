"""What must hold whatever is asked: memory, references, threads, options that are changed later."""

import pickle
import sys
import threading

import pytest

from fastbert.tokenizers import WordPieceTokenizer


def test_what_fails_gives_its_texts_back(small_vocab):
    tokenizer = WordPieceTokenizer(small_vocab)
    text = "x y" * 9
    before = sys.getrefcount(text)
    for _ in range(50):
        with pytest.raises(TypeError):
            tokenizer([text, text, None])
    assert sys.getrefcount(text) == before


def test_padding_beyond_any_memory(small_vocab):
    tokenizer = WordPieceTokenizer(small_vocab)
    with pytest.raises((ValueError, MemoryError)):
        tokenizer(["a"] * 8, padding="max_length", max_length=2**40, return_tensors="np")["input_ids"]
    with pytest.raises((ValueError, MemoryError)):
        tokenizer(["a"] * 80_000, padding="max_length", max_length=2**40, return_tensors="np")["input_ids"]
    # Lengths that no row can have are no limit, as transformers' 1e30 is none.
    for beyond in (2**44, 2**61, 2**61 + 2**20, int(1e30)):
        assert tokenizer("a", padding="max_length", max_length=beyond).input_ids == tokenizer("a").input_ids
        assert tokenizer("a", truncation=True, max_length=beyond).input_ids == tokenizer("a").input_ids


def test_numbers_beyond_the_core(small_vocab):
    tokenizer = WordPieceTokenizer(small_vocab)
    expected = tokenizer(["a b"]).input_ids
    assert tokenizer(["a b"], truncation=True, max_length=int(1e30)).input_ids == expected
    assert tokenizer(["a b"], threads=2**70).input_ids == expected
    assert tokenizer.encode_ragged(["a b"], True, max_length=2**70)[0].tolist() == expected[0]
    with pytest.raises(TypeError, match="float"):
        tokenizer.encode_ragged(["a b"], max_length=3.5)
    with pytest.raises(ValueError, match="pad_to_multiple_of=1180591620717411303424 must"):
        tokenizer(["a b"], padding=True, pad_to_multiple_of=2**70)
    with pytest.raises(ValueError, match="lone surrogate"):
        WordPieceTokenizer([*small_vocab, "a\ud800"])


def test_options_that_are_assigned_hold_everywhere(small_vocab):
    tokenizer = WordPieceTokenizer(small_vocab)
    tokenizer.split_special_tokens = True
    assert tokenizer.tokenize("[SEP]") == ["[", "s", "##e", "##p", "]"]
    tokenizer.split_special_tokens = False
    tokenizer.do_lower_case = False
    assert tokenizer.tokenize("The") == pickle.loads(pickle.dumps(tokenizer)).tokenize("The") == ["T", "##h", "##e"]
    tokenizer.pad_token = "[MASK]"
    assert tokenizer.pad_token_id == tokenizer.mask_token_id
    tokenizer.pad_token_id = small_vocab.index("[PAD]")
    assert tokenizer.pad_token == "[PAD]"
    with pytest.raises(ValueError, match="padding_side='up'"):
        tokenizer.padding_side = "up"


def test_calls_while_tokens_are_added(small_vocab):
    tokenizer = WordPieceTokenizer(small_vocab)
    wrong = []

    def work():
        for _ in range(300):
            try:
                encoding = tokenizer(["hello [SEP] world"] * 3, padding=True)
                tokenizer.decode(encoding.input_ids[0])
                encoding.tokens(1)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is wrong
                wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for index in range(30):
        tokenizer.add_tokens([f"new{index}"])
    for thread in threads:
        thread.join()
    assert wrong == []
