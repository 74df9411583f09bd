"""Runs whose parameters lie in flat buffers, as on a GPU: the same weights, lines and reports as other runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from graphed_runs import EXACT, Data, Run, assert_same

from fastbert.errors import KernelError
from fastbert.ops.encoder_layer import flat_layer
from fastbert.training import flat_parameters, loop
from fastbert.training.device_step import DeviceStep

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.optimizer import adamw

GPU = torch.cuda.is_available()
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(GPU, reason="the steps of a GPU, on a CPU"),
]


def run(folder: Path, data: Data, *, captured: bool, **flags) -> Run:
    """A run whose steps are those of a GPU."""
    made = Run(folder, data, EXACT if captured else None, steps=3, **flags)
    if not captured:
        trainer = made.trainer
        computer = trainer.computer
        computer.device_step = DeviceStep(
            computer.loss, computer.optimizer, computer.scaler, max_grad_norm=trainer.config.max_grad_norm,
            dtype=computer.dtype,
        )  # fmt: skip
    return made


@pytest.mark.parametrize("captured", [False, True], ids=["launched", "captured"])
def test_a_flat_run_is_that_of_ordinary_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captured: bool, seed: int
) -> None:
    plain = run(tmp_path / "plain", Data(seed, same=True), captured=captured)
    monkeypatch.setattr(flat_parameters, "reason_not_flat", lambda *_: None)
    whole, first, second = (
        run(tmp_path / name, Data(seed, same=True), captured=captured, checkpoint_every=2)
        for name in ("whole", "parts", "parts")
    )
    active: list[int] = []
    original = whole.trainer.computer.loss.model.forward
    monkeypatch.setattr(
        whole.trainer.model, "forward", lambda *a, **k: (active.append(len(flat_layer._active)), original(*a, **k))[1]
    )
    for each in (plain, whole):
        each.trainer.run()
    assert_same(plain, whole, tolerance=2e-5)
    assert set(active) == {1}, "in steps and in validations"
    assert flat_layer._active == []
    if captured:
        assert whole.recorder.captures == 2

    # Stopped after its second step, and resumed: the same bits.
    first.trainer.reporter.on_step = lambda metrics, finished: setattr(first.trainer.stop, "number", 2)
    with pytest.raises(loop.Stopped):
        first.trainer.run()
    assert 1 <= second.trainer.resume() <= 2
    second.trainer.run()
    for name, value in whole.weights().items():
        assert torch.equal(second.weights()[name], value), name


def test_a_kernel_that_does_not_compile_leaves_the_parameters_ordinary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise KernelError("adamw does not compile")

    plain = run(tmp_path / "plain", Data(seed, same=True), captured=False)
    monkeypatch.setattr(flat_parameters, "reason_not_flat", lambda *_: None)
    monkeypatch.setattr(adamw, "update", refuse)
    other = run(tmp_path / "other", Data(seed, same=True), captured=False)
    reason = other.trainer.optimizer.flatten_if_faster(other.trainer.model, torch.device("cpu"), torch.float32)
    assert reason == "adamw does not compile"
    assert other.trainer.optimizer.flat is None
    for each in (plain, other):
        each.trainer.run()
    assert_same(plain, other, tolerance=0)
