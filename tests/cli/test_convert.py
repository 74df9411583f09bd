"""`fastbert convert`: bit-exact between all formats, with an account of every tensor, and nothing made up."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro")

import torch
from checkpoints.toy import CONFIG, configured, save
from embedding import random_texts, saved, small_model, small_tokenizer
from safetensors.torch import load_file, save_file

from fastbert import BertForPreTraining, TokenEncoder, WordPieceTokenizer, cli, models
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.settings import Dense, EmbedSettings
from fastbert.models import registry
from fastbert.models.bert.architecture import BERT
from fastbert.reranking.settings import CrossEncoderSettings
from fastbert.retrieval.saving import save_with_settings
from fastbert.retrieval.settings import Folder, SparseSettings, TokenSettings

pytestmark = pytest.mark.usefixtures("unchecked_folders")

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(35))]


def convert(*words: object) -> int:
    return cli.main(["convert", *map(str, words)])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(first: Path, second: Path) -> bool:
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and a[name].equal(b[name]) for name in a)


@pytest.mark.parametrize("name", registry.model_classes(BERT))
def test_there_and_back_is_bit_exact(name: str, tmp_path: Path) -> None:
    source = tmp_path / "a"
    getattr(models, name)(CONFIG).save_pretrained(source)
    configured(custom=[1, 2])(source)
    WordPieceTokenizer(VOCABULARY, do_lower_case=False).save_pretrained(source)
    assert convert(source, "--out", tmp_path / "b", "--to", "tensorflow", "--report", tmp_path / "report.json") == 0
    named = sorted(path.name for path in (tmp_path / "b").iterdir())
    data = ["bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index"]
    assert named == ["bert_config.json", *data, "fastbert_manifest.json", "vocab.txt"]
    assert convert(tmp_path / "b", "--out", tmp_path / "c") == 0
    assert same(source, tmp_path / "c")
    first, last = (json.loads((tmp_path / position / "config.json").read_text()) for position in "ac")
    assert first == last
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["whole"]
    assert report["model_class"] == name
    assert (report["missing"], report["wrong_shape"], report["left_out"]) == ([], {}, {})
    assert {moved["source"] for moved in report["tensors"]} == weights(source).keys()
    turned = {moved["source"] for moved in report["tensors"] if "transposed" in moved["changes"]}
    assert all(weights(source)[key].dim() == 2 and "embeddings" not in key for key in turned)
    assert len(turned) >= 6 * CONFIG.num_hidden_layers


@pytest.mark.parametrize("form", ["shards", "zip", "stream", "tensorflow"])
def test_every_form_becomes_the_same_file(form: str, tmp_path: Path) -> None:
    whole = save(tmp_path / "whole")
    assert convert(save(tmp_path / form, form), "--pickles", "--out", tmp_path / "out") == 0
    assert same(whole, tmp_path / "out")
    model = BertForPreTraining.from_pretrained(tmp_path / "out")
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_a_release_with_optimizer_is_converted(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = data_dir / "checkpoints/tf-toy-keras-bert"
    assert convert(source, "--out", tmp_path / "a") == 0
    printed = capsys.readouterr().out
    assert "BertForPreTraining, 46 tensors (46 renamed, 14 transposed)" in printed
    assert "left out, optimizer state: 93" in printed
    tokenizer = WordPieceTokenizer.from_pretrained(tmp_path / "a")
    assert tokenizer.vocab_size == 15
    transformers = pytest.importorskip("transformers")
    theirs, report = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids = torch.arange(15)[None]
    with torch.no_grad():
        expected = theirs.eval()(ids).prediction_logits
        actual = BertForPreTraining.from_pretrained(source)(ids).prediction_logits
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)
    # Written again, its weights lie in the files as TensorFlow laid them.
    assert convert(tmp_path / "a", "--out", tmp_path / "b", "--to", "tensorflow") == 0
    from fastbert.checkpoints.formats.tensorflow import read_bundle

    first, second = (read_bundle(folder / "bert_model.ckpt") for folder in (source, tmp_path / "b"))
    assert all(stored.read().equal(first[name].read()) for name, stored in second.items())
    assert all(stored.checksum.value == first[name].checksum.value for name, stored in second.items())


def test_real_pickles_are_converted(data_dir: Path, tmp_path: Path) -> None:
    source = data_dir / "checkpoints/hf-ner-bert-camphr"
    assert convert(source, "--out", tmp_path / "out", "--pickles", "--report", tmp_path / "r.json") == 0
    expected = torch.load(source / "pytorch_model.bin", weights_only=True)
    actual = weights(tmp_path / "out")
    assert all(actual[name].equal(expected[name]) for name in actual)
    assert json.loads((tmp_path / "r.json").read_text())["left_out"] == {
        "bert.embeddings.position_ids": "a buffer, which is recomputed"
    }
    assert json.loads((tmp_path / "out/config.json").read_text())["id2label"]["8"] == "I-LOC"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(
            lambda result: [result.pop("bert.encoder.layer.1.output.dense.bias")],
            "missing from the source: 1\n    bert.encoder.layer.1.output.dense.bias",
            id="missing",
        ),
        pytest.param(
            lambda result: result.update({"bert.embeddings.position_embeddings.weight": torch.zeros(9, 8)}),
            "of the wrong shape: 1\n    bert.embeddings.position_embeddings.weight (9, 8), but the configuration says"
            " (16, 8)",
            id="shape",
        ),
    ],
)
def test_an_encoder_that_is_not_whole_is_not_written(
    change, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = save(tmp_path / "a")
    result = weights(source)
    change(result)
    save_file(result, source / "model.safetensors")
    assert convert(source, "--out", tmp_path / "b", "--report", tmp_path / "report.json") == 1
    printed = capsys.readouterr().out
    assert line in printed
    assert "wrote nothing: the encoder is not whole" in printed
    assert not (tmp_path / "b").exists()
    assert not json.loads((tmp_path / "report.json").read_text())["whole"]


def test_a_head_that_is_asked_for_is_not_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save(tmp_path / "a")
    words = ("--out", tmp_path / "b", "--model-class", "BertForSequenceClassification", "--dtype", "bf16")
    assert convert(source, *words, "--max-shard-size", "2KB") == 0
    printed = capsys.readouterr().out
    assert "missing from the source: 2\n    classifier.bias\n    classifier.weight" in printed
    assert "left out, not part of BertForSequenceClassification: 7" in printed
    shards = [load_file(file) for file in (tmp_path / "b").glob("model-*.safetensors")]
    results = {name: tensor for shard in shards for name, tensor in shard.items()}
    assert {tensor.dtype for tensor in results.values()} == {torch.bfloat16}
    assert not any("classifier" in name or "cls" in name for name in results)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--out OUT", "SOURCE is missing"),
        ("SOURCE", "--out is missing"),
        ("SOURCE --out SOURCE", "is the source, or in it; name another folder"),
        ("SOURCE --out FILE", "is a file; name a folder"),
        ("SOURCE --out FULL", "already holds config.json; replace it with --overwrite"),
        ("SOURCE --out FULL --to tensorflow", "holds config.json, weights in a different format"),
        ("SOURCE --out OUT --to tensorflow --max-shard-size 1GB", "--max-shard-size requires --to hf"),
        ("SOURCE --out OUT --max-shard-size much", "--max-shard-size much must be"),
        ("SOURCE --out OUT --model-class BertForNothing", "--model-class BertForNothing is not one of BertModel"),
        ("SOURCE --out OUT --tokenizer LONG", "has a vocabulary of 40, but the tokenizer has 41 entries"),
        ("SOURCE --out OUT --tokenizer NONE", "NONE"),
        ("NONE --out OUT", "no such folder"),
        ("org/absent --out OUT", "fetch it with `hf download org/absent`"),
        ("PICKLE --out OUT", "pass pickles=True"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    paths = {name: tmp_path / name.lower() for name in ("SOURCE", "OUT", "FULL", "FILE", "NONE", "PICKLE", "LONG")}
    save(paths["SOURCE"])
    save(paths["FULL"])
    save(paths["PICKLE"], "zip")
    WordPieceTokenizer([*VOCABULARY, "more"]).save_pretrained(paths["LONG"])
    paths["FILE"].write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert convert(*(paths.get(word, word) for word in words.split())) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message.replace("NONE", str(paths["NONE"])) in printed.err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_earlier_conversion_is_replaced(tmp_path: Path) -> None:
    source = save(tmp_path / "a")
    out = tmp_path / "b"
    assert convert(source, "--out", out, "--max-shard-size", "2KB") == 0
    assert convert(source, "--out", out, "--overwrite") == 0
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "fastbert_manifest.json", "model.safetensors"]
    assert same(source, out)
    assert convert(source, "--out", out, "--max-shard-size", "2KB", "--overwrite") == 0
    assert not (out / "model.safetensors").exists()
    assert BertForPreTraining.from_pretrained(out).new_weights == ()


def embedder(folder: Path) -> Path:
    """A small sentence-transformers folder with a Dense module and a prompt."""
    model = small_model(1)
    model.embed_settings = EmbedSettings(
        pooling="cls", normalize=True, prompts={"query": "b "}, dense=(Dense(torch.randn(6, 32), None, "Tanh"),)
    )
    model.save_pretrained(folder)
    small_tokenizer().save_pretrained(folder)
    return folder


def test_a_folder_of_sentence_transformers_stays_one(tmp_path: Path) -> None:
    source, out = embedder(tmp_path / "a"), tmp_path / "b"
    (source / "3_Normalize").rmdir()  # as packages and repositories leave it, which keep no empty folders
    assert convert(source, "--out", out, "--max-shard-size", "20KB") == 0
    texts = random_texts(1, 9)
    expected, actual = (
        model.embed(texts, tokenizer, prompt="query") for model, tokenizer, _ in map(load_embedder, (source, out))
    )
    assert actual.equal(expected)
    # Once more over it, and then by one that is none, of which nothing may stay.
    assert convert(source, "--out", out) == 2
    assert convert(source, "--out", out, "--overwrite") == 0
    assert load_embedder(out)[2].pooling == "cls"
    assert convert(saved(tmp_path / "plain", 2), "--out", out, "--overwrite") == 0
    assert load_embedder(out)[2].pooling == "mean"


def test_what_else_the_small_files_say_stays(tmp_path: Path) -> None:
    source = embedder(tmp_path / "a")
    settings = {"prompts": {"query": "b "}, "default_prompt_name": None, "similarity_fn_name": "dot"}
    (source / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": true}')
    assert convert(source, "--out", tmp_path / "b") == 0
    assert json.loads((tmp_path / "b/config_sentence_transformers.json").read_text()) == settings
    assert json.loads((tmp_path / "b/sentence_bert_config.json").read_text())["do_lower_case"] is True


def test_settings_of_sparse_and_token_vectors_and_of_cross_encoders_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Folder(max_length=12, prompts={"query": "b ", "document": "a "})
    expansion = {"strategy": "fixed", "attend": True, "length": 7, "token": None}
    tokens = TokenSettings(
        folder=folder,
        dense=(Dense(torch.randn(6, 32), None, "Identity"),),
        normalize=True,
        lengths={"document": 9},
        expansion=expansion,
        skiplist={"document": (",",)},
    )
    ranker = CrossEncoderSettings(activation="identity", max_length=12, prompt="b ")
    cases: dict[str, tuple[str, Any]] = {
        "sparse": ("BertForMaskedLM", SparseSettings(folder=folder, pooling="sum", logarithms=2)),
        "tokens": ("BertModel", tokens),
        "ranker": ("BertForSequenceClassification", ranker),
    }
    for name, (kind, settings) in cases.items():
        source, out = tmp_path / name, tmp_path / f"{name}-converted"
        save_with_settings(getattr(models, kind)(replace(small_model(1).config, num_labels=1)), settings, source)
        small_tokenizer().save_pretrained(source)
        assert convert(source, "--out", out) == 0
        assert "cannot be used here" not in capsys.readouterr().out, name
        for path in source.rglob("*.json"):
            if path.name not in ("fastbert_manifest.json", "config.json") or path.parent != source:
                assert (out / path.relative_to(source)).read_text() == path.read_text(), path
    projected = [TokenEncoder(path).encode(["a b"], role="query").vectors for path in sorted(tmp_path.glob("tokens*"))]
    assert projected[0].equal(projected[1])
    # Settings that the class of the output cannot have are left out, and this is said.
    assert convert(tmp_path / "sparse", "--out", tmp_path / "plain", "--model-class", "BertModel") == 0
    assert "the settings are those of a ...ForMaskedLM, not of a BertModel: 1" in capsys.readouterr().out
    assert not (tmp_path / "plain" / "modules.json").exists()


def test_the_old_layout_with_the_encoder_in_a_folder(tmp_path: Path) -> None:
    source = embedder(tmp_path / "a")
    (source / "0_Transformer").mkdir()
    for path in [
        path for path in source.iterdir() if path.is_file() and path.suffix in (".json", ".txt", ".safetensors")
    ]:
        if path.name not in ("modules.json", "config_sentence_transformers.json"):
            path.rename(source / "0_Transformer" / path.name)
    listed = json.loads((source / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (source / "modules.json").write_text(json.dumps(listed))
    assert convert(source, "--out", tmp_path / "b") == 0
    vectors = [model.embed(["a b"], tokenizer) for model, tokenizer, _ in map(load_embedder, (source, tmp_path / "b"))]
    assert vectors[0].equal(vectors[1])


def test_what_is_left_out_of_an_embedder_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = embedder(tmp_path / "a")
    assert convert(source, "--to", "tensorflow", "--out", tmp_path / "b") == 0
    assert "cannot hold sentence-transformers' settings: 1\n    modules.json" in capsys.readouterr().out
    listed = json.loads((source / "modules.json").read_text())
    listed[2]["type"] = "sentence_transformers.models.Router"
    (source / "modules.json").write_text(json.dumps(listed))
    assert convert(source, "--out", tmp_path / "c") == 0
    assert "the module Router cannot be used here" in capsys.readouterr().out
    assert not (tmp_path / "c/modules.json").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_folders_of_the_users_stay(overwrite: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = embedder(tmp_path / "a"), tmp_path / "b"
    (out / "2_Dense/notes").mkdir(parents=True)
    (out / "2_Dense/notes/n.txt").write_text("precious")
    (out / "config.json").write_text("{}" if overwrite else "")
    if not overwrite:
        (out / "config.json").unlink()
    assert convert(source, "--out", out, *(["--overwrite"] if overwrite else [])) == 2
    assert "2_Dense holds 'notes'" in capsys.readouterr().err
    assert (out / "2_Dense/notes/n.txt").read_text() == "precious"
    assert sorted(path.name for path in out.iterdir()) == ["2_Dense", "config.json"][: 1 + overwrite]


def test_names_from_files_cannot_forge_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved(tmp_path / "a", 1)
    tensors = weights(source) | {"evil\x1b[31m\nwrote nothing: FAKE": torch.zeros(1), "n" * 5000: torch.zeros(1)}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert convert(source, "--out", tmp_path / "b") == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\nwrote nothing" not in printed
    assert max(map(len, printed.splitlines())) < 500


@pytest.mark.parametrize("inside", ["", "1_Pooling", "new/one"])
def test_out_is_not_in_the_source(inside: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = embedder(tmp_path / "a")
    assert convert(source, "--out", source / inside, "--overwrite") == 2
    assert "is the source, or in it" in capsys.readouterr().err
