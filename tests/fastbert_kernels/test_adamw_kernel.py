"""AdamW over flat buffers against torch's in float64 and fp32, and the sums that are added to gradients of vectors."""

import math

import pytest
import torch

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.optimizer import adamw, vectors

GPU = torch.cuda.is_available()
# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if GPU else [])]
DEVICE = torch.device("cuda" if GPU else "cpu")
# More than a block of the interpreter, no multiple of a unit, and a scalar's worth; the last is never in use.
SHAPES = [(130, 67), (70,), (1,), (33,)]
DECAYS = [0.1, 0.0]
GROUPS = [0, 1, 1, 1]
BETAS, EPS, RATE = (0.9, 0.999), 1e-6, 1e-2


def step_tensors(weights: list[torch.Tensor], shadow: torch.dtype | None) -> tuple[adamw.StepTensors, list[slice]]:
    """Return flat buffers that hold `weights`, and the elements of each."""
    unit, block = adamw.UNIT, adamw.block_elements(DEVICE) // adamw.UNIT
    slices, blocks, first = [], [], 0
    for index, weight in enumerate(weights):
        units = -(-weight.numel() // unit)
        slices.append(slice(first * unit, first * unit + weight.numel()))
        blocks += [(first + at, index, min(block, units - at), int(at == 0)) for at in range(0, units, block)]
        first += units
    flat = [torch.zeros(first * unit, device=DEVICE) for _ in range(4)]
    for weight, where in zip(weights, slices):
        flat[0][where] = weight.flatten()
    settings = [[*map(math.log2, BETAS), *(1 - beta for beta in BETAS), EPS, decay] for decay in DECAYS]
    tensors = adamw.StepTensors(
        *flat,
        None if shadow is None else torch.zeros(len(flat[0]), dtype=shadow, device=DEVICE),
        torch.zeros(len(weights), device=DEVICE),
        torch.tensor([1] * (len(weights) - 1) + [0], dtype=torch.int32, device=DEVICE),
        torch.tensor(GROUPS, dtype=torch.int32, device=DEVICE),
        torch.tensor(settings, dtype=torch.float64, device=DEVICE),
        torch.full((len(DECAYS),), RATE, device=DEVICE),
        torch.tensor(blocks, dtype=torch.int32, device=DEVICE),
        torch.zeros(1, device=DEVICE),
        torch.zeros(adamw.FACTORS, len(weights), device=DEVICE),
    )
    return tensors, slices


@pytest.mark.parametrize(
    ("max_norm", "shadow"), [(math.inf, torch.bfloat16), (0.5, torch.float16)], ids=["unclipped", "clipped"]
)
def test_steps_are_torchs(max_norm: float, shadow: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(shape, generator=generator).to(DEVICE) for shape in SHAPES]
    tensors, slices = step_tensors(weights, shadow)
    models = [
        [weight.to(dtype).requires_grad_() for weight in weights[:-1]] for dtype in (torch.float64, torch.float32)
    ]
    optimizers = [
        torch.optim.AdamW(
            [{"params": model[:1], "weight_decay": DECAYS[0]}, {"params": model[1:], "weight_decay": DECAYS[1]}],
            lr=RATE, betas=BETAS, eps=EPS,
        )
        for model in models
    ]  # fmt: skip
    for step in range(5):
        gradients = [torch.randn(shape, generator=generator).to(DEVICE) * 10.0 ** (step - 2) for shape in SHAPES[:-1]]
        for model, optimizer in zip(models, optimizers):
            for parameter, gradient in zip(model, gradients):
                parameter.grad = gradient.to(parameter.dtype, copy=True)
            norm = torch.nn.utils.clip_grad_norm_(model, max_norm)
            optimizer.step()
        for gradient, where in zip(gradients, slices):
            tensors.gradients[where] = gradient.flatten()
        adamw.begin(tensors, max_norm)
        adamw.update(tensors, clear=step != 1)
        torch.testing.assert_close(tensors.norm[0], norm, rtol=1e-6, atol=0.0)
        cleared = not tensors.gradients.any()
        assert cleared == (step != 1)
    exact, eager = models
    for index, (weight, where) in enumerate(zip(weights[:-1], slices)):
        mine = tensors.weights[where].view(weight.shape)
        error, allowed = (float((value - exact[index]).detach().abs().max()) for value in (mine, eager[index]))
        assert error <= 2 * allowed + 1e-7, (index, error, allowed)
        state = optimizers[1].state[eager[index]]
        torch.testing.assert_close(tensors.exp_avg[where].view(weight.shape), state["exp_avg"], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(tensors.exp_avg_sq[where].view(weight.shape), state["exp_avg_sq"], rtol=1e-5, atol=0)
        assert torch.equal(tensors.shadow[where], tensors.weights[where].to(shadow))
    assert tensors.steps.tolist() == [5.0, 5.0, 5.0, 0.0]
    assert torch.equal(tensors.weights[slices[-1]], weights[-1])


@pytest.mark.parametrize("cause", ["nan", "inf"])
def test_a_gradient_that_is_not_finite_changes_nothing(cause: str, seed: int) -> None:
    weights = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE) for shape in SHAPES]
    tensors, _ = step_tensors(weights, torch.bfloat16)
    before = [tensor.clone() for tensor in (tensors.weights, tensors.exp_avg, tensors.exp_avg_sq, tensors.shadow)]
    tensors.gradients[:40] = 1.0
    tensors.gradients[7] = float(cause)
    adamw.begin(tensors, 1.0)
    adamw.update(tensors, clear=True)
    assert not tensors.norm.isfinite()
    after = (tensors.weights, tensors.exp_avg, tensors.exp_avg_sq, tensors.shadow)
    assert all(torch.equal(old, new) for old, new in zip(before, after))
    assert not tensors.steps.any()
    assert not tensors.gradients.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "width"), [(1, 32), (700, 96)], ids=str)
def test_sums_are_added_to_gradients(rows: int, width: int, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4 * width, generator=generator).to(DEVICE, dtype)[:, : 3 * width]
    others = [torch.randn(shape, generator=generator).to(DEVICE) for shape in ((5, 3, width), (130, 80), (1, 3, width))]
    partials = [vectors.partial_row_sums(x), *others]
    gradients = [torch.randn(partial.shape[1:], generator=generator).to(DEVICE) for partial in partials]
    expected = [g.double() + p.double().sum(0) for g, p in zip(gradients, [x, *others])]
    vectors.add_all([vectors.PartialSums(*pair) for pair in zip(partials, gradients)])
    for actual, exact in zip(gradients, expected):
        torch.testing.assert_close(actual.double(), exact, rtol=1e-5, atol=1e-4)
