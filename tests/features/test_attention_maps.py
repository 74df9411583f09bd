"""Attention probabilities are those of transformers' eager attention, whatever the architecture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from family_folders import save_family

import fastbert
from fastbert.errors import UserError
from fastbert.features.attention import attention_probabilities
from fastbert.models import registry


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert", "deberta-v2", "distilbert"])
def test_probabilities_of_families(family: str, tmp_path: Path, seed: int) -> None:
    folder = save_family(family, tmp_path, seed)
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval().float()
    ours, tokenizer = registry.load_encoder(folder, dtype=torch.float32), fastbert.load_tokenizer(folder)
    batch = tokenizer.pack(["a word, and more words than there are dimensions in a head"])
    with torch.no_grad():
        output = theirs(input_ids=batch.input_ids[None], output_attentions=True)
    layers = ours.config.num_hidden_layers
    for layer in range(layers):
        maps = attention_probabilities(ours, batch, layer)
        assert torch.allclose(maps, output.attentions[layer][0], atol=1e-4), layer
        assert torch.allclose(maps.sum(-1), torch.ones(()), atol=1e-4)
    assert torch.equal(attention_probabilities(ours, batch), attention_probabilities(ours, batch, layers - 1))
    for layer in (layers, -layers - 1):
        with pytest.raises(UserError, match=f"layer={layer} is not one of"):
            attention_probabilities(ours, batch, layer)
    with pytest.raises(UserError, match="one sequence"):
        attention_probabilities(ours, tokenizer.pack(["a", "b"]))
