"""Tokenizer folders in and out: options from every file that carries them, and one clear line for each damaged one."""

import json
import logging
import lzma
import random

import pytest

from fastbert.errors import UserError
from fastbert.tokenizers import AddedToken, WordPieceTokenizer

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "##s", "é", "\u2028", "中国"]


def write(folder, vocab=VOCAB, **files):
    """A folder with vocab.txt (unless None) and the named JSON files."""
    if vocab is not None:
        (folder / "vocab.txt").write_bytes("".join(f"{token}\n" for token in vocab).encode())
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def tokenizer_json(**normalizer):
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True} | normalizer
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {token: index for index, token in enumerate(VOCAB)}}
    return {"normalizer": normalizer, "model": model, "added_tokens": []}


def added(content, index, **flags):
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {"content": content, "id": index, **plain, **flags}


def test_switches_of_tokenizer_json_are_booleans(tmp_path):
    vocab = {token: index for index, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    path = tmp_path / "tokenizer.json"
    for name, value in (("lowercase", "false"), ("strip_accents", "no"), ("handle_chinese_chars", 1)):
        content = {
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab},
            "normalizer": {"type": "BertNormalizer", name: value},
        }
        path.write_text(json.dumps(content))
        with pytest.raises(UserError, match=f"{name}={value!r} must be true or false"):
            WordPieceTokenizer.from_pretrained(path)


def test_round_trip(tmp_path):
    tokenizer = WordPieceTokenizer(
        [*VOCAB, "<e>"],
        do_lower_case=False,
        strip_accents=True,
        tokenize_chinese_chars=False,
        model_max_length=77,
        additional_special_tokens=["<e>"],
    )
    tokenizer.save_pretrained(tmp_path / "new" / "folder")
    again = WordPieceTokenizer.from_pretrained(tmp_path / "new" / "folder")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.model_max_length == 77
    assert again.vocab == tokenizer.vocab
    config = json.loads((tmp_path / "new" / "folder" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "BertTokenizer"
    assert [config[name] for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")] == [0, 1, 0]


@pytest.mark.parametrize("model_max_length", [512, None])
def test_transformers_reads_what_we_save(tmp_path, model_max_length):
    transformers = pytest.importorskip("transformers")
    vocab = [*VOCAB, "<e>", "H", "##ello"]
    ours = WordPieceTokenizer(
        vocab, do_lower_case=False, model_max_length=model_max_length, additional_special_tokens=["<e>"]
    )
    ours.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Hellos<e> hello é [MASK]"
    assert theirs(text)["input_ids"] == ours(text).input_ids
    assert (theirs.model_max_length > 10**20) == (model_max_length is None)


@pytest.mark.parametrize("lower", [True, False])
def test_we_read_what_transformers_saves(tmp_path, make_reference, lower):
    reference = make_reference(VOCAB, do_lower_case=lower, strip_accents=False, model_max_length=99)
    reference.add_special_tokens({"additional_special_tokens": ["<e1>", "<e2>"]})
    reference.save_pretrained(tmp_path)
    ours = WordPieceTokenizer.from_pretrained(tmp_path)
    text = "Hello hellos <e1>é<e2> 中国"
    assert ours(text).input_ids == reference(text)["input_ids"]
    assert (ours.vocab_size, len(ours)) == (reference.vocab_size, len(reference))
    assert ours.model_max_length == 99


def test_options_from_the_configuration(tmp_path):
    config = {"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": False, "model_max_length": 64}
    tokenizer = WordPieceTokenizer.from_pretrained(write(tmp_path, tokenizer_config=config))
    assert (tokenizer.do_lower_case, tokenizer.strip_accents, tokenizer.tokenize_chinese_chars) == (False, None, False)
    assert tokenizer.model_max_length == 64
    assert WordPieceTokenizer.from_pretrained(tmp_path, do_lower_case=True).do_lower_case is True


def test_options_from_tokenizer_json_alone(tmp_path):
    content = tokenizer_json(lowercase=False, strip_accents=True, handle_chinese_chars=False)
    tokenizer = WordPieceTokenizer.from_pretrained(write(tmp_path, vocab=None, tokenizer=content))
    assert (tokenizer.do_lower_case, tokenizer.strip_accents, tokenizer.tokenize_chinese_chars) == (False, True, False)
    assert tokenizer.vocab == {token: index for index, token in enumerate(VOCAB)}


def test_special_tokens_from_their_map(tmp_path):
    vocab = ["<pad>", "<unk>", "<cls>", "<sep>", "<mask>", "a"]
    names = ["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"]
    # Both forms in which transformers has written them.
    tokens = dict(zip(names, vocab)) | {"mask_token": added("<mask>", 4)}
    tokenizer = WordPieceTokenizer.from_pretrained(write(tmp_path, vocab, special_tokens_map=tokens))
    assert tokenizer("a<mask>").input_ids == [2, 5, 4, 3]


def test_bare_vocabulary_with_capitals_is_cased(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="fastbert"):
        folder = write(tmp_path, [*VOCAB, "Berlin"])
        assert WordPieceTokenizer.from_pretrained(folder / "vocab.txt").do_lower_case is False
        assert WordPieceTokenizer.from_pretrained(folder).do_lower_case is False
    assert "'Berlin'" in caplog.text
    assert "do_lower_case=False" in caplog.text
    assert WordPieceTokenizer.from_pretrained(folder, do_lower_case=True).do_lower_case is True
    assert WordPieceTokenizer.from_pretrained(write(tmp_path)).do_lower_case is True


def test_case_of_released_vocabularies(released_vocab, tmp_path):
    # The Chinese one holds <S> and <T>, the uncased one letters that look like capitals but have no lower case.
    for name, lower in (("uncased", True), ("cased", False), ("chinese", True), ("multilingual-cased", False)):
        folder = write(tmp_path, released_vocab(f"bert-base-{name}"))
        assert WordPieceTokenizer.from_pretrained(folder).do_lower_case is lower, name


def test_published_folders(data_dir):
    for name in ("hf-bert-xsmall-dummy", "hf-ner-bert-camphr"):
        tokenizer = WordPieceTokenizer.from_pretrained(data_dir / "checkpoints" / name)
        assert tokenizer("hello").input_ids[0] == tokenizer.cls_token_id


def test_line_ends(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(VOCAB).encode())
    tokenizer = WordPieceTokenizer.from_pretrained(tmp_path / "vocab.txt")
    # Only the line end is taken off: U+2028 is a token of the released Chinese vocabulary.
    assert tokenizer.vocab == {token: index for index, token in enumerate(VOCAB)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "empty; a vocabulary has one token per line", id="empty"),
        pytest.param(b"[PAD]\n[UNK]\n\xff\xfe\n", "line 3: not UTF-8 .byte 0xff at offset 12.", id="not-utf8"),
        pytest.param("[PAD]\nhé\n".encode("utf-16"), "line 1: not UTF-8", id="utf16"),
        pytest.param(b"\xef\xbb\xbf[PAD]\n", "line 1: begins with a byte order mark", id="bom"),
        pytest.param(b"[PAD]\n\n[UNK]\n", "line 2: empty token", id="blank-line"),
        pytest.param(b"[PAD]\n[UNK]\n[PAD]\n", "line 3: token '.PAD.' is repeated .*line 1", id="duplicate"),
        pytest.param(b"[PAD]\n[UNK]\n[CLS]\n", "sep_token='.SEP.' is not among its 3 tokens; add it", id="special"),
        pytest.param(lzma.compress(b"[PAD]\n"), "line 1: not UTF-8", id="compressed"),
    ],
)
def test_bad_vocab_file(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    for target in (path, tmp_path):
        with pytest.raises(UserError, match=message) as caught:
            WordPieceTokenizer.from_pretrained(target)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_files(tmp_path):
    with pytest.raises(UserError, match=r"holds neither vocab\.txt nor tokenizer\.json"):
        WordPieceTokenizer.from_pretrained(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        WordPieceTokenizer.from_pretrained(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match="no such file"):
        WordPieceTokenizer(tmp_path / "vocab.txt")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({"tokenizer_config": ["x"]}, "holds list, not a JSON object", id="config-list"),
        pytest.param(
            {"tokenizer_config": {"do_lower_case": "no"}}, "do_lower_case='no' must be true", id="config-type"
        ),
        pytest.param({"tokenizer_config": {"strip_accents": 3}}, "strip_accents=3 must be", id="config-accents"),
        pytest.param({"tokenizer_config": {"mask_token": "<m>"}}, "mask_token='<m>' is not among", id="mask"),
        pytest.param(
            {"tokenizer_config": {"added_tokens_decoder": {"12": added("<x>", 12)}}},
            "added token '<x>' has id 12, but the vocabulary has no such token",
            id="added-gap",
        ),
        pytest.param({"tokenizer": {"model": {"type": "BPE"}}}, "its model is 'BPE'", id="json-bpe"),
        pytest.param({"tokenizer": tokenizer_json(type="NFC")}, "its normalizer is 'NFC'", id="json-normalizer"),
        pytest.param({"tokenizer": tokenizer_json(clean_text=False)}, "control char", id="json-clean"),
        pytest.param({"tokenizer": {"model": {"vocab": {"a": 0}}}}, "its normalizer is None", id="json-nothing"),
    ],
)
def test_bad_json(tmp_path, files, message):
    with pytest.raises(UserError, match=message) as caught:
        WordPieceTokenizer.from_pretrained(write(tmp_path, **files))
    assert str(tmp_path) in str(caught.value)


def test_json_that_is_none(tmp_path):
    write(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": tr')
    with pytest.raises(UserError, match=r"tokenizer_config\.json: not JSON"):
        WordPieceTokenizer.from_pretrained(tmp_path)


def test_token_with_a_line_end_is_not_saved(tmp_path):
    with pytest.raises(UserError, match="contains a line end"):
        WordPieceTokenizer([*VOCAB, "a\nb"]).save_pretrained(tmp_path)
    assert not (tmp_path / "vocab.txt").exists()


@pytest.mark.parametrize(
    "config",
    [
        {"model_max_length": "abc"},
        {"model_max_length": -3},
        {"added_tokens_decoder": {"x": {"content": "q"}}},
        {"added_tokens_decoder": {"1": "q"}},
        {"added_tokens_decoder": [1]},
        {"additional_special_tokens": 5},
        {"sep_token": [1]},
        {"sep_token": 7},
    ],
    ids=json.dumps,
)
def test_values_of_another_kind_are_named(tmp_path, config):
    with pytest.raises(UserError, match=rf"tokenizer_config\.json: {next(iter(config))}"):
        WordPieceTokenizer.from_pretrained(write(tmp_path, tokenizer_config=config))


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
    actual = {
        index: (token.content, *(getattr(token, flag) for flag in flags))
        for index, token in ours.added_tokens_decoder.items()
    }
    assert actual == expected
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
        ({"post_processor": {"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}}, "post_processor"),
        ({"post_processor": TEMPLATE | {"pair": TEMPLATE["single"]}}, "'TemplateProcessing'. is not BERT's"),
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
