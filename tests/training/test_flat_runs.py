"""Runs whose parameters lie in flat buffers, as on a GPU: the same weights, lines and reports as other runs."""

from pathlib import Path

import pytest
import torch
from graphed_runs import EXACT, Data, Run, assert_same

from fastbert.ops.encoder_layer import flat_layer
from fastbert.training import loop
from fastbert.training.device_step import DeviceStep

pytest.importorskip("triton", reason="needs triton")
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
        trainer.device_step = DeviceStep(
            trainer.loss, trainer.optimizer, trainer.scaler, max_grad_norm=trainer.config.max_grad_norm,
            dtype=trainer.dtype,
        )  # fmt: skip
    return made


@pytest.mark.parametrize("captured", [False, True], ids=["launched", "captured"])
def test_a_flat_run_is_that_of_ordinary_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captured: bool, seed: int
) -> None:
    plain = run(tmp_path / "plain", Data(seed, same=True), captured=captured)
    monkeypatch.setattr(loop, "reason_not_flat", lambda *_: None)
    whole, first, second = (
        run(tmp_path / name, Data(seed, same=True), captured=captured, checkpoint_every=2)
        for name in ("whole", "parts", "parts")
    )
    active: list[int] = []
    original = whole.trainer.loss.model.forward
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
    first.trainer.budget = type(first.trainer.budget)(steps=3)
    first.trainer.reporter.on_step = lambda metrics, finished: setattr(first.trainer.stop, "number", 2)
    with pytest.raises(loop.Stopped):
        first.trainer.run()
    assert 1 <= second.trainer.resume() <= 2
    second.trainer.run()
    for name, value in whole.weights().items():
        assert torch.equal(second.weights()[name], value), name


def test_a_gpus_run_says_why_it_is_not_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    reasons = []
    monkeypatch.setattr(loop, "reason_not_flat", lambda *arguments: reasons.append(arguments) or "because")
    messages = Run(tmp_path, Data(seed), None).messages
    assert len(reasons) == 1
    assert not any("because" in message for message in messages), "a CPU has its own kernels"
