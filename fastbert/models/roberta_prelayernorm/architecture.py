"""Pre-LN BERT as an architecture record: RoBERTa's embeddings, layers that normalise their inputs, and a final norm.

BERT's layers normalise their outputs (post-LN); with the norm in front of attention and of the feed-forward network
(Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture") gradients are even across layers from the
first step on, and warm-up may be short or absent. transformers computes these layers as RoBERTa-PreLayerNorm, so such a
model is saved under that name and loads there unchanged. Its heads include next-sentence prediction, which transformers
does not have for this architecture: it loads the encoder with its pooler, or masked LM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastbert.models.architecture import Architecture, ArchitectureSpec, ClassificationHeadSpec
from fastbert.models.heads.pretraining import ForMaskedLM, ForPreTraining
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.models.roberta.architecture import KEY_MAP, roberta_spec
from fastbert.models.roberta_prelayernorm.config import RobertaPreLayerNormConfig
from fastbert.ops.encoder_layer.spec import NormSpec


def pre_norm_spec(config: Any) -> ArchitectureSpec:
    """Return what a config of pre-LN BERT describes: the layers of RoBERTa with their norms in front."""
    norm = NormSpec(config.layer_norm_eps, place="pre")
    spec = roberta_spec(config)
    layers = tuple(replace(layer, attention_norm=norm, output_norm=norm) for layer in spec.layers)
    return replace(spec, layers=layers, final_norm=NormSpec(config.layer_norm_eps))


PRE_NORM = Architecture(
    name=RobertaPreLayerNormConfig.model_type,
    title="pre-LN BERT (RoBERTa-PreLayerNorm)",
    spec=pre_norm_spec,
    config=RobertaPreLayerNormConfig,
    class_prefix="RobertaPreLayerNorm",
    base_model_prefix="roberta_prelayernorm",
    key_map=KEY_MAP.then(("encoder.LayerNorm.", "LayerNorm.")),
    heads=(ForPreTraining, ForMaskedLM, *TASK_HEADS),
    classification_head=ClassificationHeadSpec("tanh", drops_input=True),
    layouts=(),
)
