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
from fastbert.benchmarks.harness import child_process
from fastbert.benchmarks.harness.measure import ContenderFailed


def test_both_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, words = tmp_path / "rows.json", ["--model", "tiny", "--rounds", "1", "--threads", "1"]
    assert bench_loading.main([*words, "--workloads", "first-sentence", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["settings"] == {"model": "tiny"}
    rows = {row["contender"]: row for row in record["rows"]}
    assert {name: row["outputs"] for name, row in rows.items()} == {"fastbert": "close", "transformers": "equal"}
    for row in rows.values():
        assert (row["workload"], row["threads"]) == ("first-sentence", 1)
        assert row["median_ms"] > 0
        assert 0.1 < row["details"]["peak_to_weights"] < 100
        assert row["max_abs_difference"] < bench_loading.CLOSE
    printed = capsys.readouterr().out
    assert printed.startswith("first-sentence\n")
    assert printed.count("the weights") == 2


def measured(output: list[float], seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, "processor": seconds, "peak_bytes": 150, "weight_bytes": 100, "output": output}


def test_rows_are_medians_and_the_worst_peak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seconds = {"fastbert": iter([1.0, 3.0, 2.0]), "transformers": iter([4.0, 8.0, 6.0])}
    monkeypatch.setattr(bench_loading, "_in_a_process", lambda contender, *_: measured([0.5], next(seconds[contender])))
    result = bench_loading.measure("first-batch", Options(model="tiny", threads=2, rounds=3), tmp_path, print)
    native, reference = result.rows
    assert (native.median_ms, reference.median_ms, reference.ratio_to_fastbert) == (2000.0, 6000.0, 3.0)
    assert (native.outputs, native.details["peak_to_weights"], native.details["model"]) == ("equal", 1.5, "tiny")


def test_outputs_that_differ_are_marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outputs, said = {"fastbert": [0.5], "transformers": [0.6]}, []
    monkeypatch.setattr(bench_loading, "_in_a_process", lambda contender, *_: measured(outputs[contender], 1.0))
    result = bench_loading.measure("first-batch", Options(model="tiny", threads=2, rounds=1), tmp_path, said.append)
    assert [row.agrees for row in result.rows] == [False, True]
    assert said == ["fastbert: first-batch: differs by 0.1, more than 2e-05"]


@pytest.mark.usefixtures("threads")
def test_a_contender_that_fails_is_left_out_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_this_process(contender: str, workload: str, folder: Path, threads: int) -> dict[str, Any]:
        try:
            return bench_loading.child(contender, workload, str(folder), str(threads))
        except Exception as error:
            raise ContenderFailed(str(error)) from error

    monkeypatch.setattr(bench_loading, "_in_a_process", in_this_process)
    said: list[str] = []
    result = bench_loading.measure(
        "load", Options(model="tiny", threads=1, rounds=1, contenders=("fastbert",)), tmp_path / "none", said.append
    )
    assert not result.rows
    [absent] = result.absent
    assert (absent.workload, absent.contender) == ("load", "fastbert")
    assert "no such folder" in absent.reason
    assert said == [f"fastbert: left out of load: {absent.reason}"]


def test_a_process_that_fails_says_why_in_its_last_line() -> None:
    with pytest.raises(ContenderFailed, match=r"No such file or directory: 'in'$"):
        child_process.ask("json.tool", ("in", "out"))
