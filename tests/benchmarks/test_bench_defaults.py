"""The benchmark of the commands' defaults: its files, its commands and its rows, without training."""

import io
import json
import lzma
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from fastbert.benchmarks import bench_defaults

SPLITS = {"train": [["pay, please", "pay"], ['say "hi"', "greet"]], "val": [["hello", "greet"]]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with one set and one corpus."""
    folder = tmp_path / "data"
    (folder / "finetune").mkdir(parents=True)
    with tarfile.open(folder / "finetune" / "clinc150.tar.xz", "w:xz") as archive:
        content = json.dumps(SPLITS).encode()
        member = tarfile.TarInfo("clinc150/data_full.json")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    (folder / "wiki-en").mkdir()
    (folder / bench_defaults.WIKIPEDIA).write_bytes(lzma.compress(b"A sentence of a document.\n" * 1000))
    return folder


def value_of(flag: str, arguments: Sequence[object]) -> Path:
    return Path(str(arguments[list(arguments).index(flag) + 1]))


def test_a_set_has_rows_for_defaults_baselines_and_grid(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[object]] = []

    def command(arguments: Sequence[object], threads: int) -> tuple[str, float]:
        commands.append(list(arguments))
        lines = value_of("--train", arguments).read_text().splitlines()
        assert [list(json.loads(line).values()) for line in lines] == SPLITS["train"]
        lr = float(str(value_of("--lr", arguments))) if "--lr" in arguments else 1e-4
        out = value_of("--out", arguments)
        out.mkdir()
        results = {
            "metric": "accuracy",
            "best": {"lr": lr, "batch_size": 8, "epochs": 3.0},
            "results": {"val.jsonl": {"accuracy": {"mean": 90 + 1e4 * lr}}},
            "baselines": {"val.jsonl": {"linear": {"accuracy": 80.0}, "majority": {"accuracy": 10.0}, "chance": {}}},
        }
        (out / "results.json").write_text(json.dumps(results))
        return "", 12.34

    monkeypatch.setattr(bench_defaults, "command", command)
    file = tmp_path / "rows.json"
    arguments = ["finetuning", "--sets", "clinc150", "--grid", "--folder", "MODEL", "--data", str(data)]
    assert bench_defaults.main([*arguments, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["score"] for row in rows] == pytest.approx([91, 80, 10, 90.5, 92, 93])
    assert rows[0]["contender"] == "fastbert, defaults"
    assert rows[0]["seconds_in_all"] == 12.3
    assert ["--baseline" in command for command in commands] == [True, False, False, False]
    assert "accuracy 91.00" in capsys.readouterr().out


def test_pretraining_takes_whole_lines_and_fills_in_blanks(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(arguments: Sequence[object], threads: int) -> tuple[str, float]:
        if arguments[0] == "fill-mask":
            return f"{arguments[3]}\n   released 26.6%   born 20.7%\n", 1.0
        out = value_of("--out", arguments)
        out.mkdir()
        (out / "metrics.jsonl").write_text('{"split": "train", "step": 1}\n{"split": "validation", "step": 9}\n')
        (out / "config.json").write_text('{"finished": {"unigram_cross_entropy": 6.9}}')
        return "", 570.04

    monkeypatch.setattr(bench_defaults, "command", command)
    file = tmp_path / "rows.json"
    flags = ["--megabytes", "0.01", "--data", str(data), "--json", str(file)]
    assert bench_defaults.main(["pretraining", *flags]) == 0
    [row] = json.loads(file.read_text())["rows"]
    assert row["corpus_bytes"] == 10_010  # 385 lines of 26 bytes
    assert row["validation"] == [{"split": "validation", "step": 9}]
    assert row["fill_mask"]["The film was [MASK] in 2012."] == ["released 26.6%", "born 20.7%"]


def test_a_command_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(bench_defaults.UserError, match="ended with code 2"):
        bench_defaults.command(["no-such-command"], 1)
