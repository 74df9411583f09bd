"""`torch.compile(fullgraph=True)` of models: one graph for batches of any size, and the same results and gradients."""

from dataclasses import replace

import pytest
import torch
from batches import random_batch
from torch._dynamo.testing import CompileCounterWithBackend

from fastbert import BertConfig, BertForPreTraining, BertModel, use_backend
from fastbert.ops.dispatch import HAS_TRITON

CONFIG = BertConfig(
    vocab_size=120, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=96,
    max_position_embeddings=64,
)  # fmt: skip
LENGTHS = ([20, 31, 7, 40], [33, 9, 12, 5, 64], [3, 50, 24, 11, 17, 29])
BACKENDS = [
    pytest.param(None, id="own-choice"),
    pytest.param("triton", id="triton", marks=pytest.mark.skipif(not HAS_TRITON, reason="needs triton")),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_encoder_compiles_whole_and_once(backend: str | None, seed: int) -> None:
    model = BertModel(CONFIG).eval()
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    graphs = []
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    with use_backend(backend), torch.no_grad():
        for lengths in LENGTHS:
            batch = random_batch(lengths, 120, 13 + len(lengths), seed)
            actual, expected = compiled(batch), model(batch)
            torch.testing.assert_close(actual.last_hidden_state, expected.last_hidden_state)
            torch.testing.assert_close(actual.pooler_output, expected.pooler_output)
            graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_pretraining_compiles_whole_with_dropout(backend: str | None, seed: int) -> None:
    model = BertForPreTraining(replace(CONFIG, num_hidden_layers=1)).train()
    torch._dynamo.reset()
    graphs = []
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    with use_backend(backend):
        for lengths in LENGTHS[:2]:
            batch = random_batch(lengths, 120, 13 + len(lengths), seed)
            losses, gradients = [], []
            for function in (compiled, model):
                loss = function(batch).loss
                losses.append(loss.detach())
                gradients.append(torch.autograd.grad(loss, list(model.parameters())))
            torch.testing.assert_close(*losses)
            for actual, expected in zip(*gradients, strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
            graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1]
