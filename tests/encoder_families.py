"""Configs of newer encoders, small, in variants that cover what their records can say; and inputs for them."""

from __future__ import annotations

from typing import Any

import torch

from fastbert import PackedBatch
from fastbert.models.encoder import EncoderModel
from fastbert.models.registry import architecture_of, config_from_dict

SHAPE = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
DEBERTA = SHAPE | {
    "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"], "share_att_key": True,
    "norm_rel_ebd": "layer_norm", "position_biased_input": False,
}  # fmt: skip
MODERN = SHAPE | {"local_attention": 8, "pad_token_id": 0, "num_hidden_layers": 4, "cls_token_id": 1}
MODERN |= {"bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
BIASES = {"norm_bias": True, "attention_bias": True, "mlp_bias": True}
EURO = SHAPE | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "mask_token_id": 3, "num_key_value_heads": 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA |= {"original_max_position_embeddings": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("MPNet", SHAPE),
    "modernbert": ("ModernBert", MODERN),
    "modernbert-biases-scaled": (
        "ModernBert",
        MODERN | BIASES | {"rope_parameters": {"full_attention": YARN, "sliding_attention": LLAMA}},
    ),
    "deberta-v3": ("DebertaV2", DEBERTA),
    "deberta-v2-convolution": (
        "DebertaV2",
        DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu", "share_att_key": False, "conv_groups": 2},
    ),
    "deberta-narrow-unbucketed": (
        "DebertaV2",
        DEBERTA | {
            "embedding_size": 24, "position_buckets": -1, "max_relative_positions": 6, "pos_att_type": ["c2p"],
            "norm_rel_ebd": "none", "position_biased_input": True, "type_vocab_size": 2, "share_att_key": False,
            "conv_kernel_size": 5,
        },
    ),
    "nomic": ("NomicBert", SHAPE),
    "eurobert": ("EuroBert", EURO),
    "eurobert-biases-linear": (
        "EuroBert",
        EURO | {
            "attention_bias": True, "mlp_bias": True, "head_dim": 6, "hidden_act": "gelu",
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        },
    ),
    "albert": ("Albert", SHAPE | {"embedding_size": 24, "num_hidden_groups": 2}),
    "jina-v3": ("JinaEmbeddingsV3", SHAPE),
    "deberta-absolute": ("DebertaV2", SHAPE | {"pos_att_type": ["c2p", "p2c"]}),
}  # fmt: skip
LENGTHS = (20, 13, 1, 18)


def padded(case: str, seed: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 99, (4, 20), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(20) < torch.tensor(LENGTHS)[:, None]).long()
    pad = 1 if case.startswith(("mpnet", "jina-v3")) else 0
    return {"input_ids": ids.where(mask == 1, torch.tensor(pad)), "attention_mask": mask}


def model_of(case: str, seed: int) -> EncoderModel:
    """Return a model with random weights, biases and norms."""
    import transformers

    prefix, values = CASES[case]
    config = config_from_dict(getattr(transformers, f"{prefix}Config")(**values).to_dict())
    torch.manual_seed(seed)
    model = architecture_of(config).model_class(EncoderModel)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch_of(lengths: tuple[int, ...], ids: torch.Tensor) -> PackedBatch:
    """Return token ids as a batch of sequences of some lengths."""
    offsets = torch.tensor((0, *lengths)).cumsum(0).int()
    return PackedBatch(input_ids=ids, cu_seqlens=offsets, max_seqlen=max(lengths))
