"""WordPiece with RoBERTa's post-processor, as MPNet's: rows, roles, and offsets without the white space of tokens."""

import json
import random
from itertools import product

import pytest
from hostile_texts import PARTS, hostile_texts
from tokenizer_parity import assert_same, assert_same_random_calls, read_both, write_tokenizer

from fastbert import load_tokenizer
from fastbert.tokenizers import WordPieceTokenizer

pytest.importorskip("tokenizers")

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def added(content, token_id, *flags):
    return {"id": token_id, "content": content, **{flag: flag in flags for flag in FLAGS}}


@pytest.fixture(scope="module")
def mpnet_content(small_vocab):
    """A tokenizer.json in MPNet's layout: BERT's special tokens are ordinary ones. Some tokens look like a space."""
    vocab = [*SPECIAL, *small_vocab, "Ġ", "Ġa", "##Ġ", "aĠ", "##a", "<mask>"]
    ids = {token: index for index, token in enumerate(dict.fromkeys(vocab))}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            *(added(token, ids[token], "special") for token in ("<s>", "<pad>", "</s>", "[UNK]")),
            added("<unk>", ids["<unk>"], "special", "normalized"),
            added("<mask>", ids["<mask>"], "special", "lstrip"),
            added("hello", ids["hello"], "rstrip", "lstrip", "normalized"),
            added("World", len(ids), "rstrip"),
            added("Ġ's", len(ids) + 1, "lstrip"),
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": False,
            "lowercase": False,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": roberta(ids, trim_offsets=True, add_prefix_space=False),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


def roberta(ids, **flags):
    return {"type": "RobertaProcessing", "sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]], **flags}


def bert_behind_byte_level(ids, **flags):
    rows = {"type": "BertProcessing", "sep": ["[SEP]", ids["[SEP]"]], "cls": ["[CLS]", ids["[CLS]"]]}
    return {"type": "Sequence", "processors": [{"type": "ByteLevel", "use_regex": True, **flags}, rows]}


@pytest.mark.parametrize("processor", [roberta, bert_behind_byte_level])
def test_offsets_equal_those_of_the_reference(processor, mpnet_content, tmp_path, seed):
    rng = random.Random(seed)
    parts = [
        *PARTS,
        *(" hello ", "\n World\t", "  <mask>\u3000", "Ġ", "Ġa", "ba\u0120", " \u0120's", "<unk> "),
        *[" <mask>"] * 9,
    ]
    texts = hostile_texts(rng, 500, parts, long=0.01)
    short = [text[:60] for text in texts if text]
    trimmed = []
    for trims, prefix in product((True, False), (False, True)):
        flags = {"trim_offsets": trims, "add_prefix_space": prefix}
        ids = mpnet_content["model"]["vocab"]
        content = mpnet_content | {"post_processor": processor(ids, **flags)}
        if processor is bert_behind_byte_level:
            names = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
            content["added_tokens"] = content["added_tokens"] + [added(name, ids[name], "special") for name in names]
        ours, reference = read_both(write_tokenizer(tmp_path, content))
        assert_same(ours, reference, texts)
        assert_same_random_calls(ours, reference, rng, short, 15)
        row = ours(" <mask>a  hello ", return_offsets_mapping=True, add_special_tokens=False)
        trimmed.append(row["offset_mapping"])
    assert trimmed == [
        [(1, 7), (7, 8), (10, 15)],
        [(0, 7), (7, 8), (10, 15)],  # the first space counts as a prefix
        *[[(0, 7), (7, 8), (8, 16)]] * 2,
    ]


def test_byte_level_tokens_that_begin_with_the_letter_for_a_space(tmp_path):
    content = {
        "added_tokens": [added("Ġx", 256, "lstrip"), added("yĠ", 257)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": byte_vocabulary(), "merges": []},
    }
    ours, reference = read_both(write_tokenizer(tmp_path, content))
    assert_same(ours, reference, ["Ġx", "a  Ġx yĠ", "yĠ Ġx", "\u3000Ġx b", "Ġ x"])


def byte_vocabulary():
    from fastbert import _C

    return {character: byte for byte, character in enumerate(_C.byte_level_alphabet())}


def test_roles_of_a_tokenizer_json_alone(mpnet_content, tmp_path):
    """Roles that no file assigns have the names of the layout: `[MASK]` is an ordinary token."""
    file = write_tokenizer(tmp_path, mpnet_content)
    ours, reference = read_both(file)
    expected = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "[UNK]",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "mask_token": "<mask>",
    }
    assert ours.special_tokens_map == expected
    assert_same(ours, reference, ["a [MASK] b", "[PAD][CLS]", "a <mask> b", "[SEP]</s>"])
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(expected))
    folder = load_tokenizer(tmp_path)
    assert folder.fingerprint == ours.fingerprint
    assert folder.model_input_names == ["input_ids", "attention_mask"]


def test_saved_folders_and_conversion_keep_the_offsets(mpnet_content, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = load_tokenizer(write_tokenizer(tmp_path, mpnet_content))
    ours.save_pretrained(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert (again.trim_offsets, again.expects_prefix, again.row_format) == (True, False, "roberta")
    assert again.fingerprint == ours.fingerprint
    others = [again, ours.to_transformers(), transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")]
    for text, pair in (("a  <mask> b", None), (" <mask>", "World  hello \n"), ("[MASK]", "b <mask>")):
        expected = dict(ours(text, pair, return_offsets_mapping=True))
        for other in others:
            assert dict(other(text, pair, return_offsets_mapping=True)) == expected
    ours.trim_offsets = False
    assert ours(" <mask>", return_offsets_mapping=True)["offset_mapping"][1] == (0, 7)


def test_roles_that_a_tokenizer_lacks_are_those_of_its_saved_folder(tmp_path):
    vocab = ["<s>", "<pad>", "</s>", "[UNK]", "a", "b", "##b", "<mask>"]
    names = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
    for number, options in enumerate(({}, {"bos_token": "a"}, {"trim_offsets": True}, {"expects_prefix": True})):
        ours = WordPieceTokenizer(vocab, row_format="roberta", **names, **options)
        ours.save_pretrained(tmp_path / str(number))
        again = load_tokenizer(tmp_path / str(number))
        assert again.fingerprint == ours.fingerprint
        assert again.special_tokens_map == ours.special_tokens_map
        assert (again.trim_offsets, again.expects_prefix) == (ours.trim_offsets, ours.expects_prefix)


def test_the_vocabulary_of_mpnet_alone(mpnet_content, tmp_path):
    """Without a tokenizer.json the architecture decides, as in transformers."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in mpnet_content["model"]["vocab"]))
    config = {"tokenizer_class": "MPNetTokenizer", "do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(ours, WordPieceTokenizer)
    assert ours.special_tokens_map == theirs.special_tokens_map
    for text, pair in (("a  <mask> b", None), ("É [MASK] \n<mask>", "hello  <mask>")):
        row = ours(text, pair, return_offsets_mapping=True)
        assert dict(row) == dict(theirs(text, pair, return_offsets_mapping=True))
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    assert load_tokenizer(tmp_path).prefix_ids == [0]
