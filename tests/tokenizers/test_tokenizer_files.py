"""Tokenizer folders in and out: options from every file that carries them, and one clear line for each damaged one."""

import json
import logging
import lzma

import pytest
from tokenizer_folders import VOCAB, added, tokenizer_json, write

from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer


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


@pytest.mark.parametrize("limit", [2**40 + 1, 2**63 + 605, 10**19, 10**30])
def test_limits_beyond_any_row_are_none(tmp_path, limit):
    WordPieceTokenizer(VOCAB, model_max_length=limit).save_pretrained(tmp_path)
    tokenizer = WordPieceTokenizer.from_pretrained(tmp_path)
    text = "hello " * 1000
    rows = tokenizer([text, ""], padding=True, truncation=True).input_ids
    assert {len(row) for row in rows} == {len(tokenizer(text).input_ids)}


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
