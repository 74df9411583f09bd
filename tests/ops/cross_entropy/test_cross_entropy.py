"""The vocabulary matmul with its loss against the oracle."""

import pytest
import torch

from fastbert import ops
from fastbert.ops import reference


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_linear_cross_entropy(smoothing: float, z_loss: float, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight, bias = torch.randn(9, 16).double(), torch.randn(40, 16).double(), torch.randn(40).double()
    labels = torch.randint(40, (9,))
    labels[[2, 5]] = -100
    actual = ops.linear_cross_entropy(x, weight, bias, labels, label_smoothing=smoothing, z_loss=z_loss)
    kept = labels != -100
    logits = x @ weight.T + bias
    expected = reference.cross_entropy(logits[kept], labels[kept], smoothing).sum()
    expected = expected + z_loss * reference.z_loss(logits[kept]).sum()
    torch.testing.assert_close(actual.loss_sum.double(), expected, rtol=1e-5, atol=1e-5)
    assert actual.count == 7
    assert actual.correct == int((logits.argmax(-1) == labels).sum())
