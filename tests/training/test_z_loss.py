"""The z-loss of heads that predict tokens: a term of the training loss, on every backend, and no part of validation."""

import pytest
import torch
from accuracy import assert_as_accurate
from batches import random_batch

from fastbert import BertConfig, use_backend
from fastbert.models import BertForMaskedLM
from fastbert.models.heads.prediction import set_z_loss
from fastbert.ops import reference

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = BertConfig(
    vocab_size=70, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
    max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip


def make(seed: int, z_loss: float, dtype: torch.dtype = torch.float32) -> BertForMaskedLM:
    torch.manual_seed(seed)
    model = BertForMaskedLM(CONFIG).to(dtype)
    with torch.no_grad():
        model.cls.predictions.bias.copy_(torch.randn(70) * 2.0)  # a normaliser that is far from 1
    set_z_loss(model, z_loss)
    return model


@pytest.mark.parametrize("decoder", ["plain", "hooked"])
def test_it_is_the_mean_of_the_squared_log_normaliser(decoder: str, seed: int) -> None:
    batch = random_batch([9, 14], CONFIG.vocab_size, 5, seed)
    results = {}
    for name, backend, dtype in (
        ("exact", "eager", torch.float64),
        ("eager", "eager", torch.float32),
        ("ours", None, torch.float32),
    ):
        model = make(seed, 0.05, dtype)
        if decoder == "hooked":
            model.cls.predictions.decoder.register_forward_hook(lambda *_: None)
        with use_backend(backend):
            output = model.train()(batch, return_logits=True)
            output.loss.backward()
            without = make(seed, 0.0, dtype).train()(batch)
        term = 0.05 * reference.z_loss(output.logits.detach().double()).mean()
        assert float(term) > 0.1
        torch.testing.assert_close(output.loss.double(), without.loss.double() + term, rtol=1e-5, atol=1e-6)
        results[name] = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        assert float(model.eval()(batch).loss.detach()) == pytest.approx(float(without.loss.detach()), rel=1e-6)
    for key, exact in results["exact"].items():
        assert_as_accurate(results["ours"][key], results["eager"][key], exact, key)


def test_it_makes_the_normaliser_smaller(seed: int) -> None:
    batch = random_batch([9, 14], CONFIG.vocab_size, 5, seed)
    sizes = []
    for z_loss in (0.0, 0.1):
        model = make(seed, z_loss).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
        for _ in range(10):
            optimizer.zero_grad()
            model(batch).loss.backward()
            optimizer.step()
        with torch.no_grad():
            sizes.append(float(reference.z_loss(model(batch, return_logits=True).logits).mean()))
    assert sizes[1] < 0.8 * sizes[0]
