"""RoBERTa (Liu et al. 2019) as an architecture record, with XLM-RoBERTa and CamemBERT: BERT's layers, positions that
begin behind the padding's."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastbert.models.architecture import Architecture, ArchitectureSpec, PredictionHeadLayout, TransformersLayout
from fastbert.models.bert.architecture import bert_spec


def roberta_spec(config: Any) -> ArchitectureSpec:
    """Return what a RoBERTa config of transformers describes."""
    return bert_spec(config, position_offset=config.pad_token_id + 1)


_layout = partial(TransformersLayout, positions="after_padding")

ROBERTA = Architecture(
    name="roberta",
    spec=roberta_spec,
    layouts=(
        _layout(
            model="RobertaModel",
            module="transformers.models.roberta.modeling_roberta",
            prediction_head=PredictionHeadLayout(name="RobertaLMHead"),
        ),
        _layout(
            model="XLMRobertaModel",
            module="transformers.models.xlm_roberta.modeling_xlm_roberta",
            prediction_head=PredictionHeadLayout(name="XLMRobertaLMHead"),
        ),
        _layout(
            model="CamembertModel",
            module="transformers.models.camembert.modeling_camembert",
            prediction_head=PredictionHeadLayout(name="CamembertLMHead"),
        ),
    ),
)
