"""`fastbert features` from flags to files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from embedding import random_texts, saved

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import BertModel, WordPieceTokenizer, cli
from fastbert.features.extract import extract


@pytest.fixture
def model(tmp_path: Path, seed: int) -> Path:
    return saved(tmp_path / "model", seed)


@pytest.fixture
def text(tmp_path: Path, seed: int) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{line}\n" for line in random_texts(seed, 25, most=30)))
    return path


def features(*flags: object) -> int:
    return cli.main(["features", *map(str, flags)])


@pytest.mark.parametrize(("layers", "meant"), [("concat-last-four", "concat-last-four"), ("0,-1", (0, -1))])
@pytest.mark.parametrize("per", ["token", "word"])
def test_the_file_holds_what_the_function_gives(
    layers: str, meant: object, per: str, model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "f.npz"
    words = ("--model", model, "--text", text, "--out", out, "--layers", layers, "--per", per, "--dtype", "fp32")
    assert features(*words, "--device", "cpu", "--max-length", 20) == 0
    encoder, tokenizer = BertModel.from_pretrained(model), WordPieceTokenizer.from_pretrained(model)
    expected = extract(encoder, tokenizer, text.read_text().splitlines(), meant, per=per, max_length=20)  # type: ignore[arg-type]
    actual = np.load(out)
    torch.testing.assert_close(torch.from_numpy(actual["features"]), expected.values)
    assert actual["offsets"].tolist() == expected.offsets.tolist()
    assert actual["items"].tolist() == list(expected.items)
    assert f"25 texts, {len(expected.values):,} {per}s, 64 numbers each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param({"--model": None}, "--model is missing", id="no-model"),
        pytest.param({"--text": None}, "--text is missing", id="no-text"),
        pytest.param({"--out": None}, "--out is missing", id="no-out"),
        pytest.param({"--model": "nowhere"}, "nowhere: no such folder", id="model"),
        pytest.param({"--text": "nowhere.txt"}, "nowhere.txt: no such file", id="text"),
        pytest.param({"--out": "f.bin"}, "must end in .npy, .npz", id="out"),
        pytest.param({"--layers": "first"}, "--layers first: must be", id="layers"),
        pytest.param({"--layers": "1,x"}, "--layers 1,x: give a name, or numbers", id="numbers"),
        pytest.param({"--layers": "7"}, "7 is not a layer of the model", id="number"),
        pytest.param({"--max-length": "1"}, "--max-length 1", id="max-length"),
        pytest.param({"--train": "x.conll"}, "--train and --eval require --table7", id="train"),
    ],
)
def test_wrong_flags_are_one_line(
    flags: dict[str, str | None],
    words: str,
    model: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"--model": str(model), "--text": str(text), "--out": "f.npy", **flags}
    assert features(*(part for flag, value in options.items() if value is not None for part in (flag, value))) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("fastbert: error: ")
    assert words in error
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("f.")]


def test_table7_prints_and_writes_six_rows(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("seqeval", reason="needs seqeval")
    pytest.importorskip("fastbert.tasks.readers.conll")
    train = tmp_path / "train.conll"
    train.write_text("a B-X\nb O\n\nc O\na B-X\nd O\n\n" * 6)
    words = ("--model", model, "--table7", "--train", train, "--eval", train, "--out", tmp_path / "run")
    assert features(*words, "--epochs", 2, "--hidden-size", 8, "--dtype", "fp32") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["features", "dev", "F1"]
    assert len(printed) == 7
    assert (tmp_path / "run/table7.json").is_file()
    assert features(*words) == 2
    assert "holds a table7.json" in capsys.readouterr().err


def test_the_names_of_layers_are_those_of_the_library() -> None:
    from fastbert.cli.features import LAYER_NAMES
    from fastbert.features.extract import NAMED

    assert tuple(NAMED) == LAYER_NAMES
