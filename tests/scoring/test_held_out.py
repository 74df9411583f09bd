"""Losses on held-out text against the models' own losses over the same samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from language_models import POSITIONS, sentences, tokenizer

from fastbert import BertConfig, BertForPreTraining
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.errors import UserError
from fastbert.models import registry
from fastbert.scoring.held_out import masked_lm, next_sentence


def test_losses_are_those_of_pre_training(tmp_path: Path) -> None:
    documents = [sentences(seed, 12) for seed in range(6)]
    shards = prepare(documents, tokenizer(), tmp_path / "shards")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer()), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=POSITIONS, initializer_range=0.3,
    )  # fmt: skip
    model = BertForPreTraining(config)
    model.save_pretrained(tmp_path / "model")
    common = {"max_length": POSITIONS, "seed": 3, "validation_fraction": 0.0}
    pairs = PretrainingData(shards, objective="mlm+nsp", **common)  # type: ignore[arg-type]
    whole = pairs.batch(0, np.arange(pairs.samples_per_epoch(0)))
    with torch.no_grad():
        expected = model.eval()(whole)
    masked = masked_lm(registry.load_with_head(tmp_path / "model", "ForMaskedLM"), pairs, batch_tokens=50)
    assert masked.loss == pytest.approx(float(expected.mlm_loss_sum / expected.mlm_count), rel=1e-5)
    assert masked.accuracy == pytest.approx(100 * float(expected.mlm_correct / expected.mlm_count))
    assert (masked.predictions, masked.samples, masked.tokens) == (
        int(expected.mlm_count), len(whole), whole.num_tokens,
    )  # fmt: skip
    assert masked.perplexity == pytest.approx(np.exp(masked.loss))
    done: list[float] = []
    classifier = registry.load_with_head(tmp_path / "model", "ForNextSentencePrediction")
    for nsp in (next_sentence(model, pairs), next_sentence(classifier, pairs, 50, done.append)):
        assert nsp.loss == pytest.approx(float(expected.nsp_loss_sum / expected.nsp_count), rel=1e-5)
        assert nsp.accuracy == pytest.approx(100 * float(expected.nsp_correct / expected.nsp_count))
        assert nsp.predictions == nsp.samples == len(whole)
    assert done == sorted(done)
    assert done[-1] == 1.0

    with pytest.raises(UserError, match="objective='mlm' has no pairs"):
        next_sentence(model, PretrainingData(shards, objective="mlm", **common))  # type: ignore[arg-type]
    long = PretrainingData(shards, max_length=POSITIONS + 1, validation_fraction=0.0)
    with pytest.raises(UserError, match=f"max_length={POSITIONS + 1} exceeds the model's {POSITIONS} positions"):
        masked_lm(model, long)
    unmasked = PretrainingData(
        shards, objective="mlm", max_length=16, mask_prob=0.0, exact_mask_count=False, validation_fraction=0.0
    )
    with pytest.raises(UserError, match="no token is masked"):
        masked_lm(model, unmasked)
