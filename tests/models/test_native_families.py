"""Layers of newer encoders as one native call: the values of composed operations, the same bits in every batch, int8,
and what keeps a layer from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from encoder_families import CASES, LENGTHS, batch_of, model_of

from fastbert import use_backend
from fastbert.errors import UserError
from fastbert.models.layers import layer_batch
from fastbert.ops.encoder_layer import native_general

transformers = pytest.importorskip("transformers")
FUSED_AS_BERT = ("albert", "deberta-absolute")  # their layers are BERT's


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.dtype]]:
    """The native calls of whole layers, by the dtype of their matmuls."""
    made: list[torch.dtype] = []
    original = native_general.infer

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        made.append(arguments[4])
        return original(*arguments, **options)

    monkeypatch.setattr(native_general, "infer", counted)
    return iter([made])


@pytest.mark.parametrize("case", CASES)
def test_a_layer_is_one_call_with_the_values_of_its_operations(
    case: str, calls: Iterator[list[torch.dtype]], seed: int
) -> None:
    model, made = model_of(case, seed), next(calls)
    ids = torch.randint(5, 99, (sum(LENGTHS),), generator=torch.Generator().manual_seed(seed))
    batch, chosen = batch_of(LENGTHS, ids), torch.tensor([0, 3, 30, 3])
    with torch.inference_mode():
        with use_backend("eager"):
            expected = model(batch).last_hidden_state
            assert not made
        with use_backend("native"):
            actual = model(batch).last_hidden_state
            rows, _ = model.encode(batch, token_indices=chosen)
        layers = model.config.num_hidden_layers
        if case not in FUSED_AS_BERT:
            assert made == [torch.float32] * (2 * layers)
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(rows, expected[chosen], rtol=2e-5, atol=2e-5)
        start = 0
        with use_backend("native"):
            for length in LENGTHS:
                alone = model(batch_of((length,), ids[start : start + length])).last_hidden_state
                assert torch.equal(alone, actual[start : start + length]), f"a text of {length} tokens"
                start += length
        before = len(made)
        quantized = model.quantize("int8")(batch).last_hidden_state
        assert case in FUSED_AS_BERT or len(made) == before + layers
        cosine = torch.nn.functional.cosine_similarity(quantized.flatten(), expected.flatten(), dim=0)
        assert cosine > 0.99, float(cosine)


def test_new_weights_change_kept_tables(seed: int) -> None:
    """The projections of relative positions are kept, and computed again after any change of their parameters."""
    model = model_of("deberta-v3", seed)
    ids = torch.randint(5, 99, (20,), generator=torch.Generator().manual_seed(seed))
    batch = batch_of((20,), ids)

    def states() -> torch.Tensor:
        with torch.no_grad():
            return model(batch).last_hidden_state

    before = states()
    assert torch.equal(states(), before)
    for name in ("encoder.layer.0.attention.self.key.weight", "positions.embeddings.weight"):
        parameter = dict(model.named_parameters())[next(n for n, _ in model.named_parameters() if n.endswith(name))]
        with torch.no_grad():
            parameter.add_(0.5 * torch.randn_like(parameter))
        changed = states()
        assert (changed - before).abs().max() > 1e-3, name
        with use_backend("eager"):
            torch.testing.assert_close(states(), changed, rtol=2e-5, atol=2e-5)
        before = changed
    # Hooks do not show in parameters.
    handle = model.positions.LayerNorm.register_forward_hook(lambda _, __, output: output * 1.7)
    hooked = states()
    assert (hooked - before).abs().max() > 1e-3
    handle.remove()
    assert torch.equal(states(), before)
    # Fused optimizers leave no trace in versions, and write few elements where most gradients are zero.
    weight = model.encoder.layer[0].attention.self.key.weight
    weight.grad = torch.zeros_like(weight)
    weight.grad[7, 7] = 1.0
    torch.optim.SGD([weight], lr=9.0, fused=True).step()
    weight.grad = None
    stepped = states()
    with use_backend("eager"):
        torch.testing.assert_close(states(), stepped, rtol=2e-5, atol=2e-5)


def test_what_does_not_fit_a_layer_is_named(seed: int) -> None:
    """Kernels read addresses: other dtypes and widths are refused before they are."""
    model, ids = model_of("modernbert", seed), torch.arange(5, 12)
    batch = batch_of((7,), ids)
    with torch.no_grad(), use_backend("native"):
        for indices in (torch.tensor([0, 1], dtype=torch.int32), torch.zeros(2), torch.zeros(1, 1, dtype=torch.int64)):
            with pytest.raises(UserError, match=r"token_indices must be int64 of shape \(rows,\)"):
                model.encode(batch, token_indices=indices)
        layers = layer_batch(batch, 0.0, 0.0, False, positions=model.positions(batch))
        with pytest.raises(UserError, match="x is 16 wide"):
            model.encoder.layer[1](torch.randn(7, 16), layers)
        for position in (-1, 1 << 40):
            moved = replace(batch, position_ids=torch.full((7,), position))
            with pytest.raises(UserError, match=f"position_ids holds {position}: positions of rotary"):
                model(moved)


def test_layers_share_the_arguments_of_attention_until_they_change(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Global and local layers check theirs once in a pass; what changes in place is checked again."""
    model = model_of("modernbert", seed)
    ids = torch.randint(5, 99, (20,), generator=torch.Generator().manual_seed(seed))
    batch = replace(batch_of((12, 8), ids), position_ids=torch.arange(20) % 12)
    checks: list[int] = []
    original = native_general.kernel_arguments
    monkeypatch.setattr(native_general, "kernel_arguments", lambda arguments: checks.append(1) or original(arguments))
    with torch.no_grad(), use_backend("native"):
        model(batch)
        kinds = {layer.spec.self_attention for layer in model.encoder.layer}
        assert len(checks) == len(kinds) < model.config.num_hidden_layers
        positions = model.positions(batch)
        layers, x = layer_batch(batch, 0.0, 0.0, False, positions=positions), torch.randn(20, 32)
        layer = model.encoder.layer[1]
        before = layer(x, layers)
        assert positions.position_ids is not None
        positions.position_ids[3] = 5
        assert not torch.equal(layer(x, layers), before)
        positions.position_ids[3] = 1 << 40
        with pytest.raises(UserError, match="positions holds 1099511627776"):
            layer(x, layers)
        positions.position_ids[3] = 3
        layers.cu_seqlens.untyped_storage().resize_(0)
        with pytest.raises(UserError, match="no storage"):
            layer(x, layers)


def test_gradients_dropout_and_hooks_compose_the_layer(calls: Iterator[list[torch.dtype]], seed: int) -> None:
    model, made = model_of("modernbert", seed), next(calls)
    ids = torch.randint(5, 99, (20,), generator=torch.Generator().manual_seed(seed))
    batch = batch_of((20,), ids)
    with use_backend("native"):
        model(batch).last_hidden_state.sum().backward()
        assert not made
        seen: list[tuple[int, ...]] = []
        layer = model.encoder.layer[1]
        handle = layer.output.dense.register_forward_hook(lambda _, __, output: seen.append(tuple(output.shape)))
        with torch.no_grad():
            model(batch)
        handle.remove()
    assert len(made) == model.config.num_hidden_layers - 1
    assert seen == [(20, 32)]
