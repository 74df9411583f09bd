"""Added tokens and whole tokenizer.json files, read and written as by the reference; others are refused by name."""

import json
import logging
import random

import pytest
from tokenizer_folders import VOCAB, added, tokenizer_json, write

from fastbert.errors import UserError
from fastbert.tokenizers import AddedToken, WordPieceTokenizer

ROLES = [added(token, VOCAB.index(token)) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
NEW = len(VOCAB)
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ],
    "pair": [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
    ],
    "special_tokens": {
        token: {"id": token, "ids": [VOCAB.index(token)], "tokens": [token]} for token in ("[CLS]", "[SEP]")
    },
}
BERT_PROCESSING = {
    "type": "BertProcessing",
    "sep": ["[SEP]", VOCAB.index("[SEP]")],
    "cls": ["[CLS]", VOCAB.index("[CLS]")],
}


def full_json(added_tokens=ROLES, **parts):
    """A tokenizer.json as the reference reads it."""
    content = tokenizer_json(lowercase=True, strip_accents=None)
    content["model"] |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    defaults = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": TEMPLATE,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    }
    return content | defaults | {"added_tokens": added_tokens} | parts


def assert_read_alike(folder):
    """Our tokenizer and the reference's agree on a folder: ids, flags, names, sides."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertTokenizerFast.from_pretrained(folder)
    ours = WordPieceTokenizer.from_pretrained(folder)
    flags = list(added("x", 0))[2:]
    expected = {
        index: (token.content, *(getattr(token, flag) for flag in flags))
        for index, token in theirs.added_tokens_decoder.items()
    }
    found = {
        index: (token.content, *(getattr(token, flag) for flag in flags))
        for index, token in ours.added_tokens_decoder.items()
    }
    assert found == expected
    assert (ours.get_vocab(), len(ours)) == (theirs.get_vocab(), len(theirs))
    assert ours.all_special_tokens == theirs.all_special_tokens
    assert (ours.padding_side, ours.truncation_side) == (theirs.padding_side, theirs.truncation_side)
    for text in ("hello <x>  hellos<y>[MASK] <m> <X> Foo  BAR foo bar", "  [MASK]  <x> \u3000é hello", "<x><y>"):
        row = theirs(text)["input_ids"]
        assert list(ours(text).input_ids) == row
        for skip in (False, True):
            assert ours.decode(row, skip) == theirs.decode(row, skip_special_tokens=skip)
    return ours


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(
            {
                "tokenizer_config": {
                    "added_tokens_decoder": {
                        str(NEW): added("<x>", NEW, lstrip=True),
                        "5": added(VOCAB[5], 5, special=False, normalized=True),
                    }
                }
            },
            id="decoder",
        ),
        pytest.param(
            {
                "tokenizer_config": {
                    "added_tokens_decoder": {str(NEW): added("<x>", NEW)},
                    "additional_special_tokens": ["<x>", "<y>", "hello"],
                }
            },
            id="decoder-and-names",
        ),
        pytest.param(
            {
                "tokenizer_config": {
                    "added_tokens_decoder": {
                        "4": added("[MASK]", 4, lstrip=True),
                        str(NEW): added("Foo Bar", NEW, special=False, normalized=True),
                    },
                }
            },
            id="decoder-of-a-role",
        ),
        pytest.param(
            {"tokenizer_config": {"extra_special_tokens": [added("<y>", 0, rstrip=True) | {"__type": "AddedToken"}]}},
            id="extra-with-flags",
        ),
        pytest.param({"tokenizer_config": {"extra_special_tokens": {"image_token": "<x>"}}}, id="extra-by-name"),
        pytest.param(
            {
                "special_tokens_map": {
                    "mask_token": added("hello", 0, lstrip=True),
                    "additional_special_tokens": ["<y>"],
                }
            },
            id="map",
        ),
        pytest.param(
            {"special_tokens_map": {"mask_token": "hello"}, "tokenizer_config": {"mask_token": "[MASK]"}}, id="map-wins"
        ),
        pytest.param(
            {
                "special_tokens_map": {"mask_token": "hello", "additional_special_tokens": ["<y>"]},
                "tokenizer_config": {"added_tokens_decoder": {str(NEW): added("<x>", NEW)}},
            },
            id="map-is-not-asked",
        ),
        pytest.param(
            {
                "added_tokens": {"<x>": NEW, "<y>": NEW + 1},
                "tokenizer_config": {"additional_special_tokens": ["<y>"]},
            },
            id="old-form",
        ),
        pytest.param(
            {
                "added_tokens": {"<x>": NEW, "<y>": NEW + 1},
                "special_tokens_map": {"additional_special_tokens": ["<y>"]},
            },
            id="old-form-and-map",
        ),
        pytest.param(
            {"tokenizer": full_json([*ROLES, added("<x>", NEW, rstrip=True, special=False, normalized=True)])},
            id="json",
        ),
        pytest.param(
            {
                "tokenizer": full_json([*ROLES, added("<x>", NEW, rstrip=True)]),
                "tokenizer_config": {"added_tokens_decoder": {str(NEW): added("<x>", NEW, lstrip=True)}},
            },
            id="json-and-decoder",
        ),
        pytest.param(
            {"tokenizer": full_json([*ROLES, added("<x>", NEW)]), "added_tokens": {"<y>": NEW + 1}}, id="json-and-old"
        ),
        pytest.param({"tokenizer": full_json(post_processor=BERT_PROCESSING)}, id="json-bert-processing"),
        pytest.param({"tokenizer_config": {"padding_side": "left", "truncation_side": "left"}}, id="sides"),
    ],
)
def test_added_tokens_are_read_as_by_the_reference(tmp_path, files):
    # The reference strips white space from the lines of a vocab.txt, so no token of this one may be U+2028.
    vocab = None if "tokenizer" in files else ["z" if token == "\u2028" else token for token in VOCAB]
    assert_read_alike(write(tmp_path, vocab, **files))


@pytest.mark.parametrize("seed", range(12))
def test_round_trips_with_added_tokens(tmp_path, make_reference, hostile_text, seed):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    rng = random.Random(seed)
    options = {
        "do_lower_case": rng.random() < 0.7,
        "strip_accents": rng.choice([None, True, False]),
        "split_special_tokens": rng.random() < 0.3,
        "padding_side": rng.choice(["left", "right"]),
        "truncation_side": rng.choice(["left", "right"]),
    }
    vocab = [*VOCAB, "x "] if seed % 2 else VOCAB
    contents = rng.sample(["<x>", "Foo Bar", "hello", "ab c", "中x", "É", "[sep]", " x", "y\u200d"], rng.randint(1, 6))
    flags = [{flag: rng.random() < 0.4 for flag in list(added("x", 0))[2:]} for _ in contents]
    ours, theirs = WordPieceTokenizer(vocab, **options), make_reference(vocab, **options)
    ours.add_tokens([AddedToken(content, **kinds) for content, kinds in zip(contents, flags)])
    theirs.add_tokens([tokenizers.AddedToken(content, **kinds) for content, kinds in zip(contents, flags)])
    for tokenizer in (ours, theirs):
        tokenizer.add_special_tokens({"additional_special_tokens": ["<e1>", "<e2>"]})
    parts = [*contents, *(content.upper() for content in contents), "<e1>", "[MASK]", " ", "hellos"]
    texts = ["".join(rng.choices([*parts, hostile_text(rng)], k=8)) for _ in range(40)]
    expected = [theirs(text)["input_ids"] for text in texts]
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    for tokenizer in (
        ours,
        WordPieceTokenizer.from_pretrained(tmp_path / "ours"),
        WordPieceTokenizer.from_pretrained(tmp_path / "theirs"),
        transformers.AutoTokenizer.from_pretrained(tmp_path / "ours"),
        transformers.BertTokenizerFast.from_pretrained(tmp_path / "ours"),
    ):
        assert [list(tokenizer(text)["input_ids"]) for text in texts] == expected
        assert tokenizer.get_vocab() == theirs.get_vocab()
        assert tokenizer.added_tokens_encoder == theirs.added_tokens_encoder
        assert tokenizer.all_special_tokens == theirs.all_special_tokens
        assert (tokenizer.padding_side, tokenizer.truncation_side) == (theirs.padding_side, theirs.truncation_side)
    assert WordPieceTokenizer.from_pretrained(tmp_path / "ours").fingerprint == ours.fingerprint


def test_bare_tokenizer_json(tmp_path, caplog):
    tokenizers = pytest.importorskip("tokenizers")
    state = {
        "truncation": {"direction": "Left", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 8},
            "direction": "Left",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
    }
    content = full_json([*ROLES, added("<x>", NEW, lstrip=True)], **state)
    path = write(tmp_path, None, tokenizer=content) / "tokenizer.json"
    with caplog.at_level(logging.INFO, logger="fastbert"):
        ours = WordPieceTokenizer.from_pretrained(path)
    assert "its truncation is ignored except for the side" in caplog.text
    assert "its padding is ignored" in caplog.text
    theirs = tokenizers.Tokenizer.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    for text in ("hello <x>hellos [MASK]", "é"):
        assert list(ours(text).input_ids) == theirs.encode(text).ids
    assert_read_alike(tmp_path)


def test_an_old_tokenizer_json_without_a_direction(tmp_path):
    state = {"truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0}}
    path = write(tmp_path, None, tokenizer=full_json(ROLES, **state)) / "tokenizer.json"
    assert WordPieceTokenizer.from_pretrained(path).truncation_side == "right"
    assert_read_alike(tmp_path)


def test_saving_over_a_tokenizer_json_replaces_it(tmp_path):
    write(tmp_path, None, tokenizer=full_json([*ROLES, added("<x>", NEW)]))
    WordPieceTokenizer(["z", *VOCAB], added_tokens=["<y>"]).save_pretrained(tmp_path)
    assert assert_read_alike(tmp_path).get_vocab()["<y>"] == NEW + 1
    assert WordPieceTokenizer.from_pretrained(tmp_path / "tokenizer.json").vocab_size == NEW + 1


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"post_processor": {"type": "RobertaProcessing", "sep": "[SEP]", "cls": ["[CLS]", 2]}},
            "must be a token and its",
        ),
        ({"post_processor": {"type": "XlnetProcessing"}}, "its post_processor .'XlnetProcessing'. is not supported"),
        ({"post_processor": TEMPLATE | {"pair": TEMPLATE["single"]}}, "must hold the sequence A once, and A before B"),
        ({"post_processor": TEMPLATE | {"single": TEMPLATE["single"][1:]}}, "'TemplateProcessing'. is not BERT's"),
        ({"post_processor": BERT_PROCESSING | {"cls": ["[CLS]", 0]}}, "gives '.CLS.' the id 0, but the vocabulary"),
        ({"post_processor": []}, "post_processor is not a JSON object"),
        ({"decoder": {"type": "ByteLevel"}}, "its decoder is 'ByteLevel'"),
        ({"decoder": {"type": "WordPiece", "prefix": "@@"}}, "its decoder's prefix is '@@'"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre_tokenizer is 'Whitespace'"),
        ({"truncation": {"direction": "Up"}}, "truncation has the direction 'Up'"),
        ({"added_tokens": [{"content": "<x>"}]}, "added token '<x>' has no id"),
        ({"added_tokens": [added("<x>", NEW, lstrip="no")]}, "'<x>': lstrip='no' must be True or False"),
        ({"added_tokens": [added("<x>", NEW + 7)]}, f"'<x>' has id {NEW + 7}, but the vocabulary has no such token"),
        ({"added_tokens": {"<x>": 1}}, "added_tokens must be a list"),
        ({"model": {"type": "WordPiece", "vocab": {"a": "0"}}}, "token 'a' has id '0', which is not a whole number"),
    ],
)
def test_other_tokenizer_json(tmp_path, parts, message):
    path = write(tmp_path, None, tokenizer=full_json(**parts)) / "tokenizer.json"
    for target in (path, tmp_path):
        with pytest.raises(UserError, match=message) as caught:
            WordPieceTokenizer.from_pretrained(target)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [{"<x>": "12"}, {"<x>": 4}], ids=json.dumps)
def test_bad_old_form(tmp_path, content):
    with pytest.raises(UserError, match=r"added_tokens\.json: .*<x>.* has (the )?id"):
        WordPieceTokenizer.from_pretrained(write(tmp_path, added_tokens=content))
