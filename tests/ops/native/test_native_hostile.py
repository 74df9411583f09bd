"""The native backend meets tensors that are not what they seem: negated views, memory given back, other layouts, ids
that another thread changes."""

import contextlib
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fastbert import BertConfig, BertModel, ops, use_backend
from fastbert.errors import UserError
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.native import matmul

CONFIG = BertConfig.preset("tiny", vocab_size=60, hidden_size=64, intermediate_size=96, num_attention_heads=2)


def model_of(seed: int) -> BertModel:
    model = BertModel(CONFIG)
    model.init_weights(seed=seed)
    return model.eval()


def frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def given_back(values: Tensor) -> Tensor:
    values.untyped_storage().resize_(0)
    return values


@pytest.mark.parametrize("storage_id", ["intermediate.dense", "attention.self.query", "output.LayerNorm"])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_negated_view_counts_with_its_sign(storage_id: str, name: str, seed: int) -> None:
    model, ids = model_of(seed), torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(seed))
    module = model.encoder.layer[0].get_submodule(storage_id)
    values = torch.randn(getattr(module, name).shape, generator=torch.Generator().manual_seed(seed + 1))
    setattr(module, name, frozen(torch._neg_view(values)))
    with torch.no_grad():
        actual = model(input_ids=ids).last_hidden_state
        with use_backend("eager"):
            expected = model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("element", ["fp32", "bf16", "int8"])
def test_products_of_negated_views(element: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((5, 32), (48, 32), (48,)))
    residual = torch.randn(5, 48, generator=generator)
    plain = matmul.matmul(-x, matmul.prepack(-weight, element), -bias, residual=-residual)
    x, weight, bias, residual = (torch._neg_view(values) for values in (x, weight, bias, residual))
    views = matmul.matmul(x, matmul.prepack(weight, element), bias, residual=residual)
    assert torch.equal(views, plain)


def _of_attention(bias: Tensor) -> Tensor:
    q, offsets = torch.randn(4, 2, 16), torch.tensor([0, 4], dtype=torch.int32)
    return ops.attention(q, q, q, offsets, offsets, 4, 4, bias=bias)


GIVEN_BACK: dict[str, Callable[[Tensor], Tensor]] = {
    "bias_gelu": lambda b: ops.bias_gelu(torch.randn(3, 64), b),
    "linear": lambda b: ops.linear(torch.randn(3, 32), frozen(torch.randn(64, 32)), b),
    "sum": lambda b: ops.dropout_add_layer_norm(
        torch.randn(3, 64), torch.randn(3, 64), torch.ones(64), torch.zeros(64), x_bias=b
    ),
    "gelu_layer_norm": lambda b: ops.gelu_layer_norm(torch.randn(3, 64), b, torch.ones(64), torch.zeros(64)),
    "attention": lambda b: _of_attention(b.view(2, 4, 8)),
    "matmul": lambda b: matmul.matmul(torch.randn(3, 32), matmul.prepack(torch.randn(64, 32), "fp32"), b),
    "norm": lambda b: matmul.matmul(
        torch.randn(3, 32), matmul.prepack(torch.randn(64, 32), "fp32"), norm=(torch.ones(64), b, 1e-12)
    ),
}


@pytest.mark.parametrize("operation", GIVEN_BACK)
def test_memory_that_was_given_back_is_not_taken_for_none(operation: str) -> None:
    with torch.no_grad(), use_backend("native"), pytest.raises(UserError, match="its memory was given back"):
        GIVEN_BACK[operation](given_back(torch.randn(64)))


@pytest.mark.parametrize("name", ["key", "sequence_ids", "offsets"])
def test_what_dropout_counts_by_is_there(name: str) -> None:
    counters = {"key": torch.arange(2), "sequence_ids": torch.zeros(3).long(), "offsets": torch.arange(3)}
    given_back(counters[name])
    with use_backend("native"), pytest.raises(UserError, match=rf"token_dropout.{name} .* its memory was given back"):
        ops.dropout(torch.randn(3, 64), TokenDropout(p=0.5, site=1, **counters))


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo], ids=str)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_sparse_weight_is_eager_torchs(layout: torch.layout, seed: int) -> None:
    model, ids = model_of(seed), torch.tensor([[2, 5, 7]])
    dense = model.encoder.layer[0].output.dense
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state
        dense.weight = frozen(dense.weight.detach().to_sparse(layout=layout))
        torch.testing.assert_close(model(input_ids=ids).last_hidden_state, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["eager", None])
def test_a_parametrised_norm_is_what_its_parametrisation_says(backend: str | None, seed: int) -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    model, ids = model_of(seed), torch.tensor([[2, 5, 7]])
    norm = model.encoder.layer[0].output.LayerNorm
    with torch.no_grad(), use_backend(backend):
        parametrize.register_parametrization(norm, "weight", Doubled())
        actual = model(input_ids=ids).last_hidden_state
        parametrize.remove_parametrizations(norm, "weight")
        torch.testing.assert_close(actual, model(input_ids=ids).last_hidden_state, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["eager", None])
def test_a_norm_that_lost_its_bias_adds_none(backend: str | None, seed: int) -> None:
    model = model_of(seed)
    norm, ids, states = model.encoder.layer[0].output.LayerNorm, torch.tensor([[2, 5, 7]]), []
    for bias in (torch.nn.Parameter(torch.zeros_like(norm.bias)), None):
        norm.bias = bias
        with torch.no_grad(), use_backend(backend):
            states.append(model(input_ids=ids).last_hidden_state)
    torch.testing.assert_close(*states)


def test_ids_that_another_thread_changes_never_lead_out_of_the_table() -> None:
    ids, table = torch.zeros(20_000, dtype=torch.int64), torch.randn(50, 32)
    weight, bias = torch.ones(32), torch.zeros(32)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            ids[15_000:] = 2**40
            ids[15_000:] = 0

    thread = threading.Thread(target=change)
    thread.start()
    try:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            with contextlib.suppress(UserError):  # an id that was found in time
                assert ops.embedding_layer_norm((ids,), (table,), weight, bias, 1e-12).isfinite().all()
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("longest", [4.5, "4", 2**70])
def test_a_longest_length_that_is_no_length_is_named(longest: object) -> None:
    q, offsets = torch.randn(4, 2, 16), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(UserError, match="max_seqlen_q="):
        ops.attention(q, q, q, offsets, offsets, longest, 4)
