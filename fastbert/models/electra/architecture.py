"""ELECTRA's encoder (Clark et al. 2020) as an architecture record: BERT's layers behind embeddings that may be
narrower, without a pooler."""

from __future__ import annotations

from functools import partial

from fastbert.models.architecture import Architecture, TransformersLayout
from fastbert.models.bert.architecture import bert_spec

ELECTRA = Architecture(
    name="electra",
    spec=partial(bert_spec, pooler=False),
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
