"""Training on every backend gives the same loss curve: compared with float64, as eager torch's own differs from it."""

import pytest
import torch
from batches import random_batch

from fastbert import BertConfig, BertForPreTraining, use_backend
from fastbert.ops.backend import HAS_TRITON
from fastbert.packing import PackedBatch
from fastbert.training.optimizer import adamw, clip_gradients

GPU = torch.cuda.is_available()
# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if GPU else [])]
DEVICE = torch.device("cuda" if GPU else "cpu")
CONFIG = BertConfig(
    vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
    max_position_embeddings=32,
)  # fmt: skip
BACKENDS = [
    pytest.param("triton", marks=pytest.mark.skipif(not HAS_TRITON, reason="needs triton")),
    pytest.param("native", marks=pytest.mark.skipif(GPU, reason="of CPUs")),
]


def batch_of(step: int) -> PackedBatch:
    """Sequences that count upwards from some token, so that there is something to learn; lengths change every step."""
    generator = torch.Generator().manual_seed(step)
    lengths = torch.randint(8, 21, (6,), generator=generator).tolist()
    batch = random_batch(lengths, CONFIG.vocab_size, 14, step)
    starts = torch.randint(5, 40, (6,), generator=generator)
    ids = starts[batch.sequence_ids] + batch.offsets_in_sequence
    batch.labels.copy_(ids[batch.masked_positions])
    ids[batch.masked_positions] = 4
    batch.input_ids.copy_(ids)
    return batch.to(DEVICE)


def curve(backend: str | None, steps: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The loss of every step, float64 (steps,), dropout included."""
    model = BertForPreTraining(CONFIG)
    model.init_weights(seed=3)
    model.to(DEVICE, dtype).train()
    optimizer = adamw(model, lr=2e-3, weight_decay=0.01)
    losses = []
    # "native" serves dropout only, so far: what fastbert chooses on a CPU.
    with use_backend(None if backend == "native" else backend):
        for step in range(steps):
            loss = model(batch_of(step)).loss
            assert loss is not None
            loss.backward()
            clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().double().cpu())
    return torch.stack(losses)


def check(backend: str, steps: int) -> tuple[float, float]:
    """Compare a backend's curve; returns its distance from float64's and eager torch's."""
    exact, eager = curve("eager", steps, torch.float64), curve("eager", steps)
    ours = curve(backend, steps)
    theirs = float((eager - exact).abs().max())
    mine = float((ours - exact).abs().max())
    # Rounding in one step is amplified by all later ones, so single places say little: the worst is compared.
    assert mine <= 4 * theirs + 1e-4, (mine, theirs)
    few = min(steps // 2, 10)
    assert exact[-few:].mean() < exact[:few].mean()
    return mine, theirs


@pytest.mark.parametrize("backend", BACKENDS)
def test_loss_curves_agree(backend: str) -> None:
    check(backend, 8)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_loss_curves_agree_over_200_steps(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    mine, theirs = check(backend, 200)
    with capsys.disabled():
        print(f"\n{backend}: at most {mine:.3g} from float64 over 200 steps, eager torch {theirs:.3g}")
