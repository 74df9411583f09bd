"""`fastbert bench record`: its flags reach the options, and wrong ones are named in one line."""

from typing import Any

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import cli
from fastbert.benchmarks.harness import recording
from fastbert.benchmarks.harness.recording import Options


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options with which records would have been made."""
    seen: list[Options] = []
    monkeypatch.setattr(recording, "run", lambda options, say: seen.append(options) or 1)
    return seen


def test_flags_reach_the_options_and_the_exit_code_the_shell(run: list[Options], tmp_path: Any) -> None:
    assert cli.main(["bench", "record"]) == 1
    assert cli.main(["bench", "record", "--only", "encoder", "loading", "--minutes", "5", "--out", str(tmp_path)]) == 1
    assert cli.main(["bench", "record", "--list", "--busy", "--peer-python", "openvino=there"]) == 1
    expected = Options(only=("encoder", "loading"), minutes=5.0, out=tmp_path)
    assert run == [Options(), expected, Options(list=True, busy=True, peer_python=("openvino=there",))]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--only nope", "--only nope is not a benchmark of the plan"),
        ("--minutes 0", "--minutes 0 must be more than 0"),
        ("--quick", "unknown flag --quick"),
    ],
)
def test_wrong_words_are_named(
    words: str, message: str, run: list[Options], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "record", *words.split()]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not run


@pytest.mark.parametrize("words", [["bench", "record", "--help"], ["help", "bench", "record"]])
def test_it_has_its_own_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "fastbert bench record --list" in printed
    assert "--quick" not in printed
    assert "None" not in printed
