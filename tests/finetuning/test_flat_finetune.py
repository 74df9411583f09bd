"""Fine-tuning whose parameters lie in flat buffers, as on a GPU: the same weights as with ordinary ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from finetune_runs import config, weights

from fastbert.finetuning import fit
from fastbert.finetuning.run import finetune
from fastbert.training import flat_parameters

pytest.importorskip("triton", reason="needs triton")
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the steps of a GPU, on a CPU"),
]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({"layer_decay": 0.9, "micro_batch": 8}, id="groups"),
        pytest.param({"gradual_unfreezing": True}, id="unfrozen-later"),
    ],
)
def test_a_flat_run_is_that_of_ordinary_parameters(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any]
) -> None:
    flat: list[bool] = []

    class OfAGpu(fit.Fit):
        """A trial that launches its steps."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.launches = True
            flat.append(self.optimizer.flat is not None)

    monkeypatch.setattr("fastbert.finetuning.run.Fit", OfAGpu)
    few = {"steps": 3, "epochs": (1.0,), "lr": (1e-3,), **flags}
    finetune(config(place, tmp_path / "plain", **few))
    monkeypatch.setattr(flat_parameters, "reason_not_flat", lambda *_: None)
    finetune(config(place, tmp_path / "flat", **few))
    assert flat == [False, True]
    expected = weights(tmp_path / "plain" / "model")
    for name, value in weights(tmp_path / "flat" / "model").items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=5e-5, msg=name)
    trained = {name: value for name, value in expected.items() if name.startswith("classifier")}
    assert all(value.any() for value in trained.values()), "biases begin at zero"
    assert trained
