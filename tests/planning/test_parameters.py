"""Parameters counted from a config are those of the model, for every architecture, size and objective."""

from __future__ import annotations

from typing import Any

import torch
from encoder_families import CASES

from fastbert.config import PRESETS
from fastbert.models import registry
from fastbert.models.encoder import EncoderModel
from fastbert.planning import parameters
from fastbert.planning.shape import BY_FIELDS, model_shape
from fastbert.training.config import Objective
from fastbert.training.objectives import OBJECTIVES, PretrainConfig, _head, model_config, pretraining_model


def test_counts_are_those_of_the_models() -> None:
    compared = 0
    for name, record in registry.ARCHITECTURES.items():
        if record.config is None:
            continue
        objectives: list[Objective] = [key for key, value in OBJECTIVES.items() if _head(record, value)]
        if name in ("gpt2", "openai-gpt"):
            objectives = ["ltr"]
        for size in PRESETS:
            if name not in BY_FIELDS and name != "elmo":  # the config's own count is that of the encoder
                with torch.device("meta"):
                    encoder = record.model_class(EncoderModel)(record.config.preset(size))
                expected = sum(parameter.numel() for parameter in encoder.parameters())
                assert encoder.config.num_parameters() == expected, (name, size)
            for objective in objectives:
                config = model_config(
                    PretrainConfig(model=size, architecture=name, objective=objective, max_length=128), None
                )
                generator = 0.5 if objective == "rtd" and size == "mini" else None
                with torch.device("meta"):
                    model: Any = pretraining_model(config, objective, generator)
                parts = parameters.parameters(model_shape(config, objective, generator))
                expected = sum(parameter.numel() for parameter in model.parameters())
                assert parameters.total(parts) == expected, (name, size, objective)
                compared += 1
    assert compared >= 17 * len(PRESETS)


def test_counts_of_variants_are_those_of_the_models() -> None:
    """Biases, grouped heads, other norms, heads and tables, which the sizes do not show."""
    for name, (prefix, values) in CASES.items():
        record = next(each for each in registry.ARCHITECTURES.values() if each.class_prefix == prefix)
        assert record.config is not None
        variants: list[dict[str, Any]] = [{}]
        if prefix == "DebertaV2":
            variants.append({"legacy": False, "z_steps": 2})
        if prefix == "EuroBert":
            variants.append({"tie_word_embeddings": True})
        for changes in variants:
            config = record.config.from_dict({**values, **changes})
            with torch.device("meta"):
                model: Any = pretraining_model(config, "mlm")
            parts = parameters.parameters(model_shape(config, "mlm"))
            expected = sum(parameter.numel() for parameter in model.parameters())
            assert parameters.total(parts) == expected, (name, changes)


def test_parts_are_named_once() -> None:
    config = registry.ARCHITECTURES["electra"].config
    assert config is not None
    parts = parameters.parameters(model_shape(config.preset("small"), "rtd"))
    names = [part.name for part in parts]
    assert len(set(names)) == len(names)
    assert {"token embedding", "generator attention", "attention", "detection head"} <= set(names)
