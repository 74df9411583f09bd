"""The benchmark of optimiser steps: equal weights, and a record of the schema."""

import json
from pathlib import Path

import pytest

from fastbert.benchmarks import bench_optimizers
from fastbert.benchmarks.harness import records


def test_each_optimiser_is_compared_with_pytorchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.json"
    assert bench_optimizers.main(["--model", "tiny", "--rounds", "1", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    record["note"] = "an installed package has no commit"
    assert records.problems(record, "optimizers", records.machine_class(record["machine"])) == []
    rows = record["rows"]
    assert [(row["workload"], row["contender"]) for row in rows] == [
        (rule, name) for rule in ("adamw", "stableadamw", "lamb", "muon") for name in ("fastbert", "PyTorch")
    ]
    assert all(row["max_abs_difference"] < bench_optimizers.CLOSE for row in rows if row["workload"] != "muon")
    monkeypatch.setattr(bench_optimizers, "CLOSE", 0.0)
    with pytest.raises(SystemExit, match="weights differ"):
        bench_optimizers.measure("lamb", "tiny", 1)
    with pytest.raises(SystemExit):
        bench_optimizers.main(["--rounds", "0"])
