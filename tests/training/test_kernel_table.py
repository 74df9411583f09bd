"""A run keeps the kernel configurations that it began with."""

from pathlib import Path

import pytest
import torch

from fastbert.training.device import kernels_of_run

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.tuning import tables
from fastbert.kernels.tuning.tables import Config, lookup

OTHER = Config(constants={"BLOCK_M": 64, "BLOCK_N": 128}, num_warps=8, num_stages=2)
CPU = torch.device("cpu")


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tuning.json"
    monkeypatch.setenv("FASTBERT_TUNING", str(path))
    tables.saved.cache_clear()
    yield path
    tables.saved.cache_clear()


def test_a_resumed_run_uses_the_table_it_began_with(saved: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    messages: list[str] = []
    before = lookup("forward_long", "half-64", "sm_90")
    with kernels_of_run(run, CPU, messages.append, architecture="sm_90"):
        assert lookup("forward_long", "half-64", "sm_90") == before
    tables.save(saved, {"sm_90": {"forward_long": {"half-64": OTHER}}})
    assert lookup("forward_long", "half-64", "sm_90") == OTHER
    with kernels_of_run(run, CPU, messages.append, architecture="sm_90"):
        assert lookup("forward_long", "half-64", "sm_90") == before
        assert lookup("backward_bias", "ieee-128", "sm_90") == tables.DEFAULTS["sm_90"]["backward_bias"]["ieee-128"]
    assert lookup("forward_long", "half-64", "sm_90") == OTHER
    with kernels_of_run(tmp_path / "new", CPU, messages.append, architecture="sm_90"):
        assert lookup("forward_long", "half-64", "sm_90") == OTHER
    assert not messages


@pytest.mark.usefixtures("saved")
def test_a_table_of_other_kernels_is_said_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    messages: list[str] = []
    with kernels_of_run(run, CPU, messages.append, architecture="sm_90"):
        pass
    monkeypatch.setattr(tables, "fingerprint", lambda: "of other kernels")
    with kernels_of_run(run, CPU, messages.append, architecture="sm_90"):
        pass
    assert len(messages) == 1
    assert "kernels.json is damaged or belongs to different kernels" in messages[0]
    with kernels_of_run(run, CPU, messages.append, architecture="sm_90"):
        pass
    assert len(messages) == 1


def test_nothing_is_written_where_no_triton_kernel_runs(tmp_path: Path) -> None:
    with kernels_of_run(tmp_path, CPU, pytest.fail):
        pass
    assert not list(tmp_path.iterdir())
