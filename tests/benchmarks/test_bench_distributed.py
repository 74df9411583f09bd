"""The benchmark of several processes: losses are compared, then rates."""

import json
from pathlib import Path

import pytest

from fastbert.benchmarks import bench_distributed
from fastbert.data.prepare import prepare
from fastbert.tokenizers.piece_training import train_tokenizer


def test_a_run_that_is_too_short_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_distributed.main(["--data", str(tmp_path), "--steps", "2"])
    assert "--steps 2 must be at least 4" in capsys.readouterr().err


@pytest.mark.slow
def test_all_are_compared_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [" ".join(f"w{(n * k) % 17}" for k in range(1, 4 + n % 9)) for n in range(600)]
    documents = [lines[n : n + 6] for n in range(0, 600, 6)]
    tokenizer = train_tokenizer((line for line in lines), "wordpiece", 200, lower_case=True)
    prepare(documents, tokenizer, tmp_path / "shards")
    file = tmp_path / "rows.json"
    arguments = ["--data", str(tmp_path / "shards"), "--model", "tiny", "--batch-size", "8", "--steps", "4"]
    assert bench_distributed.main([*arguments, "--rounds", "1", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["processes"] for row in rows] == [1, 1, 2, 2]
    assert all(row["tokens_per_second"] > 0 for row in rows)
    assert max(row["largest_relative_difference_of_losses"] for row in rows) < bench_distributed.CLOSE
    monkeypatch.setattr(bench_distributed, "CLOSE", -1.0)
    with pytest.raises(SystemExit, match="there is nothing to compare"):
        bench_distributed.main([*arguments, "--rounds", "1"])
