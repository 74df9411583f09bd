"""StableAdamW and LAMB over flat buffers against the papers' algorithms in float64."""

import math

import pytest
import torch
from optimizer_references import REFERENCES
from torch import nn

pytest.importorskip("triton", reason="needs triton")
from fastbert.training.optimizer import OPTIMIZERS
from fastbert.training.schedules import learning_rate_factor

GPU = torch.cuda.is_available()
# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if GPU else [])]
DEVICE = torch.device("cuda" if GPU else "cpu")
# More than a block of the interpreter, no multiples of a unit; the last is never used.
SHAPES, DECAYS = [(130, 67), (70,), (33, 5), (1,), (33,)], [0.1, 0.0, 0.1, 0.0, 0.1]
SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.98), "eps": 1e-6}


@pytest.mark.parametrize("rule", ["stableadamw", "lamb"])
def test_steps_are_those_of_the_paper(rule: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(scale: float) -> list[torch.Tensor]:
        return [scale * torch.randn(shape, generator=generator).to(DEVICE) for shape in SHAPES]

    weights = draw(0.1)
    own = nn.ParameterList([nn.Parameter(weight.clone()) for weight in weights])
    groups = [
        {"params": [p for p, d in zip(own, DECAYS) if bool(d) == decays], "weight_decay": 0.1 if decays else 0.0}
        for decays in (True, False)
    ]
    optimizer = OPTIMIZERS[rule](groups, **SETTINGS)
    flat = optimizer.flatten(own, torch.bfloat16)
    reference = REFERENCES[rule](weights, DECAYS, SETTINGS["lr"], SETTINGS["betas"], SETTINGS["eps"])
    for step in range(6):
        reference.lr = SETTINGS["lr"] * learning_rate_factor((step + 0.5) / 6, 0.1)
        for group in optimizer.param_groups:
            group["lr"] = reference.lr
        gradients = draw(1.0 if step == 4 else 0.01)[:-1]
        norm = float(torch.cat([gradient.flatten() for gradient in gradients]).double().norm())
        for parameter, gradient in zip(own, gradients):
            parameter.grad = gradient.clone()
        optimizer.clip_gradients(0.5)
        optimizer.step(clear=True)
        reference.step([gradient.double() * min(1.0, 0.5 / (norm + 1e-6)) for gradient in gradients])
        assert not flat.tensors.gradients.any()
    for parameter, exact in zip(own, reference.weights):
        assert float((parameter.detach().double() - exact).norm() / exact.norm()) < 1e-6
        assert torch.equal(flat.shadow(parameter, torch.bfloat16), parameter.detach().bfloat16())
    before = [parameter.detach().clone() for parameter in own]
    own[2].grad = torch.full_like(own[2], math.nan)
    optimizer.step(clear=True)
    assert all(torch.equal(parameter, value) for parameter, value in zip(own, before))
    for group in optimizer.param_groups:  # weights that are zero have no ratio
        group["lr"] = 1e-2
    with torch.no_grad():
        own[0].zero_()
    own[0].grad = torch.ones_like(own[0])
    optimizer.step(clear=True)
    assert bool(own[0].isfinite().all())
    assert 0.0 < float(own[0].detach().abs().max()) < 0.1
