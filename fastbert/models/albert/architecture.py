"""ALBERT (Lan et al. 2020) as an architecture record: BERT's layers, which share their parameters, behind narrow
embeddings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from torch import Tensor

from fastbert.checkpoints.weights import Weights
from fastbert.models.activations import activation_of
from fastbert.models.albert.config import AlbertConfig
from fastbert.models.architecture import Architecture, ArchitectureSpec, PredictionHeadLayout, TransformersLayout
from fastbert.models.bert.architecture import bert_spec
from fastbert.models.heads.pretraining import ForMaskedLM, ForPreTraining
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.models.key_map import KeyMap

KEY_MAP = KeyMap(
    (
        (".attention.output.dense.", ".attention.dense."),
        (".attention.output.LayerNorm.", ".attention.LayerNorm."),
        (".attention.self.", ".attention."),
        (".intermediate.dense.", ".ffn."),
        (".output.dense.", ".ffn_output."),
        (".output.LayerNorm.", ".full_layer_layer_norm."),
        ("embeddings_project.", "encoder.embedding_hidden_mapping_in."),
        ("pooler.dense.", "pooler."),
        ("cls.predictions.transform.", "predictions."),
        ("cls.predictions.", "predictions."),
        ("cls.seq_relationship.", "sop_classifier.classifier."),
    )
)
_GROUP = re.compile(r"((?:.*\.)?encoder\.)albert_layer_groups\.(\d+)\.albert_layers\.0\.")
_LAYER = re.compile(r"((?:.*\.)?encoder\.)layer\.(\d+)\.")


def albert_spec(config: Any) -> ArchitectureSpec:
    """Return what an ALBERT config describes."""
    spec = bert_spec(config)
    network = replace(spec.layers[0].feed_forward, activation=activation_of(config.hidden_act))
    layers = (replace(spec.layers[0], feed_forward=network),) * config.num_hidden_groups
    embeddings = replace(spec.embeddings, always_projects=True)
    return replace(spec, embeddings=embeddings, layers=layers, shared=config.shared_layers)


def from_file(weights: Weights) -> Weights:
    """Return a file's weights with groups numbered as layers."""
    tensors = {_GROUP.sub(r"\1layer.\2.", name): tensor for name, tensor in weights.tensors.items()}
    return replace(weights, tensors=tensors)


def to_file(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by their names in files: the inverse of `from_file`."""
    return {_LAYER.sub(r"\1albert_layer_groups.\2.albert_layers.0.", name): tensor for name, tensor in tensors.items()}


ALBERT = Architecture(
    name=AlbertConfig.model_type,
    title="ALBERT (Lan et al. 2020)",
    spec=albert_spec,
    config=AlbertConfig,
    class_prefix="Albert",
    base_model_prefix="albert",
    key_map=KEY_MAP,
    heads=(ForPreTraining, ForMaskedLM, *TASK_HEADS),
    from_file=from_file,
    to_file=to_file,
    layouts=(
        TransformersLayout(
            model="AlbertModel",
            module="transformers.models.albert.modeling_albert",
            output="BaseModelOutputWithPooling",
            layers="encoder.albert_layer_groups",
            groups="albert_layers",
            containers=("attention",),
            attention="attention",
            attention_dropout="attention_dropout",
            attention_asks_training=True,
            attention_output_dropout="attention.output_dropout",
            output_dropout=None,
            activation="activation",
            parts=(
                *((name, f"attention.{name}") for name in ("query", "key", "value")),
                ("attention_output", "attention.dense"),
                ("attention_norm", "attention.LayerNorm"),
                ("intermediate", "ffn"),
                ("output", "ffn_output"),
                ("output_norm", "full_layer_layer_norm"),
            ),
            projection="encoder.embedding_hidden_mapping_in",
            pooler_activation="pooler_activation",
            layer_call="albert",
            prediction_heads=(PredictionHeadLayout(name="AlbertMLMHead", activation="activation", norm="LayerNorm"),),
        ),
    ),
)
