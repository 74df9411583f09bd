"""`fastbert serve`: mistakes are one line each, with exit code 2; servers themselves are tested in `tests/serving`."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedding import saved

pytest.importorskip("tyro", reason="the command line needs tyro")
pytest.importorskip("fastapi", reason="needs fastapi: pip install 'fastbert-engine[serve]'")

from fastbert import cli

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("serve") / "embedder", 0)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run the command, which must fail; return the one line that it prints."""
    assert cli.main(["serve", *map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1, printed.err
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return printed.err.removeprefix("fastbert: error: ").rstrip()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--help"]) == 0
    short = capsys.readouterr().out
    assert cli.main(["serve", "--help-all"]) == 0
    printed = capsys.readouterr().out
    for flag in ("--host", "--port", "--tokens-file", "--max-length", "--dtype", "--max-queue-tokens"):
        assert flag in short
    for flag in ("--drain-timeout", "--idle-timeout", "--workers", "--cors"):
        assert flag not in short
        assert flag in printed


def test_addresses(model: Path, taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, model, "--port", taken)
    assert line.startswith(f"--host 127.0.0.1 --port {taken}: cannot be bound (Address already in use)")


def test_models(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, tmp_path / "nope").startswith(f"MODEL {tmp_path / 'nope'}: no such folder")
    assert "a second model is called 'embedder'" in refused(capsys, model, f"embedder={model}")
    assert "is not a name for clients" in refused(capsys, f"a b={model}")
    (tmp_path / "empty").mkdir()
    assert "config.json: no such file" in refused(capsys, tmp_path / "empty", "--port", 0)
    folder = shutil.copytree(model, tmp_path / "writer")
    task = {"format_version": 1, "task": "seq2seq", "labels": [], "settings": {}}
    (folder / "fastbert_task.json").write_text(json.dumps(task))
    assert "writes text (seq2seq), which is not served" in refused(capsys, folder, "--port", 0)
    damaged = shutil.copytree(model, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"\x08" + bytes(30))
    assert "model.safetensors" in refused(capsys, damaged, "--port", 0)


def test_tokens(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens"
    assert refused(capsys, model, "--tokens-file", path) == f"--tokens-file {path}: no such file"
    for text, mode, message in (
        ("", 0o600, "holds no token"), ("short", 0o600, "a token of 5 characters"), (TOKEN, 0o644, "chmod 600"),
        (f"two {TOKEN}", 0o600, "without spaces"), ("\xe9" * 20, 0o600, "cannot be read as ASCII text"),
    ):  # fmt: skip
        path.write_text(text)
        path.chmod(mode)
        line = refused(capsys, model, "--tokens-file", path)
        assert line.startswith(f"--tokens-file {path}: ")
        assert message in line
        assert TOKEN not in line


def test_an_open_address_is_pointed_out(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that others reach and that asks for no token starts with a warning."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        assert cli.main(["serve", str(model), "--host", "0.0.0.0", "--port", str(port)]) == 2
        warning, error = capsys.readouterr().err.splitlines()
        assert warning == "fastbert: --host 0.0.0.0 without --tokens-file: anyone who reaches it may use it"
        assert "cannot be bound" in error
        tokens = tmp_path / "tokens"
        tokens.write_text(TOKEN)
        tokens.chmod(0o600)
        assert "cannot be bound" in refused(capsys, model, "--host", "0.0.0.0", "--port", port, "--tokens-file", tokens)
