"""The largest batch that fits into memory: the linear model, and a measurement of small models from end to end."""

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fastbert.benchmarks import bench_encoder
from fastbert.benchmarks.bench_encoder import Options
from fastbert.benchmarks.cpu import largest_batch, memory_needs
from fastbert.errors import UserError

pytestmark = pytest.mark.usefixtures("threads")


def test_the_largest_batch_leaves_room_for_the_fixed_part() -> None:
    assert largest_batch.fitted((2, 6), (120_000_000, 160_000_000), 1_000_000_000) == {
        "largest_batch": 90,
        "bytes_per_sequence": 10_000_000,
        "fixed_megabytes": 100.0,
        "memory_gigabytes": 1.0,
    }
    too_small = largest_batch.fitted((2, 6), (120_000_000, 160_000_000), 50_000_000)
    assert too_small is not None
    assert too_small["largest_batch"] == 0
    assert largest_batch.fitted((2, 6), (160_000_000, 160_000_000), 10**9) is None


def test_the_memory_is_that_of_the_flag_or_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    assert largest_batch.memory_bytes(1.5) == 1_500_000_000
    monkeypatch.setattr(memory_needs, "available", lambda: 7)
    assert largest_batch.memory_bytes(None) == 7
    monkeypatch.setattr(memory_needs, "available", lambda: None)
    with pytest.raises(UserError, match="give --memory-gb"):
        largest_batch.memory_bytes(None)


@pytest.mark.parametrize("options", [{"matmuls": True}, {"sweep": True}, {"family": "mpnet-base"}, {"isolate": False}])
def test_it_is_a_measurement_of_its_own(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="leave out"):
        Options(quick=True, largest_batch=True, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"memory_gb": 4.0}, {"memory_gb": 0.0, "largest_batch": True}])
def test_a_memory_without_use_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="--memory-gb"):
        Options(quick=True, **options)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux to read peak memory")
def test_from_end_to_end(tmp_path: Path) -> None:
    options = Options(
        quick=True, largest_batch=True, memory_gb=2.0, threads=1, contenders=("fastbert fp32",), workloads=("128",)
    )
    result = bench_encoder.run(options, lambda _: None)
    [row] = result.rows
    assert row.workload == "128 tokens"
    # The hidden states that a call returns grow with the batch in any case.
    assert row.details["bytes_per_sequence"] >= 128 * options.config.hidden_size * 4
    fixed = row.details["fixed_megabytes"] * 1e6
    assert row.details["largest_batch"] == pytest.approx((2e9 - fixed) / row.details["bytes_per_sequence"], rel=0.01)
    printed = io.StringIO()
    bench_encoder.show(result, Console(file=printed))
    assert f"{row.details['largest_batch']:,}" in printed.getvalue()
    bench_encoder.publish(result, options, tmp_path / "rows.json", None)
    record = json.loads((tmp_path / "rows.json").read_text())
    assert record["benchmark"] == "encoder-memory"
    assert record["rows"][0]["largest_batch"] == row.details["largest_batch"]
