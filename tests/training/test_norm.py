"""--norm pre: runs of pre-LN BERT."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fastbert
from fastbert.errors import UserError
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain

pytestmark = pytest.mark.usefixtures("one_thread", "no_plots")


def test_a_pre_norm_bert_trains_and_is_saved_under_transformers_name(config: PretrainConfig, tmp_path: Path) -> None:
    config = replace(
        config, norm="pre", model="tiny", max_positions=40, steps=40, lr=5e-3, eval_every=40, checkpoint_every=20
    )
    result = pretrain(config)
    assert result.validation.nsp_loss is not None  # BERT's own objective
    assert result.validation.mlm_loss < result.unigram_cross_entropy - 0.05
    saved = json.loads((result.model / "config.json").read_text())
    expected = {"model_type": "roberta-prelayernorm", "max_position_embeddings": 41, "type_vocab_size": 2}
    assert {name: saved[name] for name in expected} == expected
    assert type(fastbert.load(result.model)) is fastbert.RobertaPreLayerNormForPreTraining
    again = replace(config, norm=None, init=str(config.out), model="base", tokenizer=None, max_positions=None)
    continued = pretrain(replace(again, out=tmp_path / "again", steps=2, lr=1e-12, eval_every=2))
    assert abs(continued.validation.mlm_loss - result.validation.mlm_loss) < 1e-3
    assert continued.objective == "mlm+nsp"
    with pytest.raises(UserError, match=r"--norm post: the layers of --init .* are pre-norm"):
        pretrain(replace(again, out=tmp_path / "post", norm="post"))


def test_norms_that_an_architecture_does_not_have_are_refused(config: PretrainConfig) -> None:
    for options, message in (
        ({"architecture": "electra", "model": "tiny"}, "--norm pre: is for bert and roberta, not --arch"),
        ({}, r"--norm pre: .*model\.json has model_type='bert'; change it to 'roberta-prelayernorm'"),
        ({"model": "tiny", "objective": "ltr"}, "--objective ltr: a model of roberta-prelayernorm .* cannot have it"),
        ({"norm": "middle"}, "--norm middle must be post or pre"),
    ):
        with pytest.raises(UserError, match=message):
            pretrain(replace(config, **{"norm": "pre", **options}))
    with pytest.raises(UserError, match="--norm post: --architecture roberta-prelayernorm has its norms in front"):
        replace(config, norm="post", architecture="roberta-prelayernorm", model="tiny")
