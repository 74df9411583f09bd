"""Small things that code for transformers' tokenizers reads and sets, beside the reference."""

import pickle

import pytest

from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b"]


@pytest.fixture
def tokenizer():
    return WordPieceTokenizer(VOCAB, model_max_length=None)


@pytest.fixture
def reference(make_reference):
    return make_reference(VOCAB)


def test_attributes(tokenizer, reference):
    for name in (
        *("bos_token", "eos_token", "bos_token_id", "eos_token_id", "clean_up_tokenization_spaces", "name_or_path"),
        *("max_len_single_sentence", "max_len_sentences_pair", "extra_special_tokens", "is_fast", "pad_token_type_id"),
    ):
        assert getattr(tokenizer, name) == getattr(reference, name), name
    assert list(tokenizer.model_input_names) == reference.model_input_names
    assert tokenizer.clean_up_tokenization("a . b n't") == reference.clean_up_tokenization("a . b n't")


def test_assigned_roles_are_followed(tokenizer, reference):
    for one in (tokenizer, reference):
        assert one.add_tokens(["<m>", ""], special_tokens=True) == 1
        one.mask_token = "<m>"
        one.cls_token = "a"
    assert tokenizer.mask_token_id == reference.mask_token_id == 8
    assert tokenizer.special_tokens_map == reference.special_tokens_map
    assert tokenizer.all_special_ids == reference.all_special_ids
    assert tokenizer("<m> b").input_ids[0] == tokenizer.cls_token_id == 5
    with pytest.raises(UserError, match="pad_token='<p>' is not among"):
        tokenizer.pad_token = "<p>"
    assert tokenizer.pad_token == "[PAD]"


def test_empty_tokens_are_passed_over(tokenizer, reference):
    assert tokenizer.add_tokens("") == reference.add_tokens("") == 0


def test_slices_are_rows(tokenizer, reference):
    ours, theirs = (one(["a b", "ab", "b"]) for one in (tokenizer, reference))
    assert [row.ids for row in ours[1:]] == [row.ids for row in theirs[1:]]
    assert tokenizer.pad({"input_ids": [[2], [3]]})[:1]["input_ids"] == [[2]]


def test_paths(tmp_path, tokenizer):
    paths = tokenizer.save_pretrained(tmp_path)
    assert sorted(paths) == sorted(map(str, tmp_path.iterdir()))
    assert WordPieceTokenizer.from_pretrained(tmp_path).name_or_path == str(tmp_path)


def test_added_tokens_are_shown_as_they_stand_in_the_text(make_reference):
    token = pytest.importorskip("tokenizers").AddedToken
    vocab = [*VOCAB, "中"]
    added = [token("##b", lstrip=True), token("\u3000", lstrip=True, rstrip=True), token("中"), token("x", rstrip=True)]
    texts = ["ab  ##b", "a 中中 x中", "\t aX \u3000", "中", "a[SEP] b"]
    ours, theirs = WordPieceTokenizer(vocab, model_max_length=None), make_reference(vocab)
    assert ours.add_tokens(added) == theirs.add_tokens(added)
    options = {"max_length": 5, "truncation": True, "return_overflowing_tokens": True}
    for form, split in ((texts, False), ([text.split(" ") for text in texts], True)):
        mine, expected = (one(form, is_split_into_words=split, **options) for one in (ours, theirs))
        copy = pickle.loads(pickle.dumps(mine))
        for row in range(len(expected["input_ids"])):
            assert mine.tokens(row) == copy.tokens(row) == expected.tokens(row)
