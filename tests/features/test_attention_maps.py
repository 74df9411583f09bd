"""Attention probabilities are those of transformers' eager attention, whatever the architecture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from encoder_toys import encoder

from fastbert import PackedBatch
from fastbert.errors import UserError
from fastbert.features.attention import attention_probabilities
from fastbert.models import registry


@pytest.mark.parametrize("kind", ["mpnet", "modernbert", "deberta-v3", "deberta-v2", "eurobert", "albert"])
def test_probabilities_of_families(kind: str, tmp_path: Path, seed: int) -> None:
    """For a text that is longer than a head is wide, and than the window of local attention."""
    theirs = encoder(kind, seed)
    theirs.save_pretrained(tmp_path)
    theirs.set_attn_implementation("eager")
    ours = registry.load_encoder(tmp_path, dtype=torch.float32)
    ids = torch.randint(5, 200, (37,), generator=torch.Generator().manual_seed(seed))
    batch = PackedBatch(input_ids=ids, cu_seqlens=torch.tensor([0, 37], dtype=torch.int32), max_seqlen=37)
    with torch.no_grad():
        expected = theirs(input_ids=ids[None], output_attentions=True).attentions
    for layer, maps in enumerate(expected):
        found = attention_probabilities(ours, batch, layer)
        assert torch.allclose(found, maps[0].float(), atol=1e-4), layer
    assert torch.equal(attention_probabilities(ours, batch), found)
    for layer in (len(expected), -len(expected) - 1):
        with pytest.raises(UserError, match=f"layer={layer} is not one of"):
            attention_probabilities(ours, batch, layer)
    two = PackedBatch(input_ids=ids, cu_seqlens=torch.tensor([0, 9, 37], dtype=torch.int32), max_seqlen=28)
    with pytest.raises(UserError, match="one sequence"):
        attention_probabilities(ours, two)
