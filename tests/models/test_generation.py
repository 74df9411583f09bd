"""Writing token by token: beside transformers' `generate`, and beside a reference that keeps nothing between tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from writers import BEGIN, BESIDE, END, KINDS, VOCABULARY, ragged, writer

from fastbert.errors import UserError
from fastbert.models.seq2seq.generation import Generated, GenerationSettings
from fastbert.models.seq2seq.model import BertForSequenceToSequence, EncoderDecoder
from fastbert.ops.dispatch import use_backend
from fastbert.packing import unpad

LENGTH = 14


def without_cache(model: BertForSequenceToSequence, source: Tensor, settings: GenerationSettings) -> tuple[Any, float]:
    """One source (tokens,), every hypothesis read from its beginning at each step, in plain lists."""
    beams, penalty = settings.beams, settings.length_penalty
    opened: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, settings.room + 1):
        candidates = []
        for total, tokens in opened:
            target = torch.tensor([[BEGIN, *tokens, END]])
            logs = model(source[None], target, return_logits=True).logits[0, -1].log_softmax(-1)
            candidates += [(total + float(log), [*tokens, token]) for token, log in enumerate(logs)]
        candidates.sort(key=lambda hypothesis: -hypothesis[0])
        if beams == 1:
            total, tokens = candidates[0]
            if tokens[-1] == END or length == settings.room:
                return tokens, total / length**penalty
            opened = candidates[:1]
            continue
        best = candidates[: 2 * beams]
        ended = [hypothesis for hypothesis in best[:beams] if hypothesis[1][-1] == END or length == settings.room]
        finished += [(total / length**penalty, tokens) for total, tokens in ended]
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[0])[:beams]
        opened = [hypothesis for hypothesis in best if hypothesis[1][-1] != END][:beams]
        if len(finished) == beams:
            better = opened[0][0] / length**penalty > finished[-1][0]
            if settings.early_stopping or not better:
                break
    score, tokens = finished[0]
    return tokens, score


def assert_written(written: Generated, expected: list[tuple[list[int], float]]) -> None:
    ends = [tokens[-1] == END for tokens, _ in expected]
    assert written.tokens == [tokens[:-1] if end else tokens for (tokens, _), end in zip(expected, ends)]
    assert written.ended == ends
    assert written.scores == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("beams", [1, 2, 4])
@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_what_is_kept_changes_nothing(name: str, beams: int, seed: int) -> None:
    model, (ids, mask) = writer(name, seed), ragged(seed, rows=4)
    settings = GenerationSettings(beams=beams, max_target_length=9, length_penalty=0.7, early_stopping=seed % 2 == 0)
    expected = [without_cache(model, row[kept.bool()], settings) for row, kept in zip(ids, mask)]
    assert_written(model.generate(ids, mask, settings=settings), expected)


@pytest.mark.parametrize("name", BESIDE)
def test_texts_are_those_of_transformers(name: str, seed: int, tmp_path: Path) -> None:
    model, (ids, mask) = writer(name, seed), ragged(seed, rows=9)
    model.save_pretrained(tmp_path)
    other = transformers.EncoderDecoderModel.from_pretrained(tmp_path).eval()
    lengths = set()
    for beams, penalty, early in ((1, 1.0, True), (2, 1.0, False), (3, 2.0, True), (4, 0.0, False), (4, -1.0, False)):
        expected = other.generate(
            input_ids=ids,
            attention_mask=mask,
            max_length=LENGTH,
            do_sample=False,
            num_beams=beams,
            decoder_start_token_id=BEGIN,
            eos_token_id=END,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **({} if beams == 1 else {"length_penalty": penalty, "early_stopping": early}),
        )
        settings = GenerationSettings(
            beams=beams, max_target_length=LENGTH, length_penalty=penalty, early_stopping=early
        )
        written = model.generate(ids, mask, settings=settings)
        rows = [row[1:] for row in expected.sequences.tolist()]
        assert written.tokens == [row[: row.index(END)] if END in row else row[: LENGTH - 1] for row in rows]
        if beams > 1:
            assert written.scores == pytest.approx(expected.sequences_scores.tolist(), rel=1e-4, abs=1e-4)
        lengths |= set(map(len, written.tokens))
    assert len(lengths) > 1, "the texts of this test should end at different places"


def test_a_saved_model_writes_in_transformers_without_being_told_how(seed: int, tmp_path: Path) -> None:
    model, (ids, mask) = writer("bert2bert", seed), ragged(seed)
    model.save_pretrained(tmp_path)
    other = transformers.EncoderDecoderModel.from_pretrained(tmp_path).eval()
    rows = other.generate(input_ids=ids, attention_mask=mask, max_length=LENGTH).tolist()
    written = model.generate(ids, mask, settings=GenerationSettings(max_target_length=LENGTH))
    assert all(row[0] == BEGIN for row in rows)
    assert written.tokens == [row[1 : row.index(END)] if END in row else row[1:LENGTH] for row in rows]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_a_text_is_the_same_in_every_batch(name: str, beams: int, seed: int) -> None:
    """To the bit of its score, beside sources of very different length, in training mode, from a packed batch."""
    model, (ids, mask) = writer(name, seed, hidden_dropout_prob=0.3), ragged(seed, rows=6, longest=40)
    settings = GenerationSettings(beams=beams, max_target_length=10)
    whole = model.train().generate(ids, mask, settings=settings)
    assert model.training
    assert whole == model.generate(unpad(ids, mask)[0], settings=settings)
    for row in range(len(ids)):
        alone = model.generate(ids[row][mask[row].bool()][None], settings=settings)
        assert alone == Generated([whole.tokens[row]], [whole.scores[row]], [whole.ended[row]])
    strided = torch.stack((ids, mask), dim=-1)
    assert whole == model.generate(strided[..., 0], strided[..., 1], settings=settings)
    left = model.generate(ids.flip(0), mask.flip(0), settings=settings)
    assert left.tokens == whole.tokens[::-1]


@pytest.mark.parametrize("name", KINDS)
def test_it_writes_under_autocast(name: str, seed: int) -> None:
    model, (ids, mask) = writer(name, seed), ragged(seed)
    for beams in (1, 3):
        settings = GenerationSettings(beams=beams, max_target_length=10)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            written = model.generate(ids, mask, settings=settings)
        halved = writer(name, seed).to(torch.bfloat16).generate(ids, mask, settings=settings)
        for generation in (written, halved):
            assert len(generation.tokens) == len(ids)
            assert all(math.isfinite(score) for score in generation.scores)


@pytest.mark.parametrize("name", ["bert2bert", "prefix"])
@torch.no_grad()
def test_layers_that_are_watched_or_changed_run_their_own_forward(name: str, seed: int) -> None:
    """As adapters do: what is written is what the model says when it is asked for every token anew."""
    model, (ids, mask) = writer(name, seed), ragged(seed, rows=3)
    settings = GenerationSettings(beams=2, max_target_length=7)
    plain = model.generate(ids, mask, settings=settings)
    top: Any = (
        model.decoder.bert.encoder.layer[-1] if isinstance(model, EncoderDecoder) else model.bert.encoder.layer[-1]
    )
    changed = top.crossattention.self.query if name == "bert2bert" else top.attention.self.value
    hook = changed.register_forward_hook(lambda module, inputs, result: 3.0 * result + 1.0)
    expected = [without_cache(model, row[kept.bool()], settings) for row, kept in zip(ids, mask)]
    written = model.generate(ids, mask, settings=settings)
    assert_written(written, expected)
    assert written.scores != plain.scores
    hook.remove()
    assert model.generate(ids, mask, settings=settings) == plain


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_backends_write_the_same(name: str, beams: int, seed: int) -> None:
    model, (ids, mask) = writer(name, seed), ragged(seed)
    settings = GenerationSettings(beams=beams, max_target_length=10)
    written = model.generate(ids, mask, settings=settings)
    with use_backend("eager"):
        eager = model.generate(ids, mask, settings=settings)
    assert eager.tokens == written.tokens
    assert eager.scores == pytest.approx(written.scores, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", ["decoder", "prefix"])
def test_integers_write_about_the_same(name: str, seed: int) -> None:
    model, (ids, mask) = writer(name, seed), ragged(seed)
    settings = GenerationSettings(max_target_length=2)  # a token, before one choice leads to others
    exact = torch.tensor(model.generate(ids, mask, settings=settings).scores)
    rounded = torch.tensor(model.quantize("int8").generate(ids, mask, settings=settings).scores)
    assert not torch.equal(rounded, exact)
    assert float((rounded - exact).abs().mean()) < 0.5


@pytest.mark.parametrize("name", ["decoder", "prefix"])
def test_the_shortest_and_the_longest(name: str, seed: int) -> None:
    """One token for the end alone; texts that nothing ends; as many as the position table holds."""
    model, (ids, mask) = writer(name, seed), ragged(seed, rows=3)
    for beams in (1, 2):
        short = model.generate(ids, mask, settings=GenerationSettings(beams=beams, max_target_length=2))
        assert all(len(tokens) == (not ended) for tokens, ended in zip(short.tokens, short.ended))
    model.head.bias.data[END] = -1e4
    most = 64 - ids.shape[1] + 2 if name == "prefix" else 65
    for beams in (1, 2):
        long = model.generate(ids, mask, settings=GenerationSettings(beams=beams, max_target_length=most))
        assert [len(tokens) for tokens in long.tokens] == [most - 1] * 3
        assert not any(long.ended)
        with pytest.raises(UserError, match="more than max_position_embeddings=64"):
            model.generate(ids, mask, settings=GenerationSettings(beams=beams, max_target_length=most + 1))


@pytest.mark.parametrize("name", ["decoder", "prefix"])
def test_what_cannot_be_written(name: str, seed: int) -> None:
    model, (ids, mask) = writer(name, seed), ragged(seed, rows=3)
    for changes, message in (
        ({"beams": 0}, "beams=0 must be an integer of at least 1"),
        ({"beams": 1.5}, "beams=1.5 must be an integer"),
        ({"max_target_length": 1}, "max_target_length=1 must be an integer of at least 2"),
        ({"length_penalty": math.nan}, "length_penalty=nan must be a number from -10 to 10"),
    ):
        with pytest.raises(UserError, match=message):
            GenerationSettings(**changes)
    with pytest.raises(UserError, match="at most half of the vocabulary's 61 tokens"):
        model.generate(ids, mask, settings=GenerationSettings(beams=31, max_target_length=5))
    with pytest.raises(UserError, match="source 1 of the batch has no tokens"):
        model.generate(ids, mask * torch.tensor([[1], [0], [1]]))
    with pytest.raises(UserError, match="input_ids holds 99, outside"):
        model.generate(ids.clone().fill_(99), mask, settings=GenerationSettings(max_target_length=5))
    with pytest.raises(UserError, match="end=61 lies outside"):
        model.generate(ids, mask, end=VOCABULARY)
    unknown = writer(name, seed, end_token_id=None)
    with pytest.raises(UserError, match="end_token_id is unknown"):
        unknown.generate(ids, mask)
    few = GenerationSettings(max_target_length=5)
    assert unknown.generate(ids, mask, end=END, settings=few) == model.generate(ids, mask, settings=few)
    nobody = model.generate(ids[:0], mask[:0])
    assert nobody == Generated([], [], [])
