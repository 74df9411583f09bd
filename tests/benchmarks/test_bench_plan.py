"""The benchmarks of plans and of activation checkpointing: predictions beside real runs, as rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fastbert.benchmarks import bench_checkpointing, bench_plan
from fastbert.benchmarks.harness.isolation import Local
from fastbert.benchmarks.training import planned_options, planned_run
from fastbert.config import PRESETS


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure a toy in this process, on little text."""
    monkeypatch.setattr(planned_options, "Isolated", lambda path, arguments, _: Local(path, arguments))
    monkeypatch.setitem(PRESETS, "tiny", (3, 64, 1))
    for name, value in {"CORPUS_BYTES": 60_000, "LEARNED": 300, "VOCABULARY": 512}.items():
        monkeypatch.setattr(planned_run, name, value)


def test_predictions_stand_beside_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    assert bench_plan.main(["--quick", "--threads", "1", "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert row["workload"] == "tiny 4x128"
    assert row["ratio"] == pytest.approx(row["predicted_tokens_per_second"] / row["tokens_per_second"], rel=1e-3)
    assert row["details"]["layers_measured"] == [1, 2]
    assert "tokens/s predicted" in capsys.readouterr().out


def test_each_mode_of_checkpointing_is_a_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert bench_checkpointing.main(["--quick", "--threads", "1", "--json", str(file)]) == 0
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    assert [row["mode"] for row in rows] == ["none", "selective", "layer"]
    assert rows[0]["activations_bytes"] > rows[1]["activations_bytes"] > rows[2]["activations_bytes"]
    assert rows[0]["ratio_to_none"] == 1.0
    if sys.platform == "linux":
        assert all(row["peak_bytes"] is not None for row in rows)


@pytest.mark.parametrize("bench", [bench_plan, bench_checkpointing])
def test_wrong_options_are_one_line(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["--rounds", "-1"], "--rounds -1 must be at least 1"),
        (["--processor-time", "--threads", "2"], "--processor-time is for --threads 1, not 2"),
        (["--json", "."], "--json . is a folder: name a file"),
    ):
        with pytest.raises(SystemExit) as stopped:
            bench.main(["--quick", *arguments])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
