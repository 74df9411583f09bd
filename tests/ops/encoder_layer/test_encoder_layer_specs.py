"""Layers by their spec: one that the parameters or the operations do not fit is refused, not computed as another."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fastbert import use_backend
from fastbert.errors import UserError
from fastbert.ops import reference
from fastbert.ops.encoder_layer.arguments import LayerBatch, LayerParameters
from fastbert.ops.encoder_layer.op import encoder_layer
from fastbert.ops.encoder_layer.spec import LayerSpec, NormSpec, bert_layer

WIDTH, INNER = 64, 96
BERT = bert_layer(WIDTH, 4, INNER, "gelu", 1e-12)
ATTENTION, NETWORK = BERT.self_attention, BERT.feed_forward


def parameters() -> LayerParameters:
    shapes = {"intermediate": (INNER, WIDTH), "output": (WIDTH, INNER), "intermediate_bias": (INNER,)}
    square = ("query", "key", "value", "attention_output")
    return LayerParameters(
        *[
            torch.randn(shapes.get(name, (WIDTH, WIDTH) if name in square else (WIDTH,)))
            for name in LayerParameters._fields
        ]
    )


def batch() -> LayerBatch:
    return LayerBatch(cu_seqlens=torch.tensor([0, 2, 6], dtype=torch.int32), max_seqlen=4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(replace(BERT, cross_attention=ATTENTION), "hold no cross-attention", id="cross-attention"),
        pytest.param(replace(BERT, self_attention=replace(ATTENTION, key_value_heads=2)), "key has shape", id="gqa"),
        pytest.param(
            replace(BERT, self_attention=replace(ATTENTION, similarity="additive")),
            "hold no perceptron",
            id="similarity",
        ),
        pytest.param(replace(BERT, self_attention=replace(ATTENTION, projection_bias=False)), "lacks a bias", id="qkv"),
        pytest.param(replace(BERT, self_attention=replace(ATTENTION, output_bias=False)), "lacks a bias", id="output"),
        pytest.param(replace(BERT, feed_forward=replace(NETWORK, bias=False)), "lacks a bias", id="feed-forward"),
        pytest.param(replace(BERT, feed_forward=replace(NETWORK, gated=True)), "intermediate has shape", id="gated"),
        pytest.param(replace(BERT, output_norm=NormSpec(1e-12, bias=False)), "lacks a bias", id="norm"),
        pytest.param(bert_layer(32, 4, INNER, "gelu", 1e-12), r"query has shape \(64, 64\).*\(32, 32\)", id="width"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(spec: LayerSpec, message: str) -> None:
    with pytest.raises(UserError, match=message):
        encoder_layer(torch.randn(6, WIDTH), parameters(), spec, batch())


def test_a_layer_with_a_relu_is_the_formula() -> None:
    """Whatever the backend, as no kernel fuses it; beside torch.nn's layer in float64."""
    spec, weights, x = bert_layer(WIDTH, 4, INNER, "relu", 1e-12), parameters(), torch.randn(6, WIDTH)
    assert spec.unfused == "an activation other than GELU"
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, INNER, 0.0, "relu", 1e-12, batch_first=True).double()
    state = {
        "self_attn.in_proj_weight": torch.cat((weights.query, weights.key, weights.value)),
        "self_attn.in_proj_bias": torch.cat((weights.query_bias, weights.key_bias, weights.value_bias)),
        "self_attn.out_proj.weight": weights.attention_output,
        "self_attn.out_proj.bias": weights.attention_output_bias,
        "linear1.weight": weights.intermediate,
        "linear1.bias": weights.intermediate_bias,
        "linear2.weight": weights.output,
        "linear2.bias": weights.output_bias,
        "norm1.weight": weights.attention_norm,
        "norm1.bias": weights.attention_norm_bias,
        "norm2.weight": weights.output_norm,
        "norm2.bias": weights.output_norm_bias,
    }
    layer.load_state_dict({name: tensor.double() for name, tensor in state.items()})
    with torch.no_grad():
        expected = torch.cat([layer(rows[None].double())[0] for rows in (x[:2], x[2:])])
    for backend in (None, "eager"):
        with use_backend(backend):
            torch.testing.assert_close(encoder_layer(x, weights, spec, batch()), expected.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("place", ["post", "pre"])
def test_a_layer_of_rms_norms_is_the_formula(place: Any) -> None:
    norm = NormSpec(1e-6, place=place, kind="rms_norm")
    spec, x = replace(BERT, attention_norm=norm, output_norm=norm), torch.randn(6, WIDTH)
    weights = parameters()
    weights = LayerParameters(*[tensor * 0.2 for tensor in weights])
    ours = encoder_layer(x, weights, spec, batch())
    w = LayerParameters(*[tensor.double() for tensor in weights])

    def normed(rows: torch.Tensor, weight: torch.Tensor, of: str) -> torch.Tensor:
        return reference.rms_norm(rows, weight, 1e-6) if of == place else rows

    x = x.double()
    y = normed(x, w.attention_norm, "pre")
    q, k, v = (
        (y @ weight.T + bias).view(6, 4, 16)
        for weight, bias in ((w.query, w.query_bias), (w.key, w.key_bias), (w.value, w.value_bias))
    )
    offsets = batch().cu_seqlens
    context = reference.attention(q, k, v, offsets, offsets).flatten(1)
    x = normed(x + context @ w.attention_output.T + w.attention_output_bias, w.attention_norm, "post")
    inner = reference.gelu(normed(x, w.output_norm, "pre") @ w.intermediate.T + w.intermediate_bias)
    x = normed(x + inner @ w.output.T + w.output_bias, w.output_norm, "post")
    torch.testing.assert_close(ours.double(), x, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"), [({"activation": "tanh"}, "activation='tanh'"), ({}, "similarity='l2'")]
)
def test_unknown_names_in_a_spec_are_refused(changes: dict[str, Any], message: str) -> None:
    attention = ATTENTION if changes else replace(ATTENTION, similarity="l2")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"{message} must be one of"):
        replace(BERT, self_attention=attention, feed_forward=replace(NETWORK, **changes))


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("name", ["attention_p", "output_p"])
def test_a_probability_of_one_or_more_is_refused(name: str, backend: str | None) -> None:
    index = torch.zeros(6, dtype=torch.int64)
    tensors = {"dropout_key": torch.tensor([1, 2]), "sequence_ids": index, "offsets": index}
    p = {"attention_p": 0.1, "output_p": 0.1} | {name: 1.5}
    dropping = replace(batch(), **tensors, **p, attention_output_p=p["output_p"])
    with use_backend(backend), pytest.raises(UserError, match=r"p=1\.5 must be at least 0 and below 1"):
        encoder_layer(torch.randn(6, WIDTH), parameters(), BERT, dropping)


@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_dropout_without_keys_is_refused(backend: str | None) -> None:
    with use_backend(backend), pytest.raises(UserError, match="dropout_key is None"):
        encoder_layer(torch.randn(6, WIDTH), parameters(), BERT, replace(batch(), attention_p=0.1))
