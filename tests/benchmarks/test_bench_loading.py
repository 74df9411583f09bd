"""The benchmark of loading on a tiny model: a process for each contender, outputs compared, rows and files."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="measures transformers too")
pytest.importorskip("matplotlib", reason="the harness draws charts")
if sys.platform != "linux":
    pytest.skip("reads a process's memory as Linux shows it", allow_module_level=True)

from fastbert.benchmarks import bench_loading
from fastbert.benchmarks.bench_loading import Options


def test_both_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_loading, "WORKLOADS", {"first-sentence": bench_loading.WORKLOADS["first-sentence"]})
    file = tmp_path / "rows.json"
    assert bench_loading.main(["--model", "tiny", "--rounds", "1", "--threads", "1", "--json", str(file)]) == 0
    rows = {row["contender"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows.keys() == {"fastbert", "transformers"}
    for row in rows.values():
        assert (row["workload"], row["outputs"], row["threads"]) == ("first-sentence", "close", 1)
        assert row["median_ms"] > 0
        assert 0.1 < row["details"]["peak_to_weights"] < 100
        assert row["max_abs_difference"] < bench_loading.CLOSE
    printed = capsys.readouterr().out
    assert printed.count("first-sentence") == 2


def measured(output: list[float], seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, "processor": seconds, "peak_bytes": 150, "weight_bytes": 100, "output": output}


def test_rows_are_medians_and_the_worst_peak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seconds = {"fastbert": iter([1.0, 3.0, 2.0] * 3), "transformers": iter([4.0, 8.0, 6.0] * 3)}
    monkeypatch.setattr(bench_loading, "_in_a_process", lambda contender, *_: measured([0.5], next(seconds[contender])))
    rows = bench_loading.measure(Options(model="tiny", threads=2, rounds=3, json=None), tmp_path)
    assert [row.workload for row in rows] == [name for name in bench_loading.WORKLOADS for _ in range(2)]
    native, reference = rows[:2]
    assert (native.median_ms, reference.median_ms, reference.ratio_to_fastbert) == (2000.0, 6000.0, 3.0)
    assert native.details["peak_to_weights"] == 1.5


def test_outputs_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outputs = {"fastbert": [0.5], "transformers": [0.6]}
    monkeypatch.setattr(bench_loading, "_in_a_process", lambda contender, *_: measured(outputs[contender], 1.0))
    with pytest.raises(SystemExit, match=r"load: outputs differ by 0\.1"):
        bench_loading.measure(Options(model="tiny", threads=2, rounds=1, json=None), tmp_path)


def test_a_contender_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"fastbert, load: .*no such folder"):
        bench_loading.measure(Options(model="tiny", threads=1, rounds=1, json=None), tmp_path / "none")
