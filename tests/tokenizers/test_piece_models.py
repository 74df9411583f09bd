"""Models of sentencepiece against transformers' conversion of the same file, and damaged ones."""

import io
import json
import random
import re
from types import SimpleNamespace

import pytest
from hostile_texts import PARTS, hostile_texts
from tokenizer_parity import assert_same

from fastbert import load_tokenizer
from fastbert.errors import UserError

sentencepiece = pytest.importorskip("sentencepiece")
pytest.importorskip("google.protobuf")
transformers = pytest.importorskip("transformers")

LINES = """\
The quick brown fox jumps over the lazy dog, and then it sleeps until noon.
He said: "We don't know what 1,000 dogs would do in 2024 - perhaps nothing (or everything)."
In der Straße am Fluss wohnten früher viele Fischer; heute sind es kaum noch drei.
L'été dernier, nous avons mangé des crêpes à la plage et regardé les étoiles.
Съешь же ещё этих мягких французских булок, да выпей чаю.
Ο γρήγορος λαγός πηδάει πάνω από το τεμπέλικο σκυλί.
في يوم من الأيام ذهب الولد إلى المدرسة وعاد مساء إلى البيت.
आज मौसम बहुत अच्छा है और हम बाज़ार जा रहे हैं।
今日はとても天気がいいので、公園を散歩しました。
我们昨天去北京看了一个很有意思的展览。
오늘은 날씨가 좋아서 친구와 함께 산책을 했습니다.
Hôm nay trời đẹp nên chúng tôi đi dạo trong công viên.
""".splitlines()
BERT_PIECES = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
# The tokenizer's class in transformers, the name of its file, and the options with which such models are trained.
LAYOUTS = {
    "XLMRobertaTokenizer": ("sentencepiece.bpe.model", {"user_defined_symbols": ["<sep/>"]}),
    "CamembertTokenizer": ("sentencepiece.bpe.model", {}),
    "AlbertTokenizer": (
        "spiece.model",
        {
            "pad_id": 0,
            "unk_id": 1,
            "bos_id": -1,
            "eos_id": -1,
            "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
            "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"],
        },
    ),
    "T5Tokenizer": ("spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
    "DebertaV2Tokenizer": ("spm.model", {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, **BERT_PIECES}),
}


@pytest.fixture(scope="module")
def trained():
    """The bytes of a tiny model of each layout."""
    models = {name: train(**options) for name, (_, options) in LAYOUTS.items()}
    models["bpe"] = train(model_type="bpe")
    models["bytes"] = train(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=True, vocab_size=700)
    return models


def train(**options):
    model = io.BytesIO()
    options = {"model_type": "unigram", "vocab_size": 300, "hard_vocab_limit": False} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 3),
        model_writer=model,
        character_coverage=1.0,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def write_folder(folder, name, data, config, file=None):
    """Write a model's folder as a release without a tokenizer.json."""
    folder.mkdir(exist_ok=True)
    (folder / (file or LAYOUTS[name][0])).write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name} | config))
    return folder


def texts_of(seed):
    parts = [*PARTS, *" ".join(LINES).split(), "<extra_id_3>", "<sep/>", " <mask>", "``a''", "5,000"]
    return [*LINES, *hostile_texts(random.Random(seed), 400, parts, long=0.01)]


@pytest.mark.parametrize("name", ["XLMRobertaTokenizer", "CamembertTokenizer", "T5Tokenizer"])
def test_as_transformers_converts_it(name, trained, tmp_path, seed):
    variants = [{}]
    if name == "T5Tokenizer":
        variants.append({"extra_ids": 5})
    if name == "CamembertTokenizer":
        token = {"__type": "AddedToken", "content": "<mask>", "lstrip": False, "rstrip": False, "normalized": False}
        variants.append({"mask_token": token})
    texts = texts_of(seed)
    models = [trained[name]] * len(variants)
    if name == "T5Tokenizer":
        # As DeBERTa-v3's. sentencepiece itself would use the pieces for bytes.
        models.append(trained["bytes"])
        variants.append({})
    for config, data in zip(variants, models, strict=True):
        folder = write_folder(tmp_path / name, name, data, config)
        ours, theirs = load_tokenizer(folder), getattr(transformers, name).from_pretrained(folder)
        assert ours.get_vocab() == theirs.get_vocab()
        assert {
            token: ours.special_tokens_map[token] for token in theirs.special_tokens_map
        } == theirs.special_tokens_map
        recognised = {index: token.content for index, token in theirs.added_tokens_decoder.items()}
        assert {index: token.content for index, token in ours.added_tokens_decoder.items()} == recognised
        assert_same(ours, theirs.backend_tokenizer, texts)
        for text, pair in zip(texts[:20], texts[20:40], strict=True):
            for arguments in ((text,), (text, pair)):
                assert ours(*arguments)["input_ids"] == theirs(*arguments)["input_ids"]
                assert (
                    ours(*arguments, return_special_tokens_mask=True)["special_tokens_mask"]
                    == (theirs(*arguments, return_special_tokens_mask=True)["special_tokens_mask"])
                )
            ids = ours.encode(text)
            assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)
        ours.save_pretrained(tmp_path / "saved")
        assert load_tokenizer(tmp_path / "saved").encode_ragged(texts, True)[0].tolist() == (
            ours.encode_ragged(texts, True)[0].tolist()
        )


def test_albert_as_its_released_tokenizer_json(trained, tmp_path, seed):
    """Version 5 of transformers has '9,' as a piece, and the symbols that users defined as added tokens."""
    from transformers.convert_slow_tokenizer import AlbertConverter

    def number_and_comma(model):
        for piece, text in zip(model.pieces[40:43], ("9,", "▁1999,", "٣,"), strict=True):
            piece.piece, piece.score = text, -1.0

    name, texts = "AlbertTokenizer", [*texts_of(seed), "in 1999, the 9,9,", "x٣, 19 9, 1999,x"]
    data = changed(trained[name], number_and_comma)
    for config in ({}, {"do_lower_case": False, "keep_accents": True}):
        folder = write_folder(tmp_path / "albert", name, data, config)
        ours = load_tokenizer(folder)
        converter = AlbertConverter(SimpleNamespace(vocab_file=str(folder / LAYOUTS[name][0])))
        pieces = converter.vocab(converter.proto)
        assert [score for _, score in pieces[40:43]] == [-101.0] * 3
        charsmap = converter.proto.normalizer_spec.precompiled_charsmap
        theirs = transformers.AlbertTokenizer(vocab=pieces, _spm_precompiled_charsmap=charsmap, **config)
        assert ours.get_vocab() == theirs.get_vocab()
        assert ours.special_tokens_map == theirs.special_tokens_map
        assert list(ours.added_tokens_decoder) == list(theirs.added_tokens_decoder)
        assert_same(ours, theirs.backend_tokenizer, texts)
        assert ours(texts[:20], texts[20:40])["input_ids"] == theirs(texts[:20], texts[20:40])["input_ids"]
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained[name])
    for text in ('a "quoted" (word) - and.more', "the £5 fox–dog"):
        assert ours.encode(text, add_special_tokens=False) == processor.encode(text)


def test_deberta_as_the_converter_of_version_4(trained, tmp_path, seed):
    """Version 5 of transformers reads these files with steps of its own."""
    from transformers.convert_slow_tokenizer import DebertaV2Converter

    name, texts = "DebertaV2Tokenizer", texts_of(seed)
    for lower, punctuation in ((False, False), (True, True)):
        config = {"do_lower_case": lower, "split_by_punct": punctuation}
        folder = write_folder(tmp_path / "deberta", name, trained[name], config)
        (folder / "added_tokens.json").write_text(json.dumps({"[MASK]": len(trained_ids(trained[name]))}))
        ours = load_tokenizer(folder)
        slow = SimpleNamespace(
            vocab_file=str(folder / LAYOUTS[name][0]), convert_tokens_to_ids=ours.convert_tokens_to_ids, **config
        )
        theirs = DebertaV2Converter(slow).converted()
        theirs.add_special_tokens(["[UNK]", "[MASK]"])
        assert ours.get_vocab() == theirs.get_vocab()
        assert ours.mask_token_id == len(ours) - 1
        assert_same(ours, theirs, texts)
        rows = ours(texts[:20], texts[20:40])
        expected = theirs.encode_batch(list(zip(texts[:20], texts[20:40], strict=True)))
        assert rows["input_ids"] == [row.ids for row in expected]
        assert rows["token_type_ids"] == [row.type_ids for row in expected]


def trained_ids(data):
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    return [processor.id_to_piece(index) for index in range(processor.get_piece_size())]


def test_plain_text_as_in_sentencepiece(trained, tmp_path):
    data = trained["T5Tokenizer"]
    folder = write_folder(tmp_path / "t5", "T5Tokenizer", data, {"extra_ids": 0})
    ours, theirs = load_tokenizer(folder), sentencepiece.SentencePieceProcessor(model_proto=data)
    assert len(ours) == theirs.get_piece_size()
    for text in [*LINES, "the ﬁrst  １２３ ｶﾞ", "\ta\u3000b "]:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text)
        assert ours.unk_token_id in ids or ours.decode(ids) == theirs.decode(ids)


def changed(data, change):
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(data)
    change(model)
    return model.SerializePartialToString()


def refusal(path):
    with pytest.raises(UserError) as caught:
        load_tokenizer(path, verify=False)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_damaged_models(trained, tmp_path):
    model = tmp_path / "spiece.model"
    good = trained["T5Tokenizer"]
    model.write_bytes(good)
    assert load_tokenizer(model).suffix_ids == [1]
    rng = random.Random(1)
    for size in [0, 1, 2, 3, 30, *rng.sample(range(len(good)), 60), len(good) - 1]:
        model.write_bytes(good[:size])
        assert "restore the file" in refusal(model)

    def no_unknown(model):
        del model.pieces[2]

    def nan(model):
        model.pieces[30].score = float("nan")

    def twice(model):
        model.pieces[30].piece = model.pieces[31].piece

    def empty(model):
        model.pieces[30].piece = ""

    def suffix(model):
        model.trainer_spec.treat_whitespace_as_suffix = True

    def no_bytes(model):
        model.trainer_spec.byte_fallback = True

    def one_byte_less(model):
        del model.pieces[next(index for index, piece in enumerate(model.pieces) if piece.type == 6)]

    def cut_charsmap(model):
        model.normalizer_spec.precompiled_charsmap = model.normalizer_spec.precompiled_charsmap[:100]

    def no_pieces(model):
        del model.pieces[:]

    def no_end(model):
        model.pieces[1].piece = "<end>"

    name = trained_ids(good)[30].encode()
    broken_text = good.replace(name + b"\x15", b"\xff" * len(name) + b"\x15", 1)
    assert broken_text != good
    for data, message in (
        (changed(good, no_unknown), r"0 of its \d+ pieces stand for unknown characters, not 1"),
        (changed(good, no_pieces), "holds no pieces; restore"),
        (changed(good, nan), r"piece 30 \('.*'\) has the score nan, which is not a finite number; restore"),
        (changed(good, twice), "id 31: token .* is repeated .*id 30"),
        (changed(good, empty), "id 30: empty token"),
        (changed(good, suffix), "treat_whitespace_as_suffix"),
        (changed(good, no_bytes), "byte_fallback needs a piece per byte, and it has 0 of 256; restore"),
        (changed(trained["bytes"], one_byte_less), "it has 255 of 256"),
        (changed(good, cut_charsmap), "character map .* is damaged"),
        (changed(good, no_end), "'</s>' is not among its .* pieces; name a folder whose config.json"),
        (broken_text, r"piece 30 \(.*\) is not UTF-8"),
        (trained["bpe"], "is a BPE model of sentencepiece; only Unigram"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "not a model of sentencepiece"),
    ):
        model.write_bytes(data)
        found = refusal(model)
        assert re.search(message, found), f"{found!r} does not match {message!r}"


def test_models_of_another_layout(trained, tmp_path):
    file = tmp_path / "sentencepiece.bpe.model"
    file.write_bytes(trained["T5Tokenizer"])
    assert "begins with the pieces ['<pad>', '</s>', '<unk>']" in refusal(file)
    folder = write_folder(tmp_path / "t5", "T5Tokenizer", trained["T5Tokenizer"], {"extra_ids": -1})
    assert refusal(folder).startswith(f"{folder}: extra_ids=-1 of its tokenizer_config.json or config.json must be")

    def extra(model):
        model.pieces.add(piece="<extra_id_0>", type=4)

    folder = write_folder(tmp_path / "mt5", "T5Tokenizer", changed(trained["T5Tokenizer"], extra), {})
    assert "<extra_id_1>" not in load_tokenizer(folder).get_vocab()
