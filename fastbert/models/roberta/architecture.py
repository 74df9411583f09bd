"""RoBERTa (Liu et al. 2019) as an architecture record, with XLM-RoBERTa and CamemBERT: BERT's layers, positions that
begin behind the padding's."""

from __future__ import annotations

from typing import Any

from fastbert.models.architecture import (
    Architecture,
    ArchitectureSpec,
    ClassificationHeadSpec,
    PredictionHeadLayout,
    TransformersLayout,
)
from fastbert.models.bert.architecture import bert_spec
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.models.key_map import KeyMap
from fastbert.models.roberta.config import CamembertConfig, RobertaConfig, XLMRobertaConfig

KEY_MAP = KeyMap(
    (
        ("cls.predictions.transform.dense.", "lm_head.dense."),
        ("cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."),
        ("cls.predictions.", "lm_head."),
    )
)


def roberta_spec(config: Any) -> ArchitectureSpec:
    """Return what a RoBERTa config, with transformers' field names, describes."""
    return bert_spec(config, position_offset=config.pad_token_id + 1)


def _record(title: str, config: type[RobertaConfig], class_prefix: str, module: str) -> Architecture:
    """Return the record of a model of RoBERTa's architecture, which transformers defines in `module`."""
    return Architecture(
        name=config.model_type,
        title=title,
        spec=roberta_spec,
        config=config,
        class_prefix=class_prefix,
        base_model_prefix="roberta",
        key_map=KEY_MAP,
        heads=(ForMaskedLM, *TASK_HEADS),
        classification_head=ClassificationHeadSpec("tanh", drops_input=True),
        layouts=(
            TransformersLayout(
                model=f"{class_prefix}Model",
                module=f"transformers.models.{module}.modeling_{module}",
                positions="after_padding",
                prediction_heads=(PredictionHeadLayout(name=f"{class_prefix}LMHead"),),
            ),
        ),
    )


ROBERTA = _record("RoBERTa (Liu et al. 2019)", RobertaConfig, "Roberta", "roberta")
XLM_ROBERTA = _record("XLM-RoBERTa (Conneau et al. 2020)", XLMRobertaConfig, "XLMRoberta", "xlm_roberta")
CAMEMBERT = _record("CamemBERT (Martin et al. 2020)", CamembertConfig, "Camembert", "camembert")
