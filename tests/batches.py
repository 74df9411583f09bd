"""Batches for tests of models."""

import torch

from fastbert.packing import PackedBatch


def random_batch(lengths: list[int], vocab: int, masked: int, seed: int) -> PackedBatch:
    """Random tokens in sequences of these lengths, `masked` of them with labels, and all else that training wants."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    positions = torch.randperm(total, generator=generator)[:masked].sort().values
    return PackedBatch(
        input_ids=torch.randint(0, vocab, (total,), generator=generator),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).int(),
        max_seqlen=max(lengths),
        dropout_key=torch.randint(0, 2**62, (len(lengths),), generator=generator),
        masked_positions=positions,
        labels=torch.randint(0, vocab, (masked,), generator=generator),
        next_sentence_label=torch.randint(0, 2, (len(lengths),), generator=generator),
    )
