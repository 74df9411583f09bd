"""Small encoders of transformers with any attention, and masks for them."""

from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

COLUMNS = 17
SHAPE = {
    "vocab_size": 60,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}
WITHOUT_DROPOUT = {name: value for name, value in SHAPE.items() if not name.endswith("prob")}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**SHAPE),
    "roberta": lambda: transformers.RobertaConfig(**SHAPE),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**SHAPE),
    "electra": lambda: transformers.ElectraConfig(**SHAPE, embedding_size=20),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=60, dim=48, n_layers=2, n_heads=3, hidden_dim=64, dropout=0.0, attention_dropout=0.0
    ),
    "albert": lambda: transformers.AlbertConfig(**SHAPE, embedding_size=20),
    "modernbert-within-its-window": lambda: transformers.ModernBertConfig(
        **WITHOUT_DROPOUT, **SPECIAL, local_attention=64
    ),
    "modernbert-beyond-its-window": lambda: transformers.ModernBertConfig(
        **WITHOUT_DROPOUT, **SPECIAL, local_attention=8
    ),
    "eurobert-grouped-keys": lambda: transformers.EuroBertConfig(
        **WITHOUT_DROPOUT, **SPECIAL, head_dim=16, num_key_value_heads=1
    ),
    "mpnet-own-attention": lambda: transformers.MPNetConfig(**SHAPE),
}


def padding(kind: str) -> Tensor:
    mask = torch.ones(3, COLUMNS, dtype=torch.long)
    match kind:
        case "right":
            mask[1, 9:] = mask[2, 1:] = 0
        case "left":
            mask[1, :9] = mask[2, :-1] = 0
        case "holes":
            mask[0, 3:7] = mask[1, ::2] = mask[2, 0] = 0
        case "a-row-of-padding":
            mask[1] = 0
    return mask


def build(config: Any, seed: int, implementation: str, dtype: torch.dtype = torch.float32) -> Any:
    """The same weights for every implementation and dtype, larger than fresh ones, so that attention is no average."""
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in name:
                parameter.mul_(5)
    model.set_attn_implementation(implementation)
    return model.eval().to(dtype)


def run(model: Any, inputs: dict[str, Tensor], upstream: Tensor, kept: Tensor) -> list[Tensor]:
    """The hidden states at real tokens, and the gradients of all parameters of a loss on them."""
    model.zero_grad()
    states = model(**inputs).last_hidden_state[kept]
    (states * upstream.to(states.dtype)).sum().backward()
    return [states, *(p.grad for p in model.parameters() if p.grad is not None)]
