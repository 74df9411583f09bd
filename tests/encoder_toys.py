"""Models of transformers' encoders whose layers `fastbert.accelerate` runs by a spec, with a few thousand weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from toys import SHAPE

WIDE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
SPECIAL = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3, "mask_token_id": 4}
DROPS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
DEBERTA = {"relative_attention": True, "type_vocab_size": 0}
# By name: the prefix of the classes, the config, and the names of its dropout probabilities.
KINDS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "mpnet": ("MPNet", {}, DROPS),
    "modernbert": (
        "ModernBert", {"local_attention": 8, **SPECIAL}, ("attention_dropout", "mlp_dropout", "embedding_dropout")
    ),
    "modernbert-biased": (
        "ModernBert",
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "hidden_activation": "silu", **SPECIAL},
        ("attention_dropout", "mlp_dropout", "embedding_dropout"),
    ),
    "deberta-v3": (
        "DebertaV2",
        {**DEBERTA, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
         "norm_rel_ebd": "layer_norm", "position_biased_input": False, "legacy": False},
        DROPS,
    ),
    "deberta-v2": (
        "DebertaV2",
        {**DEBERTA, "pos_att_type": ["c2p", "p2c"], "conv_kernel_size": 3, "conv_act": "gelu", "type_vocab_size": 2,
         "embedding_size": 16},
        DROPS,
    ),
    "nomic": ("NomicBert", {}, DROPS),
    "eurobert": ("EuroBert", {"num_key_value_heads": 1, **SPECIAL}, ("attention_dropout",)),
    "eurobert-biased": (
        "EuroBert", {"attention_bias": True, "mlp_bias": True, "head_dim": 8, **SPECIAL}, ("attention_dropout",)
    ),
    "albert": (
        "Albert", {"embedding_size": 16, "num_hidden_groups": 2, "classifier_dropout_prob": 0.0, **SPECIAL}, DROPS
    ),
    "jina-v3": ("JinaEmbeddingsV3", {"type_vocab_size": 2}, DROPS),
}  # fmt: skip


def encoder(kind: str, seed: int, head: str = "Model", dropout: float = 0.0, **options: Any) -> Any:
    """Return a model in eval mode, with weights large enough that every part matters."""
    prefix, values, drops = KINDS[kind]
    config = {**SHAPE, **WIDE, **values, **dict.fromkeys(drops, dropout), **options}
    torch.manual_seed(seed)
    model = getattr(transformers, f"{prefix}{head}")(getattr(transformers, f"{prefix}Config")(**config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2 if parameter.dim() > 1 else 0.5)
    return model.eval()
