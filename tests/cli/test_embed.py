"""`fastbert embed` from flags to files."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from embedding import random_texts, saved

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import cli
from fastbert.embeddings.folder import load_embedder


@pytest.fixture
def model(tmp_path: Path, seed: int) -> Path:
    return saved(tmp_path / "model", seed)


@pytest.fixture
def text(tmp_path: Path, seed: int) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{line}\n" for line in random_texts(seed, 25)))
    return path


def embed(*flags: object) -> int:
    return cli.main(["embed", *map(str, flags)])


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_the_file_holds_what_the_model_gives(
    tmp_path: Path, model: Path, text: Path, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "v.npy"
    flags = ("--model", model, "--text", text, "--out", out, "--dtype", dtype, "--device", "cpu")
    assert embed(*flags, "--pooling", "max", "--normalize", "--max-length", 20, "--long", "windows") == 0
    encoder, tokenizer, _ = load_embedder(model, dtype=None if dtype == "fp32" else torch.bfloat16)
    encoder.quantize("int8" if dtype == "int8" else None)
    options = {"pooling": "max", "normalize": True, "max_length": 20, "long": "windows"}
    expected = encoder.embed(text.read_text().splitlines(), tokenizer, **options)
    np.testing.assert_array_equal(np.load(out), expected.numpy())
    printed = capsys.readouterr()
    assert printed.out.startswith("25 texts, ")
    assert "none of 25 texts was truncated" in printed.out
    assert "texts/s" in printed.out


def test_standard_input(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("a b\n\né".encode())))
    assert embed("--model", model, "--text", "-", "--out", tmp_path / "v.npy", "--quiet", "--dtype", "fp32") == 0
    encoder, tokenizer, _ = load_embedder(model)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), encoder.embed(["a b", "", "é"], tokenizer).numpy())


def test_an_existing_file_is_replaced_only_when_asked(
    tmp_path: Path, model: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "v.jsonl"
    out.write_text("before")
    assert embed("--model", model, "--text", text, "--out", out) == 2
    assert "exists" in capsys.readouterr().err
    assert out.read_text() == "before"
    assert embed("--model", model, "--text", text, "--out", out, "--overwrite") == 0
    assert len(out.read_text().splitlines()) == 25


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param({"--model": None}, "--model is missing", id="no-model"),
        pytest.param({"--text": None}, "--text is missing", id="no-text"),
        pytest.param({"--out": None}, "--out is missing", id="no-out"),
        pytest.param({"--model": "nowhere"}, "nowhere: no such folder", id="model"),
        pytest.param({"--text": "nowhere.txt"}, "nowhere.txt: no such file", id="text"),
        pytest.param({"--column": "x"}, "no column 'x'", id="column"),
        pytest.param({"--out": "v.bin"}, "must end in .npy, .parquet, .jsonl", id="out"),
        pytest.param({"--out": ""}, "--out '': is empty", id="empty-out"),
        pytest.param({"--max-length": "2"}, "--max-length 2", id="max-length"),
        pytest.param({"--long": "error", "--max-length": "3"}, "more than --max-length 3", id="long"),
        pytest.param({"--prompt": "query"}, "--prompt query is unknown", id="prompt"),
        pytest.param({"--dtype": "int8", "--device": "cuda"}, "--device c", id="int8-gpu"),
    ],
)
def test_wrong_flags_are_one_line(
    tmp_path: Path,
    model: Path,
    text: Path,
    flags: dict[str, str | None],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = {"--model": str(model), "--text": str(text), "--out": "v.npy", **flags}
    assert embed(*(part for flag, value in argv.items() if value is not None for part in (flag, value))) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("fastbert: error: ")
    assert words in error
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("v.")]


def test_control_c_leaves_no_file(tmp_path: Path, model: Path) -> None:
    command = [sys.executable, "-m", "fastbert", "embed", "--model", model, "--text", "-", "--out", tmp_path / "v.npy"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env={**os.environ, "PYTHONSAFEPATH": "1"}
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"a b c\n" * 30_000)
        process.stdin.flush()
        for _ in range(600):  # until a part is written, while more texts are awaited
            if any(tmp_path.glob("v.npy.*.partial")):
                break
            time.sleep(0.1)
        else:
            pytest.fail("nothing was written")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert b"interrupted" in process.stderr.read()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("v.npy")]
