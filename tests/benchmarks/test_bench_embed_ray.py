"""benchmarks/bench_embed_ray.py: the rate of the steady state, and a whole measurement of a small model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from embedding import saved

from fastbert.benchmarks import bench_embed_ray
from fastbert.benchmarks.bench_embed_ray import Options, steady_rate


def shard(worker: str, began: float, ended: float, tokens: int = 100) -> SimpleNamespace:
    return SimpleNamespace(worker=worker, began=began, ended=ended, tokens=tokens)


def test_the_steady_state_leaves_out_start_and_end() -> None:
    slow = [shard("a", 0, 9), shard("a", 9, 10), shard("a", 10, 11), shard("a", 11, 12)]
    other = [shard("b", 8, 9.5), shard("b", 9.5, 10.5), shard("b", 10.5, 11.5), shard("b", 11.5, 14)]
    # From 9.5, when both have completed a shard, to 12, when one has no more: a worker's whole time but for its waits.
    assert steady_rate([*slow, *other]) == pytest.approx((250 + 200 + 20) / 2.5)
    with pytest.raises(SystemExit, match="too few shards"):
        steady_rate(slow[:2])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
def test_vectors_are_compared_and_both_measured(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(folder=saved(tmp_path / "model", seed), texts=400, shard_rows=40, rounds=1, dtype="fp32")
    rows = bench_embed_ray.measure(options, tmp_path)
    assert [row.contender for row in rows] == ["fastbert", "fastbert, Ray"]
    assert all(row.agrees and row.tokens_per_second for row in rows)
    assert rows[1].details["startup_seconds"] > 0
    bench_embed_ray.show(rows)
    assert "fastbert, Ray" in capsys.readouterr().out
