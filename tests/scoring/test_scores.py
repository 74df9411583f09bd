"""Scores of texts against a loop over transformers' models: masked and left to right, every copy and context once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from language_models import POSITIONS, WORDS, saved, sentences, tokenizer

pytest.importorskip("transformers")

import fastbert
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.scoring import score
from fastbert.scoring.log_likelihood import distinct_contexts
from fastbert.scoring.masked_copies import masked_copies
from fastbert.scoring.scorer import load_scorer, score_with
from fastbert.scoring.text_scores import TextTotals, score_texts
from fastbert.scoring.tokenized_texts import tokenize
from fastbert.tasks.row_template import RowTemplate

TEXTS = sentences(seed=1, count=16)


@torch.no_grad()
def masked_loop(model: Any, texts: list[str], within_word: bool) -> list[float]:
    """Salazar et al. 2020 one sentence at a time, fp64; of Kauf and Ivanova 2023 also the later tokens of a word."""
    words, model = tokenizer(), model.double()
    totals = []
    for text in texts:
        row = words(text)
        ids, positions = torch.tensor(row["input_ids"]), torch.arange(1, len(row["input_ids"]) - 1)
        copies = ids.repeat(len(positions), 1)
        for copy, position in zip(copies, positions.tolist(), strict=True):
            word = row.word_ids()[position]
            hidden = [at for at, other in enumerate(row.word_ids()) if other == word and at >= position]
            copy[hidden if within_word else [position]] = words.mask_token_id
        if not len(copies):
            totals.append(0.0)
            continue
        logits = model(input_ids=copies).logits[positions - 1, positions].log_softmax(-1)
        totals.append(float(logits.gather(1, ids[positions, None]).sum()))
    return totals


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "RobertaForMaskedLM", "DistilBertForMaskedLM"])
def test_pseudo_log_likelihoods_are_those_of_a_loop_over_sentences(tmp_path: Path, kind: str) -> None:
    reference = saved(tmp_path, kind)
    model = registry.load_with_head(tmp_path, "ForMaskedLM")
    for mode in ("original", "within-word"):
        expected = masked_loop(reference, TEXTS, mode == "within-word")
        scores = score(model, tokenizer(), TEXTS, mode=mode)  # type: ignore[arg-type]
        np.testing.assert_allclose(scores.totals, expected, atol=1e-4, rtol=0)
        assert scores.perplexity == pytest.approx(np.exp(-sum(expected) / scores.counts.sum()), rel=1e-4)
        # Neither the batch nor the other texts change a bit.
        for texts, tokens in ((TEXTS, 40), (TEXTS[::-1], 4096), (TEXTS[:1], 4096)):
            same = score(model, tokenizer(), texts, mode=mode, batch_tokens=tokens).totals  # type: ignore[arg-type]
            assert set(same.tolist()) <= set(scores.totals.tolist())


@pytest.mark.parametrize(("kind", "config"), [("BertLMHeadModel", {"is_decoder": True}), ("GPT2LMHeadModel", {})])
def test_log_likelihoods_are_those_of_a_loop_over_sentences(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    reference = saved(tmp_path, kind, **config).double()
    scorer = load_scorer(tmp_path)
    scores = score_with(scorer, TEXTS)
    with torch.no_grad():
        for text, total in zip(TEXTS, scores.totals, strict=True):
            ids = torch.tensor([tokenizer()(text)["input_ids"][:-1]])
            logits = reference(input_ids=ids).logits[0, :-1].log_softmax(-1)
            assert total == pytest.approx(float(logits.gather(1, ids[0, 1:, None]).sum()), abs=1e-4)
    few = load_scorer(tmp_path, batch_tokens=16)
    assert np.array_equal(score_with(few, TEXTS).tokens, scores.tokens)
    longest = "a " * POSITIONS  # the last token is no input
    assert len(score_with(scorer, [longest]).tokens) == POSITIONS
    with pytest.raises(UserError, match="left-to-right model masks nothing"):
        load_scorer(tmp_path, mode="within-word")


def test_equal_copies_are_computed_once() -> None:
    pair = tokenize(tokenizer(), ["the cat runs .", "the dog runs .", "the cat runs ."])
    copies = masked_copies(pair, RowTemplate.of(tokenizer()))
    # Of twelve: the third text repeats the first; the copies that mask the noun are equal.
    assert len(copies) == 7
    assert copies.of_token[1] == copies.of_token[5]
    words = masked_copies(tokenize(tokenizer(), ["the cats", "the cata"]), RowTemplate.of(tokenizer()), "within-word")
    # With both pieces masked the copies of "cats" and "cata" are equal, that which predicts the second piece too.
    assert (len(words), words.ends.tolist()) == (4, [1, 3, 3, 1])
    owners, of_token = distinct_contexts(pair)
    assert (owners.tolist(), of_token.tolist()) == ([0, 1, 2, 3, 6, 7], [0, 1, 2, 3, 0, 1, 4, 5, 0, 1, 2, 3])


def test_texts_that_cannot_be_scored(tmp_path: Path) -> None:
    saved(tmp_path / "masked", "BertForMaskedLM")
    saved(tmp_path / "plain", "BertModel")
    model = registry.load_with_head(tmp_path / "masked", "ForMaskedLM")
    model.train()
    assert len(score(model, tokenizer(), [])) == 0
    assert score(model, tokenizer(), ["", "a"]).counts.tolist() == [0, 1]
    assert model.training
    for texts, problem in (
        (["a", "a " * (POSITIONS - 1)], rf"texts\[1\] has {POSITIONS - 1} tokens, .* reads {POSITIONS - 2} .*split"),
        (["a", 3], r"texts\[1\] must be a string, not int"),
        (["\ud800"], "not valid Unicode"),
    ):
        with pytest.raises(UserError, match=problem):
            score(model, tokenizer(), texts)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="BertModel predicts no tokens"):
        score(fastbert.load(tmp_path / "plain"), tokenizer(), ["a"])
    with pytest.raises(UserError, match=r"holds no masked-LM head \(ForMaskedLM\): it lacks cls.predictions.*random"):
        load_scorer(tmp_path / "plain")
    with torch.no_grad():
        model.cls.predictions.bias[7] = float("nan")
    with pytest.raises(UserError, match=r"cls.predictions.bias: this weight of the model holds NaN"):
        score(model, tokenizer(), ["a"])


def test_a_file_of_texts_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, "BertForMaskedLM")
    scorer, totals = load_scorer(tmp_path), TextTotals()
    expected = score_with(scorer, TEXTS)
    monkeypatch.setattr("fastbert.scoring.text_scores.CHUNK_TEXTS", 7)
    scores = list(score_texts(scorer, iter(TEXTS), totals))
    assert [each.index for each in scores] == np.flatnonzero(expected.counts).tolist()
    assert [each.log_probability for each in scores] == expected.totals[expected.counts > 0].tolist()
    assert (totals.texts + totals.empty, totals.empty) == (len(TEXTS), int((expected.counts == 0).sum()))
    assert totals.perplexity == pytest.approx(expected.perplexity)
    characters = sum(len(text) for text, count in zip(TEXTS, expected.counts) if count)
    assert totals.bits_per_character == pytest.approx(-expected.tokens.sum() / np.log(2) / characters)
    with pytest.raises(UserError, match="no text has a token"):
        list(score_texts(scorer, ["", " "], TextTotals()))
    with pytest.raises(UserError, match=r"text 8 has 40 tokens"):
        list(score_texts(scorer, [*WORDS[:8], "a " * 40], TextTotals()))
