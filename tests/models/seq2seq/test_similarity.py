"""Similarities by a perceptron beside loops over queries and keys; generation with caches beside none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.models.seq2seq.generation import GenerationSettings
from fastbert.models.seq2seq.transformer.config import TransformerConfig
from fastbert.models.seq2seq.transformer.model import TransformerForSequenceToSequence
from fastbert.models.similarity import PerceptronSimilarity
from fastbert.ops.dropout.masks import attention_mask
from fastbert.ops.encoder_layer.spec import AttentionSpec

BEGIN, END, VOCABULARY = 2, 3, 29
HEADS, WIDTH = 3, 4


def naive(similarity: PerceptronSimilarity, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention of one sequence: v . tanh(q + k), or v . tanh(W [q; k]), pair by pair."""
    out = torch.zeros_like(q)
    for head in range(q.shape[1]):
        for row in range(len(q)):
            seen = len(k) - (len(q) - 1 - row) if causal else len(k)
            scores = []
            for column in range(seen):
                if similarity.mix is None:
                    hidden = torch.tanh(q[row, head] + k[column, head])
                else:
                    hidden = torch.tanh(similarity.mix[head] @ torch.cat((q[row, head], k[column, head])))
                scores.append(similarity.vector[head] @ hidden)
            if scores:
                out[row, head] = torch.stack(scores).softmax(0) @ v[:seen, head]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["additive", "concat"])
def test_a_perceptron_is_the_formula(kind: Any, causal: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and gradients, also in several chunks, without queries, and without keys."""
    generator = torch.Generator().manual_seed(seed)
    module = PerceptronSimilarity(AttentionSpec(HEADS, WIDTH, similarity=kind)).double()
    module.init_weights(generator)
    lengths_q, lengths_k = [3, 0, 1, 5, 2], [4, 2, 1, 5, 3 if causal else 0]
    starts_q, starts_k = (torch.tensor([0, *each]).cumsum(0) for each in (lengths_q, lengths_k))
    q, k, v = (
        torch.randn(int(starts[-1]), HEADS, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
        for starts in (starts_q, starts_k, starts_k)
    )
    expected = torch.cat(
        [
            naive(module, q[a:b], k[c:d], v[c:d], causal)
            for a, b, c, d in zip(starts_q, starts_q[1:], starts_k, starts_k[1:])
        ]
    )
    upstream = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    parameters = [q, k, v, *module.parameters()]
    gradients = torch.autograd.grad(expected, parameters, upstream)
    for elements in (1 << 24, 1):
        monkeypatch.setattr("fastbert.models.similarity.CHUNK_ELEMENTS", elements)
        out = module(q, k, v, starts_q.int(), starts_k.int(), 9, 9, causal=causal)
        torch.testing.assert_close(out, expected)
        for gradient, other in zip(gradients, torch.autograd.grad(out, parameters, upstream), strict=True):
            torch.testing.assert_close(gradient, other)


def test_dropout_is_that_of_attention(seed: int) -> None:
    """Masks follow from keys, site, head, query and key; other sequences and memory without keys change nothing."""
    module = PerceptronSimilarity(AttentionSpec(HEADS, WIDTH, similarity="additive"))
    module.init_weights(torch.Generator().manual_seed(seed))
    q, k = torch.randn(5, HEADS, WIDTH), torch.randn(7, HEADS, WIDTH)
    k[4:] = torch.nan  # the free slots of a cache: keys of a sequence without queries
    keys = torch.tensor([seed + 5, 1])
    bounds_q, bounds_k = torch.tensor([0, 5, 5]).int(), torch.tensor([0, 4, 7]).int()
    values = torch.cat((torch.eye(4)[:, None].expand(4, HEADS, 4), torch.full((3, HEADS, 4), torch.nan)))
    plain = module(q, k, values, bounds_q, bounds_k, 5, 4)
    assert torch.isfinite(plain).all()
    out = module(q, k, values, bounds_q, bounds_k, 5, 4, dropout_p=0.5, dropout_key=keys, dropout_site=9)
    # With the identity as values, the outputs are the probabilities.
    mask = attention_mask((1, HEADS, 5, 4), 0.5, keys[:1], 9, torch.float32)[0]
    torch.testing.assert_close(out, plain * mask.transpose(0, 1))


def writer(similarity: str, seed: int) -> TransformerForSequenceToSequence:
    """A model with random weights that ends some texts by itself."""
    config = TransformerConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, decoder_layers=2, num_attention_heads=2,
        intermediate_size=24, hidden_dropout_prob=0.3, begin_token_id=BEGIN, end_token_id=END, similarity=similarity,  # type: ignore[arg-type]
    )  # fmt: skip
    model = TransformerForSequenceToSequence(config)
    model.init_weights(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.eval()


def without_cache(
    model: TransformerForSequenceToSequence, source: Tensor, settings: GenerationSettings
) -> tuple[list[int], float]:
    """One source, each hypothesis read from its beginning at every step, in plain lists."""
    beams = settings.beams
    opened: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []

    def score(total: float, length: int) -> float:
        base = (5 + length) / 6 if settings.length_form == "wu" else length
        return total / base**settings.length_penalty

    for length in range(1, settings.room + 1):
        targets = torch.tensor([[BEGIN, *tokens, END] for _, tokens in opened])
        logits = model(source.expand(len(opened), -1), targets, return_logits=True).logits[:, -1]
        candidates = [
            (total + float(log), [*tokens, token])
            for (total, tokens), logs in zip(opened, logits.log_softmax(-1), strict=True)
            for token, log in enumerate(logs)
        ]
        best = sorted(candidates, key=lambda hypothesis: -hypothesis[0])[: 2 * beams]
        last = length == settings.room
        finished += [(score(total, length), tokens) for total, tokens in best[:beams] if tokens[-1] == END or last]
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[0])[:beams]
        opened = [hypothesis for hypothesis in best if hypothesis[1][-1] != END][:beams]
        full = len(finished) == beams
        if full and (beams == 1 or score(opened[0][0], length) <= finished[-1][0]):
            break
    return finished[0][1], finished[0][0]


@torch.no_grad()
def test_generation_with_caches_is_that_without(seed: int) -> None:
    """Greedy and by beams, with every similarity and both forms of the length penalty."""
    ends = []
    for similarity in ("dot", "additive", "concat"):
        model = writer(similarity, seed)
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(5, VOCABULARY, (3, 9), generator=generator)
        lengths = torch.tensor([9, 1, 4])
        mask = (torch.arange(9) < lengths[:, None]).long()
        for beams, form, penalty in ((1, "wu", 0.6), (3, "wu", 0.6), (2, "power", 1.0)):
            settings = GenerationSettings(
                beams=beams, max_target_length=7, length_penalty=penalty, length_form=form, early_stopping=False,  # type: ignore[arg-type]
            )  # fmt: skip
            expected = [without_cache(model, row[:length], settings) for row, length in zip(ids, lengths)]
            written = model.generate(ids, mask, settings=settings)
            ended = [tokens[-1] == END for tokens, _ in expected]
            assert written.tokens == [tokens[:-1] if end else tokens for (tokens, _), end in zip(expected, ended)]
            assert written.scores == pytest.approx([score for _, score in expected], abs=1e-4)
            assert written.ended == ended
            ends += ended
            alone = model.generate(ids[2, :4][None], settings=settings)
            assert alone.tokens == [written.tokens[2]]
        trained = model.train().generate(ids, mask, settings=settings)
        assert trained == written
        assert model.training
    assert len(set(ends)) == 2, "some texts should end, others not"


def test_settings_of_generation_are_checked() -> None:
    with pytest.raises(UserError, match="length_form='gnmt' must be 'power' or 'wu'"):
        GenerationSettings(length_form="gnmt")  # type: ignore[arg-type]
