"""ELECTRA (Clark et al. 2020) as an architecture record: BERT's layers behind embeddings that may be narrower, without
a pooler."""

from __future__ import annotations

from functools import partial

from fastbert.models.architecture import Architecture, ClassificationHeadSpec, TransformersLayout
from fastbert.models.bert.architecture import bert_spec
from fastbert.models.electra.config import ElectraConfig
from fastbert.models.electra.heads import ElectraForMultipleChoice, ForReplacedTokenDetection
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.sequence import ForMultipleChoice
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.models.key_map import KeyMap

KEY_MAP = KeyMap(
    (
        ("cls.predictions.transform.", "generator_predictions."),
        ("cls.predictions.decoder.weight", "generator_lm_head.weight"),
        ("cls.predictions.bias", "generator_lm_head.bias"),
    )
)

ELECTRA = Architecture(
    name="electra",
    title="ELECTRA (Clark et al. 2020)",
    spec=partial(bert_spec, pooler=False),
    config=ElectraConfig,
    class_prefix="Electra",
    base_model_prefix="electra",
    key_map=KEY_MAP,
    head_key_maps={
        ForMultipleChoice: KeyMap(
            (("classifier.dense.", "sequence_summary.summary."), ("classifier.out_proj.", "classifier."))
        )
    },
    replacements={ForMultipleChoice: ElectraForMultipleChoice},
    heads=(ForReplacedTokenDetection, ForMaskedLM, *TASK_HEADS),
    class_names={"ForReplacedTokenDetection": "ElectraForPreTraining"},
    classification_head=ClassificationHeadSpec("gelu", drops_input=True),
    layouts=(
        TransformersLayout(
            model="ElectraModel",
            module="transformers.models.electra.modeling_electra",
            output="BaseModelOutputWithPastAndCrossAttentions",
            pooler=None,
            projection="embeddings_project",
        ),
    ),
)
