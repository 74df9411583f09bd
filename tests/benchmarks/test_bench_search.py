"""benchmarks/bench_search.py: recall before time, rows of the schema, vectors of an index."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fastbert.benchmarks import bench_search
from fastbert.benchmarks.bench_search import Options
from fastbert.search import Index


def test_all_contenders_find_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(count=1500, batches=(1, 3), rounds=2)
    rows = bench_search.measure("toy", bench_search.synthetic(1500), options, print)
    names = [row.contender for row in rows if row.workload == "toy, 1 query"]
    assert names[:5] == ["fastbert", "fastbert, fp16", "fastbert, fp32", "torch", "NumPy"]
    assert all(row.details["recall_at_10"] >= 0.99 for row in rows if row.contender in names[:5])
    bench_search.show(rows)
    assert "toy, 3 queries" in capsys.readouterr().out


def test_vectors_of_an_index(tmp_path: Path) -> None:
    vectors = torch.nn.functional.normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(0)))
    texts = list(map(str, range(20)))
    Index.from_vectors(tmp_path / "fp32", vectors, texts, store="fp32", similarity="dot")
    assert torch.equal(bench_search.stored(tmp_path / "fp32"), vectors)
    Index.from_vectors(tmp_path / "fp16", vectors, texts)
    with pytest.raises(SystemExit, match="holds fp16, and recall is measured against fp32"):
        bench_search.stored(tmp_path / "fp16")
