"""The C++ step of whole models: which layers it computes, and that texts are those of composed layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastbert
from fastbert import BertConfig
from fastbert.errors import UserError
from fastbert.models import causal_decoding
from fastbert.models.causal_generation import TextSettings, generate
from fastbert.models.decoder_stack import decoder_stack, embeddings_step, head_step
from fastbert.models.gpt2.config import GPT2Config
from fastbert.models.openai_gpt.config import OpenAIGPTConfig
from fastbert.models.seq2seq.decoding_cache import WrittenKeys
from fastbert.ops.native.matmul_table import same_in_every_batch
from fastbert.packing import unpad

SHAPE = {
    "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256,
    "max_position_embeddings": 40,
}  # fmt: skip
MODELS = {
    "GPT2LMHeadModel": GPT2Config(**SHAPE),
    "OpenAIGPTLMHeadModel": OpenAIGPTConfig(**SHAPE),
    "BertLMHeadModel": BertConfig(**SHAPE, is_decoder=True),
}


def model_of(name: str, seed: int, config: Any = None) -> Any:
    torch.manual_seed(seed)
    model = getattr(fastbert, name)(config or MODELS[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.25) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def stack_of(model: Any) -> Any:
    encoder = model.base_model
    like = encoder.embeddings.word_embeddings.weight
    with same_in_every_batch():
        return decoder_stack(encoder.encoder.layer, encoder.encoder.LayerNorm, like)


def texts(model: Any, drawn: int, **settings: Any) -> Any:
    ids = torch.randint(5, 97, (5, 9), generator=torch.Generator().manual_seed(drawn))
    mask = torch.ones_like(ids)
    mask[1, 4:], mask[2, 1:], mask[4, 6:] = 0, 0, 0
    return generate(model, unpad(ids, mask)[0], settings=TextSettings(max_new_tokens=20, **settings), end=-1)


@pytest.mark.parametrize("name", MODELS)
def test_texts_are_those_of_composed_layers(name, seed, monkeypatch):
    model = model_of(name, seed)
    for settings in ({}, {"beams": 3}, {"top_p": 0.9, "seed": 4}):
        stepped = texts(model, seed, **settings)
        with monkeypatch.context() as without:
            without.setattr(causal_decoding, "decoder_stack", lambda *_: None)
            composed = texts(model, seed, **settings)
        assert stepped.tokens == composed.tokens, settings
        assert stepped.scores == pytest.approx(composed.scores, abs=1e-5)
    assert len({tuple(text) for text in stepped.tokens}) == 5


@pytest.mark.parametrize("name", MODELS)
def test_plain_layers_have_a_stack_and_others_run_their_own_forward(name, seed):
    assert stack_of(model_of(name, seed)) is not None
    assert stack_of(model_of(name, seed).bfloat16()) is not None
    assert stack_of(model_of(name, seed).quantize("int8")) is not None
    assert stack_of(model_of(name, seed).double()) is None
    with fastbert.use_backend("eager"):
        assert stack_of(model_of(name, seed)) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert stack_of(model_of(name, seed)) is None
    hooked = model_of(name, seed)
    handles = [
        module.register_forward_hook(lambda *_: None)
        for layer in hooked.base_model.encoder.layer[1:]
        for module in layer.modules()
    ]
    assert stack_of(hooked) is None
    for handle in handles[1:]:
        handle.remove()
    assert stack_of(hooked) is None  # a hook of the layer itself
    handles[0].remove()
    assert stack_of(hooked) is not None

    class Adapted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2.0

    adapted = model_of(name, seed)
    adapted.base_model.encoder.layer[0].output.dense.__class__ = Adapted
    assert stack_of(adapted) is None
    before = texts(model_of(name, seed), seed).tokens
    assert texts(adapted, seed).tokens != before


def test_embeddings_and_heads_of_plain_modules_are_computed_directly(seed):
    model = model_of("GPT2LMHeadModel", seed)
    embeddings, like = model.base_model.embeddings, model.base_model.embeddings.word_embeddings.weight
    ids, positions = torch.tensor([5, 96, 0]), torch.tensor([39, 0, 7])
    embed = embeddings_step(embeddings)
    assert embed is not None
    assert torch.equal(
        embed(ids, positions), embeddings.word_embeddings(ids) + embeddings.position_embeddings(positions)
    )
    x = torch.randn(3, 64)
    with same_in_every_batch():
        head = head_step(model.head, like)
        assert head is not None
        assert torch.equal(head(x), model.head(x))
        assert head_step(model_of("BertLMHeadModel", seed).head, like) is None
        handle = model.head.decoder.register_forward_hook(lambda *_: None)
        assert head_step(model.head, like) is None
        handle.remove()
    assert embeddings_step(model_of("BertLMHeadModel", seed).base_model.embeddings) is None
    handle = embeddings.position_embeddings.register_forward_hook(lambda *_: None)
    assert embeddings_step(embeddings) is None
    handle.remove()
    embeddings.position_embeddings.bfloat16()
    assert embeddings_step(embeddings) is None


def test_caches_of_other_shapes_are_refused(seed):
    stack = stack_of(model_of("GPT2LMHeadModel", seed))
    written = WrittenKeys(2, 4, None, 3, torch.empty(0, 2, 32))
    written.advance()
    assert stack.step(torch.randn(3, 64), written).shape == (3, 64)
    for x in (torch.randn(2, 64), torch.randn(3, 63), torch.randn(3, 64).bfloat16()):
        with pytest.raises(UserError, match=r"it must be torch.float32 \(3, 64\)"):
            stack.step(x, written)
    narrow = WrittenKeys(2, 4, None, 3, torch.empty(0, 2, 16))
    narrow.advance()
    with pytest.raises(UserError, match=r"a cache has shape \(3, 4, 2, 16\)"):
        stack.step(torch.randn(3, 64), narrow)
    few = WrittenKeys(1, 4, None, 3, torch.empty(0, 2, 32))
    few.advance()
    with pytest.raises(UserError, match="one cache for each of the 2 layers"):
        stack.step(torch.randn(3, 64), few)
    full = WrittenKeys(2, 1, None, 3, torch.empty(0, 2, 32))
    full.advance()
    full.advance()
    with pytest.raises(UserError, match="slot 1 is outside of the 1 slots"):
        stack.step(torch.randn(3, 64), full)


def test_layers_of_different_kinds_have_no_stack(seed):
    model = model_of("GPT2LMHeadModel", seed)
    layers = model.base_model.encoder.layer
    spec = layers[1].spec
    for changed in (
        replace(spec, feed_forward=replace(spec.feed_forward, activation="gelu")),
        replace(spec, self_attention=replace(spec.self_attention, heads=4, head_dim=16)),
        replace(spec, self_attention=replace(spec.self_attention, scale=0.5)),
    ):
        layers[1].spec = changed
        assert stack_of(model) is None
    layers[1].spec = spec
    assert stack_of(model) is not None
    layers.append(model_of("OpenAIGPTLMHeadModel", seed).base_model.encoder.layer[0])
    assert stack_of(model) is None
