"""Models that write text with a few thousand random weights, and ragged sources and targets for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert.models.seq2seq.config import SequenceConfig
from fastbert.models.seq2seq.model import BertForSequenceToSequence

VOCABULARY, BEGIN, END = 61, 2, 3
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "begin_token_id": BEGIN,
    "end_token_id": END,
}
KINDS: dict[str, dict[str, Any]] = {
    "decoder": {"kind": "decoder", "decoder_layers": 3},
    "bert2bert": {"kind": "bert2bert"},
    "shallow": {"kind": "bert2bert", "decoder_layers": 1},
    "shared": {"kind": "bert2bert", "sharing": "all"},
    "prefix": {"kind": "prefix"},
}
BESIDE = tuple(kind for kind in KINDS if kind != "prefix")


def writer(name: str, seed: int, **changes: Any) -> BertForSequenceToSequence:
    """A model of one of `KINDS` whose texts differ, and which ends some of them by itself."""
    model = BertForSequenceToSequence(SequenceConfig(**{**SHAPE, **KINDS[name], **changes}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("LayerNorm.weight"):
                parameter.normal_(1.0, 0.1, generator=generator)
            elif parameter.dim() == 1:
                parameter.normal_(0.0, 0.1, generator=generator)
            else:
                parameter.normal_(0.0, 0.5 if "embeddings" in key else 0.3, generator=generator)
        # As likely as it takes for a text in some to end at each token.
        model.eval()
        (ids, mask), (target, target_mask) = ragged(seed, 16), targets(seed, 16)
        logits = model(ids, target, mask, target_mask, return_logits=True).logits[target_mask[:, 1:].bool()]
        least = logits.max(-1).values - logits[:, END]
        model.head.bias[END] += least.quantile(0.15)
    return model


def ragged(seed: int, rows: int = 7, longest: int = 15, least: int = 1) -> tuple[Tensor, Tensor]:
    """Ids (rows, longest) and their mask: of any length from `least` on, both ends of the range among them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(least, longest + 1, (rows,), generator=generator)
    lengths[0], lengths[-1] = longest, least
    ids = torch.randint(5, VOCABULARY, (rows, longest), generator=generator)
    return ids, (torch.arange(longest)[None] < lengths[:, None]).long()


def targets(seed: int, rows: int = 7, longest: int = 11) -> tuple[Tensor, Tensor]:
    """Ids (rows, longest) that begin with BEGIN and end with END, and their mask."""
    ids, mask = ragged(seed + 1, rows, longest, least=2)
    ids[:, 0] = BEGIN
    ids[torch.arange(rows), mask.sum(1) - 1] = END
    return ids, mask
