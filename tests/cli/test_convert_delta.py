"""`fastbert convert --base`: a model to the file of what changed, and back."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro")

import torch
from embedding import saved, small_tokenizer
from safetensors.torch import load_file

from fastbert import BertForSequenceClassification, BertModel, WordPieceTokenizer, cli
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.settings import Dense, EmbedSettings


def convert(*words: object) -> int:
    return cli.main(["convert", *map(str, words)])


@pytest.fixture
def folders(tmp_path: Path, seed: int) -> dict[str, Path]:
    """A base, a classifier whose matrices differ a little from it, and names for what is written."""
    base, model = saved(tmp_path / "base", seed), tmp_path / "model"
    tuned = BertForSequenceClassification.from_pretrained(base, num_labels=2, mapped=False)
    for parameter in tuned.parameters():
        parameter.data += 1e-3 * torch.randn(parameter.shape)
    tuned.save_pretrained(model)
    WordPieceTokenizer.from_pretrained(base).save_pretrained(model)
    names = {"DELTA": tmp_path / "task.delta", "OUT": tmp_path / "out", "NONE": tmp_path / "none"}
    return {"BASE": base, "MODEL": model, **names}


def test_there_and_back(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    base, model, delta, out = (folders[name] for name in ("BASE", "MODEL", "DELTA", "OUT"))
    assert convert(model, "--base", base, "--out", delta) == 0
    assert "restores the model exactly" in capsys.readouterr().out
    assert convert(delta, "--base", base, "--out", out) == 0
    assert "wrote config.json, fastbert_manifest.json, model.safetensors" in capsys.readouterr().out
    first, second = (load_file(folder / "model.safetensors") for folder in (model, out))
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
    assert BertForSequenceClassification.from_pretrained(out).config.num_labels == 2
    assert (out / "config.json").read_bytes() == (model / "config.json").read_bytes()


def test_an_embedder_comes_back_as_one(tmp_path: Path, seed: int) -> None:
    base, tuned, delta, out = saved(tmp_path / "base", seed), tmp_path / "own", tmp_path / "d", tmp_path / "out"
    model = BertModel.from_pretrained(base, mapped=False)
    layer = Dense(torch.randn(6, 32), None, "Tanh")
    model.embed_settings = EmbedSettings(pooling="cls", normalize=True, prompts={"query": "b "}, dense=(layer,))
    model.save_pretrained(tuned)
    small_tokenizer().save_pretrained(tuned)
    assert convert(tuned, "--base", base, "--out", delta) == 0
    assert convert(delta, "--base", base, "--out", out) == 0
    expected, actual = (
        one.embed(["a b"], tokens, prompt="query") for one, tokens, _ in map(load_embedder, (tuned, out))
    )
    assert actual.equal(expected)


def test_a_rounded_one_says_its_error(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    report = folders["OUT"].with_suffix(".json")
    words = ("--base", folders["BASE"], "--out", folders["DELTA"], "--bits", 4, "--report", report)
    assert convert(folders["MODEL"], *words) == 0
    printed = capsys.readouterr().out
    assert "rounded to 4 bits" in printed
    assert "rounding error " in printed
    result = json.loads(report.read_text())
    assert result["kind"] == "delta"
    assert 0 < result["error"]["rms"] < 0.2 * result["error"]["difference_rms"]
    assert result["bytes"] == folders["DELTA"].stat().st_size


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("MODEL --bits 4 --out DELTA", "--bits is for a delta"),
        ("MODEL --base BASE --out DELTA --bits 12", "--bits 12 must be a whole number from 1 to 8"),
        ("MODEL --base BASE --out DELTA --to tensorflow", "--to cannot be combined with --base"),
        ("MODEL --base BASE --out DELTA --dtype bf16", "--dtype cannot be combined with --base"),
        ("MODEL --base BASE --out BASE", "is a folder; name a file"),
        ("MODEL --base NONE --out DELTA", "no such folder"),
        ("MODEL --out DELTA --base", "base"),
        ("BASE/model.safetensors --base BASE --out OUT", "is not a delta file"),
        ("BASE/model.safetensors --base BASE --out OUT --bits 4", "--bits and --report are for writing one"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    words: str, message: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    argv = [
        str(folders[word]) if word in folders else word.replace("BASE", str(folders["BASE"])) for word in words.split()
    ]
    capsys.readouterr()
    assert convert(*argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert sorted(tmp_path.rglob("*")) == before
