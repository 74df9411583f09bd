"""Structured initial weights: what they compute before the first step, and which runs get them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastbert.config import PRESETS, BertConfig
from fastbert.errors import UserError
from fastbert.models import BertForPreTraining
from fastbert.models.electra.config import ElectraConfig
from fastbert.models.electra.pretraining import GeneratorAndDiscriminator
from fastbert.training.config import PretrainConfig
from fastbert.training.initialisation import OFFSETS, initialise_structured
from fastbert.training.metrics import read_metrics
from fastbert.training.pretrain import pretrain

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("width", "heads"),
    [*((PRESETS[name][1], PRESETS[name][2]) for name in ("tiny", "mini", "base")), (384, 12), (60, 4), (15, 5), (4, 4)],
)
def test_heads_of_the_first_layer_attend_to_neighbours(width: int, heads: int) -> None:
    config = BertConfig(
        vocab_size=500, hidden_size=width, num_attention_heads=heads, num_hidden_layers=1, intermediate_size=32
    )
    model = BertForPreTraining(config)
    model.init_weights(seed=1)
    others = {name: weight.clone() for name, weight in model.state_dict().items()}
    initialise_structured(model, np.ones(500, np.int64), seed=1)

    size, length = width // heads, 128
    bert: Any = model.bert
    embeddings, attention = bert.embeddings, bert.encoder.layer[0].attention.self
    ids = torch.randint(0, 500, (length,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        rows = embeddings.word_embeddings(ids) + embeddings.position_embeddings.weight[:length]
        x = embeddings.LayerNorm(rows + embeddings.token_type_embeddings.weight[0])
        query, key = (
            module(x).view(length, heads, size).transpose(0, 1) for module in (attention.query, attention.key)
        )
        weights = (query @ key.transpose(1, 2) / math.sqrt(size)).softmax(-1)
    inside = range(2, length - 2)
    if size >= 32:  # smaller heads have too few frequencies for a sharp peak
        for head, offset in enumerate(OFFSETS[:heads]):
            peaks = torch.stack([weights[head, i, i + offset] for i in inside])
            assert peaks.mean() > 0.2, f"head {head}: {peaks.mean():.3f}"  # of 128 keys
    for name, weight in model.state_dict().items():
        if not any(part in name for part in ("position_embeddings", "query.weight", "key.weight", "predictions")):
            assert torch.equal(weight, others[name]), name


@pytest.mark.parametrize(("width", "narrow", "fraction"), [(256, 128, 0.25), (128, 128, 0.5), (256, 128, 0.1)])
def test_electras_models_attend_to_neighbours_through_their_projections(
    width: int, narrow: int, fraction: float
) -> None:
    config = ElectraConfig(
        vocab_size=500, hidden_size=width, num_attention_heads=width // 64, embedding_size=narrow, num_hidden_layers=1,
        intermediate_size=32,
    )  # fmt: skip
    joint = GeneratorAndDiscriminator(config, fraction)
    joint.init_weights(seed=1)
    counts = np.arange(500)
    initialise_structured(joint, counts, seed=1)
    bias = joint.generator.get_parameter("cls.predictions.bias").detach().double()
    np.testing.assert_allclose((bias - bias[0]).exp().numpy(), counts + 1, rtol=1e-4)
    ids = torch.randint(0, 500, (96,), generator=torch.Generator().manual_seed(2))
    for part in (joint.discriminator, joint.generator):
        encoder, heads, size = part.base_model, part.config.num_attention_heads, part.config.head_dim
        tables, attention = encoder.embeddings, encoder.encoder.layer[0].attention.self
        with torch.no_grad():
            rows = tables.word_embeddings(ids) + tables.position_embeddings.weight[:96]
            x = tables.LayerNorm(rows + tables.token_type_embeddings.weight[0])
            x = x if encoder.embeddings_project is None else encoder.embeddings_project(x)
            query, key = (
                module(x).view(96, heads, size).transpose(0, 1) for module in (attention.query, attention.key)
            )
            weights = (query @ key.transpose(1, 2) / math.sqrt(size)).softmax(-1)
        for head, offset in enumerate(OFFSETS[:heads]):
            peaks = torch.stack([weights[head, i, i + offset] for i in range(2, 94)])
            assert peaks.mean() > 0.2, f"{type(part).__name__}, head {head}: {peaks.mean():.3f}"  # of 96 keys


def test_the_first_loss_is_that_of_word_frequencies(config: PretrainConfig) -> None:
    structured = pretrain(replace(config, init="structured", steps=1, log_every=1))
    normal = pretrain(replace(config, init="normal", steps=1, log_every=1, out=config.out.with_name("normal")))
    first, published = (read_metrics(result.folder / "metrics.jsonl")[0].mlm_loss for result in (structured, normal))
    assert structured.unigram_cross_entropy == normal.unigram_cross_entropy
    assert abs(first - structured.unigram_cross_entropy) < abs(published - structured.unigram_cross_entropy)
    assert abs(first - structured.unigram_cross_entropy) < 0.2


def test_short_runs_store_what_they_start_from(config: PretrainConfig) -> None:
    folder = pretrain(replace(config, steps=1)).folder
    assert json.loads((folder / "config.json").read_text())["run"]["init"] == "structured"


def test_a_student_keeps_its_teachers_weights() -> None:
    with pytest.raises(UserError, match="--init and --student-layers exclude each other"):
        PretrainConfig(corpus=(Path("a.txt"),), teacher="t", student_layers=2, init="normal")


def test_a_short_run_from_structured_weights_learns_what_follows(config: PretrainConfig, tmp_path: Path) -> None:
    model = json.loads(Path(config.model).read_text()) | {"hidden_size": 128}
    (tmp_path / "wide.json").write_text(json.dumps(model))
    config = replace(config, model=str(tmp_path / "wide.json"), steps=120, eval_samples=64, eval_every=120, dropout=0.0)
    losses = {
        init: pretrain(replace(config, init=init, out=tmp_path / init)).validation.mlm_loss
        for init in ("structured", "normal")
    }
    assert losses["structured"] < losses["normal"] - 0.5, losses
