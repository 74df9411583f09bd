"""Generation by left-to-right models: with a cache as without, as in transformers, in any batch; sampling; errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import fastbert
from fastbert import BertConfig, PackedBatch
from fastbert.errors import UserError
from fastbert.models.causal_generation import TextSettings, draw_tokens, generate, uniform_draws
from fastbert.models.gpt2.config import GPT2Config
from fastbert.models.openai_gpt.config import OpenAIGPTConfig
from fastbert.packing import unpad

SHAPE = {
    "vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 256,
    "max_position_embeddings": 40,
}  # fmt: skip
MODELS = {
    "GPT2LMHeadModel": GPT2Config(**SHAPE, eos_token_id=3),
    "OpenAIGPTLMHeadModel": OpenAIGPTConfig(**SHAPE, eos_token_id=3),
    "BertLMHeadModel": BertConfig(**SHAPE, is_decoder=True, extra={"eos_token_id": 3}),
}
every_model = pytest.mark.parametrize("name", MODELS)


def model_of(name: str, seed: int) -> Any:
    """A model whose next token depends on the text, not on the token before alone."""
    torch.manual_seed(seed)
    model = getattr(fastbert, name)(MODELS[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25)
    return model


def prompts(seed: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(5, 97, (5, 9), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[1, 4:], mask[2, 1:], mask[4, 6:] = 0, 0, 0
    return ids, mask


def packed(seed: int) -> PackedBatch:
    return unpad(*prompts(seed))[0]


def without_cache(model: Any, prompt: list[int], length: int, end: int) -> list[int]:
    """Greedy text by computing the whole text again for every token."""
    text: list[int] = []
    for _ in range(length):
        with torch.no_grad():
            token = int(model(input_ids=torch.tensor([prompt + text])).logits[0, -1].argmax())
        if token == end:
            break
        text.append(token)
    return text


@every_model
@pytest.mark.parametrize("backend", ["eager", None])
def test_greedy_text_is_that_without_a_cache(seed, name, backend):
    model, batch = model_of(name, seed), packed(seed)
    ids, mask = prompts(seed)
    with fastbert.use_backend(backend) if backend else torch.no_grad():
        result = generate(model, batch, settings=TextSettings(max_new_tokens=30))
        expected = [without_cache(model, ids[i][mask[i].bool()].tolist(), 30, 3) for i in range(5)]
    assert result.tokens == expected
    assert len({tuple(text) for text in expected}) > 3
    assert result.ended == [len(text) < 30 for text in expected]
    again = generate(model, ids, mask, settings=TextSettings(max_new_tokens=30))
    assert again.tokens == expected


@every_model
def test_a_prompts_text_does_not_depend_on_its_batch(seed, name):
    model, batch = model_of(name, seed), packed(seed)
    for settings in (TextSettings(max_new_tokens=12), TextSettings(max_new_tokens=12, top_p=0.9, seed=7),
                     TextSettings(max_new_tokens=12, beams=3)):  # fmt: skip
        together = generate(model, batch, settings=settings)
        for row in range(5):
            alone = generate(model, batch[row : row + 1], settings=settings, numbers=[row])
            assert alone.tokens[0] == together.tokens[row]
            assert alone.scores[0] == pytest.approx(together.scores[row], abs=1e-4)


@pytest.mark.parametrize("early_stopping", [True, False])
def test_beams_are_those_of_transformers(tmp_path, seed, early_stopping):
    transformers = pytest.importorskip("transformers")
    model, (ids, mask) = model_of("GPT2LMHeadModel", seed), prompts(seed)
    model.save_pretrained(tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    settings = TextSettings(max_new_tokens=12, beams=4, early_stopping=early_stopping, length_penalty=0.7)
    ours = generate(model, ids, mask, settings=settings)
    for row in range(5):
        prompt = ids[row : row + 1, : int(mask[row].sum())]
        text = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, num_beams=4, do_sample=False,
            early_stopping=early_stopping, length_penalty=0.7, eos_token_id=3, pad_token_id=0,
        )[0, prompt.shape[1] :].tolist()  # fmt: skip
        assert ours.tokens[row] == (text[: text.index(3)] if 3 in text else text)


def test_quantised_models_and_bf16_generate(seed):
    model, batch = model_of("GPT2LMHeadModel", seed), packed(seed)
    expected = generate(model, batch, settings=TextSettings(max_new_tokens=6))
    model.quantize("int8")
    assert [len(text) for text in generate(model, batch, settings=TextSettings(max_new_tokens=6), end=-1).tokens] == [
        6
    ] * 5
    model.quantize(None)
    assert generate(model, batch, settings=TextSettings(max_new_tokens=6)).tokens == expected.tokens
    halved = generate(model.bfloat16(), batch, settings=TextSettings(max_new_tokens=6), end=-1)
    assert [len(text) for text in halved.tokens] == [6] * 5


def test_hooks_and_training_mode_are_respected(seed):
    model, batch = model_of("GPT2LMHeadModel", seed), packed(seed)
    expected = generate(model, batch, settings=TextSettings(max_new_tokens=6))
    calls = []
    hook = model.transformer.encoder.layer[1].output.dense.register_forward_hook(lambda *args: calls.append(args))
    model.train()
    assert generate(model, batch, settings=TextSettings(max_new_tokens=6)).tokens == expected.tokens
    assert calls
    assert model.training
    hook.remove()


def test_tokens_are_drawn_from_the_filtered_distribution(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 40, generator=generator) * 2
    draws = torch.rand(4000, generator=generator, dtype=torch.float64)
    rows = logits.expand(4000, -1)
    order = logits[0].argsort(descending=True)
    for changes, kept in (
        ({}, 40), ({"temperature": 0.5}, 40), ({"top_k": 3}, 3), ({"top_k": 100}, 40), ({"top_p": 1e-6}, 1),
    ):  # fmt: skip
        settings = TextSettings(**changes)
        expected = torch.zeros(40)
        scaled = logits[0] / (changes.get("temperature") or 1.0)
        expected[order[:kept]] = scaled[order[:kept]].softmax(0)
        counts = draw_tokens(rows, draws, settings).bincount(minlength=40) / 4000
        assert (counts - expected).abs().max() < 0.03, changes
    probabilities = logits[0].softmax(0)[order]
    kept = int((probabilities.cumsum(0) - probabilities < 0.8).sum())
    drawn = set(draw_tokens(rows, draws, TextSettings(top_p=0.8)).tolist())
    assert drawn == set(order[:kept].tolist())
    # More tokens than are sorted at once are needed for this share.
    flat = torch.zeros(1, 5000).expand(4000, -1)
    assert draw_tokens(flat, draws, TextSettings(top_p=0.999)).unique().numel() > 2500
    edge = draw_tokens(rows[:2], torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64), TextSettings(top_k=3))
    assert set(edge.tolist()) <= set(order[:3].tolist())


def test_draws_depend_on_seed_number_and_position_alone():
    draws = uniform_draws(5, [2, 9], 8)
    assert torch.equal(draws[1], uniform_draws(5, [9], 8)[0])
    assert torch.equal(draws[:, :3], uniform_draws(5, [2, 9], 3))
    assert not torch.equal(draws, uniform_draws(6, [2, 9], 8))


def test_scores_are_log_probabilities_per_token(seed):
    model, batch = model_of("GPT2LMHeadModel", seed), packed(seed)
    result = generate(model, batch, settings=TextSettings(max_new_tokens=7), end=-1)
    ids, mask = prompts(seed)
    for row, text in enumerate(result.tokens):
        prompt = ids[row][mask[row].bool()].tolist()
        with torch.no_grad():
            logs = model(input_ids=torch.tensor([prompt + text])).logits[0].log_softmax(-1)
        total = sum(float(logs[len(prompt) - 1 + i, token]) for i, token in enumerate(text))
        assert result.scores[row] == pytest.approx(total / 7, abs=1e-4)


def test_what_cannot_be_generated_is_refused(seed):
    model, batch = model_of("GPT2LMHeadModel", seed), packed(seed)
    with pytest.raises(UserError, match=r"prompt 0 has 9 tokens: max_new_tokens=33 makes.* generate at most 32 tokens"):
        generate(model, batch, settings=TextSettings(max_new_tokens=33))
    generate(model, batch, settings=TextSettings(max_new_tokens=32))
    with pytest.raises(UserError, match="prompt 1 has no tokens"):
        generate(model, torch.tensor([[5, 6], [5, 6]]), torch.tensor([[1, 1], [0, 0]]))
    with pytest.raises(UserError, match="input_ids holds 97, outside the model's table"):
        generate(model, torch.tensor([[97]]))
    with pytest.raises(UserError, match="is_decoder=False lets attention see it"):
        generate(fastbert.BertLMHeadModel(BertConfig(**SHAPE)), batch)
    assert generate(model, torch.zeros(0, 4, dtype=torch.int64)).tokens == []
    for changes, message in (
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be a positive integer"),
        ({"temperature": 0.0}, "temperature=0.0 must be above 0 and finite"),
        ({"temperature": math.nan}, "temperature=nan must be above 0"),
        ({"top_p": 1.5}, "top_p=1.5 must be above 0 and at most 1"),
        ({"top_k": 2, "beams": 2}, "beams=2 finds the most probable text"),
        ({"seed": -1}, "seed=-1 must be from 0"),
        ({"length_penalty": math.inf}, "length_penalty=inf must be a number from -10 to 10"),
    ):
        with pytest.raises(UserError, match=message):
            TextSettings(**changes)
