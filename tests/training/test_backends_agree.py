"""Training on every backend gives the same loss curve: compared with float64, as eager torch's own differs from it."""

import pytest
import torch

from fastbert.benchmarks.training.backend_losses import backends, curve, distance

GPU = torch.cuda.is_available()
# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if GPU else [])]
DEVICE = torch.device("cuda" if GPU else "cpu")


@pytest.mark.parametrize("name", backends(DEVICE))
@pytest.mark.parametrize("steps", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_loss_curves_agree(name: str, steps: int) -> None:
    exact, eager = curve("eager", steps, DEVICE, torch.float64), curve("eager", steps, DEVICE)
    ours = curve(backends(DEVICE)[name], steps, DEVICE)
    assert distance(ours, exact) <= 4 * distance(eager, exact) + 1e-5
    few = min(steps // 2, 10)
    assert exact[-few:].mean() < exact[:few].mean()
