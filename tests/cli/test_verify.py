"""`fastbert verify`: what a reader sees, and the exit code."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import cli
from fastbert.integrations.verify import Measured, VerifyReport

REPORT = VerifyReport(
    model="minilm", architecture="BertModel", parameters=22_700_000, task="base", dtype="fp32", device="cpu", threads=2,
    batch_size=32, texts=389, tokens=11_572, padding_share=0.56, max_abs_difference=5.8e-6, mean_abs_difference=4e-7,
    min_token_cosine=0.9999999, mean_token_cosine=1.0, min_text_cosine=0.99999995, mean_text_cosine=1.0,
    original=Measured(seconds=2.0, texts_per_second=44.6, tokens_per_second=1267.0, peak_bytes=786 << 20),
    accelerated=Measured(seconds=0.5, texts_per_second=178.4, tokens_per_second=5068.0, peak_bytes=747 << 20),
    notes=(), tolerance=2e-5, min_cosine=0.999,
)  # fmt: skip
SHOWN = """\
model        minilm: BertModel, 22.7 M parameters, fp32 on cpu, 2 threads
text         389 texts, 11,572 tokens; batches of 32 in order, 56% padding

                   original   accelerated
texts/s                44.6         178.4   4.00 x
tokens/s              1,267         5,068
peak memory         786 MiB       747 MiB   0.95 x

difference   largest 5.8e-06, mean 4e-07
cosine       of token vectors: lowest 0.9999999, mean 1.0000000
             of text vectors:  lowest 0.9999999, mean 1.0000000

They agree: the largest difference, 5.8e-06, is within --tolerance 2e-05.
"""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, text: Path) -> list[Any]:
    """What the command asks for; answered with the report that stands first in the list, if there is one."""
    seen: list[Any] = []
    (text.parent / "minilm").mkdir()
    monkeypatch.chdir(text.parent)

    def answer(model: str, texts: list[str], **options: Any) -> VerifyReport:
        for done in (0, 1):
            options.pop("progress", lambda *_: None)("comparing", done, 1)
        report = seen.pop() if seen else REPORT
        seen.append((model, texts, options))
        return report

    monkeypatch.setattr("fastbert.integrations.verify.verify", answer)
    return seen


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("a line\n\nünd another\n", encoding="utf-8")
    return file


def test_a_stranger_reads_what_was_compared_and_that_they_agree(
    calls: list[Any], text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", "minilm", "--text", str(text), "--device", "cpu"]) == 0
    assert capsys.readouterr().out == SHOWN
    [(model, texts, options)] = calls
    assert (model, texts) == ("minilm", ["a line", "", "ünd another"])
    assert options == {
        "task": "base", "max_length": 512, "batch_size": 32, "dtype": "fp32", "device": "cpu", "threads": None,
        "tolerance": 2e-5, "min_cosine": 0.999, "rounds": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        (
            {"max_abs_difference": 3e-5},
            "THEY DO NOT AGREE: the largest difference, 3e-05, is over --tolerance 2e-05.",
        ),
        (
            {"dtype": "bf16", "min_token_cosine": 0.98},
            "THEY DO NOT AGREE: the lowest cosine of a token vector, 0.9800000, is below --min-cosine 0.999.",
        ),
    ],
)
def test_where_they_do_not_agree_the_exit_code_says_so(
    changes: dict[str, Any], last: str, calls: list[Any], text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls.append(dataclasses.replace(REPORT, **changes))
    assert cli.main(["verify", "minilm", "--text", str(text)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_what_was_not_accelerated_is_named(calls: list[Any], text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = ("encoder: layer 0 runs its own forward: it has hooks", "encoder: the original forward for calls with x")
    calls.append(
        dataclasses.replace(REPORT, notes=notes, original=dataclasses.replace(REPORT.original, peak_bytes=None))
    )
    assert cli.main(["verify", "minilm", "--text", str(text)]) == 0
    shown = capsys.readouterr().out
    assert f"\nas before    {notes[0]}\n             {notes[1]}\n" in shown
    assert "peak memory" not in shown


def test_the_report_is_written_as_json(calls: list[Any], text: Path, tmp_path: Path) -> None:
    assert cli.main(["verify", "minilm", "--text", str(text), "--json", str(tmp_path / "report.json"), "--quiet"]) == 0
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["agrees"] is True
    assert written["speedup"] == 4.0
    assert written["original"]["peak_bytes"] == 786 << 20
    assert [file.name for file in tmp_path.iterdir() if "partial" in file.name] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--text", "text.txt"], "MODEL is missing", id="no-model"),
        pytest.param(["minilm"], "--text is missing", id="no-text"),
        pytest.param(["minilm", "--text", "nowhere.txt"], "--text nowhere.txt: no such file", id="no-file"),
        pytest.param(["minilm", "--text", "empty.txt"], "empty.txt: holds no text", id="empty"),
        pytest.param(["minilm", "--text", "latin.txt"], "latin.txt: byte 1 is not UTF-8", id="latin-1"),
    ],
)
def test_wrong_input_is_one_line(
    words: list[str],
    message: str,
    calls: list[Any],
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("empty.txt").write_text("\n \n")
    Path("latin.txt").write_bytes(b"f\xfcr")
    assert cli.main(["verify", *words]) == 2
    assert calls == []
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("fastbert: error: ")
    assert message in line


def test_a_folder_that_does_not_exist_is_named(
    text: Path, calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", str(tmp_path / "nope"), "--text", str(text)]) == 2
    assert f"{tmp_path / 'nope'}: no such folder; name one with config.json" in capsys.readouterr().err
    assert not calls
