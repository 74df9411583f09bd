"""What `save_pretrained` writes is what transformers and sentence-transformers read, unchanged."""

import os
from pathlib import Path

import pytest
import torch
from checkpoints.toy import CONFIG, save

from fastbert import BertConfig, BertForPreTraining, BertModel, WordPieceTokenizer, models
from fastbert.checkpoints.delta.files import write_delta
from fastbert.checkpoints.formats.safetensors import in_bytes
from fastbert.embeddings.settings import Dense, EmbedSettings
from fastbert.errors import CheckpointError, UserError

transformers = pytest.importorskip("transformers")
TEXTS = ["a short one.", "a one, a short, a one.", "short"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "short", "one", ".", ",", *"bcdefgh"]
SHAPE = BertConfig.preset("tiny", vocab_size=len(VOCABULARY), num_labels=4)
AUTO = {
    "BertModel": "AutoModel",
    "BertForMaskedLM": "AutoModelForMaskedLM",
    "BertForPreTraining": "AutoModelForPreTraining",
    "BertForNextSentencePrediction": "AutoModelForNextSentencePrediction",
    "BertForSequenceClassification": "AutoModelForSequenceClassification",
    "BertForTokenClassification": "AutoModelForTokenClassification",
    "BertForQuestionAnswering": "AutoModelForQuestionAnswering",
}


def made(name: str, seed: int) -> torch.nn.Module:
    model = getattr(models, name)(SHAPE).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


@pytest.mark.parametrize("max_shard_size", [None, "100KB"], ids=["one-file", "shards"])
@pytest.mark.parametrize("name", AUTO)
def test_transformers_computes_the_same(name: str, max_shard_size: str | None, tmp_path: Path, seed: int) -> None:
    ours = made(name, seed)
    ours.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    WordPieceTokenizer(VOCABULARY).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists() == (max_shard_size is not None)
    kind = getattr(transformers, AUTO[name])
    theirs, report = kind.from_pretrained(tmp_path, attn_implementation="eager", output_loading_info=True)
    assert type(theirs).__name__ == name
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXTS, padding=True, return_tensors="pt")
    seen = batch["attention_mask"].bool()
    with torch.no_grad():
        expected, actual = theirs.eval()(**batch), ours(**batch)
    for key, value in expected.items():
        if key == "pooler_output" or (value.dim() == 2 and name != "BertForQuestionAnswering"):
            torch.testing.assert_close(actual[key], value, rtol=0, atol=2e-5)
        else:
            torch.testing.assert_close(actual[key][seen], value[seen], rtol=0, atol=2e-5)


def test_sentence_transformers_reads_the_folder(tmp_path: Path, seed: int) -> None:
    library = pytest.importorskip("sentence_transformers")
    ours = made("BertModel", seed)
    ours.save_pretrained(tmp_path)
    WordPieceTokenizer(VOCABULARY).save_pretrained(tmp_path)
    theirs = library.SentenceTransformer(str(tmp_path), device="cpu")
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = ours(**batch).last_hidden_state  # zeros at padding
    mean = states.sum(1) / batch["attention_mask"].sum(1, keepdim=True)
    torch.testing.assert_close(torch.as_tensor(theirs.encode(TEXTS)), mean, rtol=0, atol=2e-5)


def test_shards_and_one_file_replace_each_other(tmp_path: Path) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    model = BertForPreTraining(CONFIG)
    model.save_pretrained(tmp_path, max_shard_size=3000)
    many = names()
    assert len(many) > 4
    assert many[-1] == "model.safetensors.index.json"
    again = BertForPreTraining.from_pretrained(tmp_path)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())
    again.save_pretrained(tmp_path)
    assert names() == ["config.json", "fastbert_manifest.json", "model.safetensors"]
    again.save_pretrained(tmp_path, max_shard_size=3000)
    assert names() == many


@pytest.mark.parametrize(("text", "size"), [(7, 7), ("7", 7), ("5GB", 5 * 10**9), ("2 KiB", 2048), ("3mb", 3_000_000)])
def test_sizes_are_read(text: str, size: int) -> None:
    assert in_bytes(text) == size


@pytest.mark.parametrize("text", [0, -1, "", "GB", "1.5GB", True, "5XB", "9" * 30])
def test_other_sizes_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="max_shard_size="):
        BertModel(CONFIG).save_pretrained(tmp_path / "out", max_shard_size=text)
    assert not list(tmp_path.glob("out/*"))


def test_a_write_that_fails_leaves_the_old_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("fastbert.checkpoints.formats.safetensors.stream_safetensors", full)
    with pytest.raises(CheckpointError, match=r"could not be written .*No space left"):
        BertForPreTraining(CONFIG).save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
def test_weights_get_the_mode_of_any_new_file(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        model = BertModel(CONFIG)
        model.embed_settings = EmbedSettings(dense=(Dense(torch.eye(8), None, "Tanh"),))
        model.save_pretrained(tmp_path / "a", max_shard_size=3000)
        model.embed_settings = None
        model.save_pretrained(tmp_path / "b")
        write_delta(tmp_path / "b", tmp_path / "a", tmp_path / "a.delta")
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {oct(0o666 & ~mask)}
