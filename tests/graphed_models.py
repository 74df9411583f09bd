"""Small models and batches for tests of graphs."""

import torch

from fastbert import BertConfig, PackedBatch
from fastbert.graphs import Buckets
from fastbert.models.base import PreTrainedModel

CONFIG = BertConfig(
    vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
    max_position_embeddings=100, num_labels=3,
)  # fmt: skip
SMALL = Buckets(tokens=16, sequences=2, masked=4)


def batch_of(*lengths: int, device: str = "cpu", draw: int = 0) -> PackedBatch:
    """Sequences of random ids."""
    generator = torch.Generator().manual_seed(draw + sum(lengths))
    return PackedBatch(
        input_ids=torch.randint(0, CONFIG.vocab_size, (sum(lengths),), generator=generator),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).int(),
        max_seqlen=max(lengths, default=0),
    ).to(device)


def made(kind: type[PreTrainedModel], seed: int) -> PreTrainedModel:
    model = kind(CONFIG).eval()
    model.init_weights(seed=seed)
    return model
