"""The shape of a model: the published sizes to the parameter, and refusals that name value and cure."""

import json
from dataclasses import fields

import pytest

from fastbert.config import BertConfig
from fastbert.errors import UserError


@pytest.mark.parametrize(
    ("size", "encoder", "with_heads"),
    [("base", 109_482_240, 110_106_428), ("large", 335_141_888, 336_226_108)],
)
def test_parameter_counts_are_the_published_ones(size: str, encoder: int, with_heads: int) -> None:
    import torch

    from fastbert.models import BertForPreTraining, BertModel

    config = BertConfig.preset(size)
    assert config.num_parameters() == encoder
    assert config.num_parameters(heads=True) == with_heads
    with torch.device("meta"):
        model, pretraining = BertModel(config), BertForPreTraining(config)
    pretraining.tie_weights()
    assert model.num_parameters() == encoder
    assert pretraining.num_parameters() == with_heads


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 100}, "hidden_size=100 must be a multiple of num_attention_heads=12"),
        ({"vocab_size": 0}, "vocab_size=0 must be a positive integer"),
        ({"hidden_act": "swish"}, "hidden_act='swish' is not one of"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob=1.0 must be a number from 0"),
        ({"pad_token_id": 40000}, "pad_token_id=40000 lies outside the vocabulary of 30522"),
    ],
)
def test_impossible_values_are_refused_by_name(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        BertConfig(**values)


def test_unknown_preset_names_the_choices() -> None:
    with pytest.raises(UserError, match=r"unknown model size 'huge': choose one of tiny, mini"):
        BertConfig.preset("huge")


def test_round_trip_through_transformers(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    config = BertConfig.preset("mini", vocab_size=1000, num_labels=5, hidden_act="gelu_new")
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict("BertModel")))
    reference = transformers.BertConfig.from_pretrained(tmp_path)
    assert reference.hidden_size == 256
    assert reference.num_labels == 5
    reference.save_pretrained(tmp_path)
    assert BertConfig.from_pretrained(tmp_path) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON file"),
        ("[]", "must hold a JSON object"),
        ('{"model_type": "gpt2"}', "model_type='gpt2' is not supported"),
        ('{"position_embedding_type": "relative_key"}', "position_embedding_type='relative_key' is not supported"),
        ('{"hidden_act": []}', r"hidden_act=\[\] is not one of"),
        ('{"pad_token_id": "x"}', "pad_token_id='x' lies outside"),
        ('{"hidden_size": "wide"}', "hidden_size='wide' must be a positive integer"),
    ],
)
def test_bad_config_files_are_named(tmp_path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        BertConfig.from_pretrained(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_sizes_that_no_index_reaches_are_refused_by_name() -> None:
    from fastbert.models.registry import ARCHITECTURES, SEQUENCE_MODELS

    configs = [record.config for record in ARCHITECTURES.values() if record.config is not None]
    configs += [model.config_type for model in SEQUENCE_MODELS.values()]
    assert len(configs) > 10
    for kind in configs:
        sizes = [
            field.name
            for field in fields(kind)
            if "int" in str(field.type).split(" | ") and not field.name.endswith("token_id")
        ]
        sizes = [name for name in sizes if name not in kind.constants]
        assert {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"} <= set(sizes)
        for name in sizes:
            key = "head_dim" if name == "attention_head_dim" else name
            with pytest.raises(UserError, match=rf"^{key}=2147483648 .*(below 2\*\*31|maximum|must divide)"):
                kind(**{name: 2**31})
    assert BertConfig(intermediate_size=2**31 - 1).intermediate_size == 2**31 - 1
