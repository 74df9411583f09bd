"""Single operations as contenders: every workload agrees in both libraries and dtypes, rows, wrong values."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fastbert.benchmarks import bench_kernels, peers
from fastbert.benchmarks.bench_kernels import Options
from fastbert.benchmarks.cpu import contender, operations, peak
from fastbert.benchmarks.cpu.lineup import dtype_of
from fastbert.config import BertConfig
from fastbert.errors import UserError

TOY = BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy shapes, short sequences, short rounds, a small copy."""
    monkeypatch.setattr(operations, "LONGEST", 16)
    monkeypatch.setattr(contender, "MOST_CALLS", 1)
    monkeypatch.setattr(peak, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(BertConfig, "preset", classmethod(lambda cls, name: TOY))


def test_every_workload_agrees_and_has_a_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads, file = torch.get_num_threads(), tmp_path / "rows.json"
    words = ["--quick", "--no-isolate", "--rounds", "1", "--threads", "1", "--json", str(file)]
    try:
        assert bench_kernels.main(words) == 0
    finally:
        torch.set_num_threads(threads)
    record = json.loads(file.read_text())
    assert (record["benchmark"], record["settings"]) == ("kernels", {"model": "tiny"})
    made = {workload.name: workload for workload in operations.workloads(TOY, quick=True)}
    assert {row["workload"] for row in record["rows"]} == made.keys()
    for row in record["rows"]:
        assert row["outputs"] in ("equal", "close"), row
        details, counted = row["details"], made[row["workload"]]
        assert ("gigabytes_per_second" in details) == bool(counted.elements)
        assert ("gflops" in details) == bool(counted.operations)
        assert details["copy_gigabytes_per_second"] > 0
    per_workload = [sum(row["workload"] == name for row in record["rows"]) for name in made]
    assert per_workload == [4] * (len(made) - 1) + [2], "AdamW's state is fp32"
    printed = capsys.readouterr().out
    assert "linear, width to inner, forward; 64 x 64 x 96" in printed
    assert "not measured" not in printed


def test_operations_are_those_that_torch_counts(tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    for workload in operations.workloads(TOY, quick=True):
        if workload.operations and "attention" not in workload.name:  # torch does not count that of the CPU
            peer = peers.load("kernel", "torch fp32")(None, dtype="fp32", threads=1, scratch=tmp_path)
            peer.open(workload.arrays)
            with FlopCounterMode(display=False) as counted:
                peer.run()
            assert workload.operations == counted.get_total_flops(), workload.name


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_wrong_values_are_seen(dtype: str) -> None:
    expected = np.random.default_rng(0).standard_normal((5, 8), np.float32)
    assert operations.compare(expected, expected, dtype, "torch").outputs == "equal"
    assert operations.compare(expected, expected * np.float32(1 + 1e-6), dtype, "torch").outputs == "close"
    for wrong in (expected * np.float32(1.1), np.where(np.arange(5)[:, None] == 3, 0, expected), -expected):
        assert operations.compare(expected, wrong, dtype, "torch").outputs.startswith("error ")
    empty = np.zeros((2, 3), np.float32)
    assert operations.compare(empty, empty, dtype, "torch").outputs == "equal"
    assert operations.compare(empty, empty + 1, dtype, "torch").outputs.startswith("error ")
    assert operations.compare(expected, expected[:4], dtype, "torch").outputs == "shape (4, 8), not (5, 8)"
    assert operations.compare(expected, expected * np.nan, dtype, "torch").outputs == "holds values that are not finite"


def test_the_selection_is_checked() -> None:
    assert [dtype_of("kernel", name) for name in Options(contenders=("bf16",)).names()] == ["bf16", "bf16"]
    assert [workload.name for workload in Options(workloads=("adamw",)).chosen()] == ["adamw, step"]
    with pytest.raises(UserError, match="no workload has 'conv' in its name"):
        Options(workloads=("conv",))
