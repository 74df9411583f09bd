"""Damaged and contradictory files of byte-level BPE and Unigram: one line with the file, the place and the cure."""

import base64
import json
import random
import re
import sys

import pytest
from hostile_texts import PARTS
from tokenizer_pipelines import charsmap, random_bpe, random_unigram

from fastbert import _C, load_tokenizer
from fastbert.errors import UserError
from fastbert.tokenizers.fit import check_tokenizer

ENDS = {"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
ADDED = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
SURROGATE = "\ud800"


def content_of(kind):
    if kind == "BPE":
        model, steps = random_bpe(random.Random(1), PARTS, _C.byte_level_alphabet()), BYTE_LEVEL
    else:
        model, steps = random_unigram(random.Random(3), PARTS) | {"byte_fallback": False}, METASPACE
    parts = {"normalizer": None, "pre_tokenizer": dict(steps), "post_processor": dict(ENDS), "decoder": dict(steps)}
    return json.loads(json.dumps({"added_tokens": [], **parts, "model": model}))


def refusal(folder, content):
    """The message for a tokenizer.json, which is text, bytes or JSON; fails if it is loaded or the error is another."""
    file = folder / "tokenizer.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(UserError) as caught:
        load_tokenizer(file, verify=False)
    message = str(caught.value)
    assert "\n" not in message
    assert str(file) in message
    return message.replace(str(file), "FILE")


def model(**values):
    return lambda content: content["model"].update(values)


def piece(item):
    return lambda content: content["model"]["vocab"].append(item)


def merge(item):
    return lambda content: content["model"]["merges"].append(item)


def token(name, index=None):
    def add(content):
        vocab = content["model"]["vocab"]
        vocab[name] = len(vocab) if index is None else index

    return add


def part(name, value):
    return lambda content: content.update({name: value})


def added(name, index):
    return part("added_tokens", [{"id": index, "content": name, **ADDED}])


def normalizer(**step):
    return part("normalizer", step)


BPE_FAULTS = [
    (merge(["qq", "zz"]), r"merge \d+ \('qq' 'zz'\) names 'qq', which is not in the vocabulary"),
    (merge(["", "!"]), r"merge \d+ .*names ''"),
    (merge(["a", "b", "c"]), r"merge \d+: .* is not a pair"),
    (merge(3), r"merge \d+: 3 is not a pair"),
    (merge("a"), r"merge \d+: 'a' is not a pair"),
    (model(merges={}), "merges are not a list"),
    (model(vocab=[]), "vocabulary is not a JSON object"),
    (token("zz", 9999), "'zz' has id 9999.*without gaps"),
    (token("zz", 3), "'zz' has id 3 where 4 was expected"),
    (token("zz", -1), "'zz' has id -1"),
    (token("zz", 3.5), "'zz' has id 3.5, which is not a whole number"),
    (token("", None), r"id \d+: empty token"),
    (token(SURROGATE, None), r"id \d+: .*lone surrogate"),
    (
        model(vocab={"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}, merges=[]),
        "of the 256 bytes are not in the vocabulary",
    ),
    (model(dropout=0.1), "dropout=0.1 is not supported"),
    (model(byte_fallback=True), "byte_fallback=True"),
    (model(continuing_subword_prefix="##"), "continuing_subword_prefix='##'"),
    (model(end_of_word_suffix="</w>"), "end_of_word_suffix='</w>'"),
    (part("pre_tokenizer", METASPACE), "pre_tokenizer 'Metaspace' is not supported"),
    (part("pre_tokenizer", None), "pre_tokenizer None is not supported"),
    (part("pre_tokenizer", BYTE_LEVEL | {"use_regex": False}), "without use_regex"),
    (part("pre_tokenizer", BYTE_LEVEL | {"add_prefix_space": "yes"}), "add_prefix_space='yes'"),
]
UNIGRAM_FAULTS = [
    (piece(["zz", float("nan")]), r"piece \d+ \('zz'\) has the score nan"),
    (piece(["zz", float("inf")]), r"piece \d+ \('zz'\) has the score inf"),
    (piece(["zz", "1.0"]), r"piece \d+ is \['zz', '1.0'\], not a text and its score"),
    (piece(["zz", None]), "not a text and its score"),
    (piece(["zz", True]), "not a text and its score"),
    (piece(["zz", 10**400]), "not a text and its score"),
    (piece(["zz", 1, 2]), "not a text and its score"),
    (piece([1, 1]), "not a text and its score"),
    (piece("ab"), "not a text and its score"),
    (piece(["<s>", 1.0]), "'<s>' is repeated"),
    (piece(["", 1.0]), "empty token"),
    (piece(["a\0b", 1.0]), "zero byte"),
    (piece(["\udc80", 1.0]), "lone surrogate"),
    (model(vocab={}), "vocabulary is not a list"),
    (model(vocab=[]), "unk_id=3.*one of 0"),
    *((model(unk_id=value), re.escape(f"unk_id={value}")) for value in (None, 99_999, -1, 1.5, True)),
    (model(byte_fallback="yes"), "byte_fallback='yes' must be true or false"),
    (
        model(byte_fallback=True, vocab=[["<s>", 0], ["a", 0], ["</s>", 0], ["<unk>", 0]]),
        "256 are missing.*first is <0x00>",
    ),
    (normalizer(type="Nmt"), "FILE: its normalizer 'Nmt' is not supported"),
    (normalizer(type="BertNormalizer"), "FILE: its normalizer 'BertNormalizer' is not supported"),
    (part("normalizer", []), "normalizer is not a JSON object"),
    (normalizer(type="Sequence", normalizers=[1]), "normalizers must be a list of objects"),
    (normalizer(type="Replace", pattern={"Regex": "a(b|c)"}, content=""), r"expression 'a\(b\|c\)'"),
    (normalizer(type="Replace", pattern={"Regex": " {0,}"}, content=""), "matches nothing"),
    (normalizer(type="Replace", pattern={"String": SURROGATE}, content=""), "lone surrogate"),
    (normalizer(type="Prepend", prepend=SURROGATE), "lone surrogate"),
    (normalizer(type="Strip"), "strip_left=None of 'Strip'"),
    (normalizer(type="Precompiled", precompiled_charsmap="!!"), "FILE: precompiled_charsmap is not base64"),
    (normalizer(type="Precompiled", precompiled_charsmap=None), "precompiled_charsmap=None"),
    (part("pre_tokenizer", {"type": "UnicodeScripts"}), "pre_tokenizer 'UnicodeScripts' is not supported"),
    (part("pre_tokenizer", {"type": 3}), "pre_tokenizer 3 is not supported"),
    (part("pre_tokenizer", {"type": "Punctuation", "behavior": "Eaten"}), "behavior='Eaten' must be one of"),
    (part("pre_tokenizer", METASPACE | {"replacement": "ab"}), "replacement='ab'"),
    (part("pre_tokenizer", METASPACE | {"replacement": SURROGATE}), "lone surrogate"),
    (part("pre_tokenizer", METASPACE | {"prepend_scheme": "last"}), "prepend_scheme='last'"),
    (part("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed"}), "only a String"),
    (part("post_processor", {"type": "X"}), r"post_processor \('X'\) is not supported"),
    (part("post_processor", ENDS | {"cls": ["<s>", 77]}), "gives '<s>' the id 77, but the vocabulary 0"),
    (part("post_processor", ENDS | {"cls": ["zzz", 0]}), "gives 'zzz' the id 0, but the vocabulary None"),
    (part("post_processor", ENDS | {"cls": [["<s>"], 0]}), "must be a token and its id"),
    *(
        (
            part("post_processor", {"type": "TemplateProcessing", "single": [item], "pair": []}),
            "templates cannot be read",
        )
        for item in (
            *({}, None, {"Sequence": {}}, {"SpecialToken": {"id": "x"}}),
            *({"Sequence": {"id": name, "type_id": 0}} for name in ("C", "", "AB", ["A"])),
        )
    ),
    (part("decoder", {"type": "CTC"}), "decoder 'CTC' is not supported"),
    (part("decoder", ["x"]), "decoder is not a JSON object"),
    (added("x", -1), "'x' has id -1"),
    (added("x", 5000), "'x' has id 5000"),
    (added("<s>", 5), "'<s>' has id 5, but the vocabulary has 0"),
    (model(type="WordLevel"), "its model is 'WordLevel'"),
    (part("model", []), "model is not a JSON object"),
]


@pytest.mark.parametrize("kind", ["BPE", "Unigram"])
def test_faults_of_a_tokenizer_json(kind, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(content_of(kind)))
    assert load_tokenizer(tmp_path / "tokenizer.json").decode(load_tokenizer(tmp_path)("ab").input_ids)
    for change, message in BPE_FAULTS if kind == "BPE" else UNIGRAM_FAULTS:
        content = content_of(kind)
        change(content)
        assert re.search(message, found := refusal(tmp_path, content)), f"{found!r} does not match {message!r}"


def test_what_is_no_json(tmp_path):
    deep = b'{"type":"Sequence","normalizers":['
    text = json.dumps(content_of("Unigram")).encode()
    for data in (b"", b"{", b"null", b'{"a": "\xff"}', b"[" * 100_000, text[:-5], text[: len(text) // 2]):
        refusal(tmp_path, data)
    refusal(tmp_path, text.replace(b'"normalizer": null', b'"normalizer": ' + deep * 3_000 + b"]}" * 3_000))
    refusal(tmp_path, text.replace(b'"unk_id": 3', b'"unk_id": ' + b"9" * 5_000))


def test_character_maps_cut_off_and_damaged(tmp_path, seed):
    data = charsmap({"é".encode(): "e", b"ab": "", "中".encode(): "x"})
    content = content_of("Unigram")

    def map_of(data):
        return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}

    for size in [*range(1, len(data), 7), *range(len(data) - 30, len(data))]:
        message = refusal(tmp_path, content | {"normalizer": map_of(data[:size])})
        assert "character map (precompiled_charsmap) of its normalizer is damaged" in message
    # The whole of it is read; with any other bytes it is refused, or used without harm.
    rng, refused = random.Random(seed), 0
    _C.Normalizer([("charsmap", data)]).normalize("é")
    for _ in range(2_000):
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 3, 40])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            _C.Normalizer([("charsmap", bytes(damaged))]).normalize("é ab 中 e\u0301\r\n")
        except ValueError:
            refused += 1
    assert 100 < refused < 2_000


def test_files_that_contradict_each_other(tmp_path):
    content = content_of("BPE")
    tokenizer_file = tmp_path / "tokenizer.json"
    tokenizer_file.write_text(json.dumps(content))
    load_tokenizer(tokenizer_file).save_pretrained(tmp_path / "saved")
    folder = tmp_path / "saved"
    vocab, merges = (folder / "vocab.json").read_text(), (folder / "merges.txt").read_text()

    def message():
        with pytest.raises(UserError) as caught:
            load_tokenizer(folder, verify=False)
        assert "\n" not in str(caught.value)
        assert str(folder) in str(caught.value)
        return str(caught.value)

    tokens = json.loads(vocab)
    first, second = list(tokens)[100:102]
    swapped = tokens | {first: tokens[second], second: tokens[first]}
    (folder / "vocab.json").write_text(json.dumps(swapped))
    assert re.search(r"vocab.json gives .* the id 100, and tokenizer.json 101", message())
    last = list(tokens)[-1]
    (folder / "vocab.json").write_text(json.dumps({token: index for token, index in tokens.items() if token != last}))
    assert re.search(rf"vocab.json ends before id {len(tokens) - 1}, which is {last!r} in tokenizer.json", message())
    (folder / "vocab.json").write_text(vocab)
    lines = merges.split("\n")
    for text, what in (
        (
            "\n".join(lines[:-3]),
            rf"merge {len(lines) - 3} of merges.txt \(it has fewer\) and of tokenizer.json \('.*differ",
        ),
        ("\n".join([*lines[:7], *lines[6:]]), r"merge 7 of merges.txt \('.*'\) and of tokenizer.json \('.*'\) differ"),
        (merges + "a b c\n", "merges.txt, line .*not a pair"),
        (merges + "\ufeffa\n", "merges.txt, line .*not a pair"),
    ):
        (folder / "merges.txt").write_text(text)
        assert re.search(what, message()), message()
    (folder / "merges.txt").write_bytes(b"#version: 0.2\n\xff\xfe a\n")
    assert "merges.txt: not UTF-8 (at byte 14)" in message()
    (folder / "tokenizer.json").unlink()
    (folder / "merges.txt").write_text(merges)
    (folder / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(folder, verify=False)
    assert tokenizer.convert_ids_to_tokens(tokenizer("a<unk>")["input_ids"])[1:-1] == ["a", "<unk>"]
    (folder / "merges.txt").write_text(merges + "qq zz\n")
    assert re.search(r"merges\.txt: merge \d+ \('qq' 'zz'\) names 'qq'", message())
    (folder / "merges.txt").write_text("")
    assert "merges.txt: holds no merges" in message()
    (folder / "merges.txt").unlink()
    assert "merges.txt: no such file" in message()


@pytest.mark.parametrize("package", ["sentencepiece", "google.protobuf.message"])
def test_a_model_of_sentencepiece_without_its_package(package, tmp_path, monkeypatch):
    (tmp_path / "spiece.model").write_bytes(b"")
    for module in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    for path in (tmp_path, tmp_path / "spiece.model"):
        with pytest.raises(UserError) as caught:
            load_tokenizer(path)
        assert str(caught.value).startswith(f"{tmp_path / 'spiece.model'}: needs the sentencepiece package")
        assert "pip install 'fastbert-engine[sentencepiece]'" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_model_of_sentencepiece_that_is_cut_off(tmp_path):
    messages = pytest.importorskip("sentencepiece.sentencepiece_model_pb2", exc_type=ImportError)
    file, model = tmp_path / "spiece.model", messages.ModelProto()
    for index, piece in enumerate(("<unk>", "<s>", "</s>", "\u2581", "a")):
        model.pieces.add(piece=piece, score=-index, type=2 if index == 0 else 1)
    end = model.ByteSize()
    model.trainer_spec.model_type, model.normalizer_spec.name = 1, "identity"
    data = model.SerializeToString()
    file.write_bytes(data)
    assert load_tokenizer(file)("a").input_ids
    for size in range(len(data)):
        file.write_bytes(data[:size])
        with pytest.raises(UserError, match=r"spiece\.model: (not a model|holds no pieces|cut off after \d)") as caught:
            load_tokenizer(file)
        assert "\n" not in str(caught.value)
    file.write_bytes(data[:end])
    with pytest.raises(UserError, match="cut off after 5 pieces"):
        load_tokenizer(file)


def test_a_model_of_another_size(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(content_of("Unigram")))
    tokenizer = load_tokenizer(tmp_path)
    check_tokenizer(tokenizer, len(tokenizer))
    with pytest.raises(UserError, match=f"^{re.escape(str(tmp_path))}: the model has .* has {len(tokenizer)} entries"):
        check_tokenizer(tokenizer, len(tokenizer) - 1)
    with pytest.raises(UserError, match=f"^{re.escape(str(tmp_path))} has a vocabulary of"):
        check_tokenizer(tokenizer, len(tokenizer) - 1, str(tmp_path))
