"""Every head returns the hidden states of all layers when asked: those of transformers, with the same loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toys import inputs, masks, real, toy

import fastbert

HEADS = (
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
)
TARGETS: dict[str, dict[str, Any]] = {
    "BertForNextSentencePrediction": {"labels": torch.tensor([0, 1, 1, 0])},
    "BertForSequenceClassification": {"labels": torch.tensor([0, 1, 1, 0])},
    "BertForQuestionAnswering": {
        "start_positions": torch.tensor([0, 1, 2, 1]),
        "end_positions": torch.tensor([0, 3, 2, 4]),
    },
}


def test_states_of_every_head(tmp_path: Path, seed: int) -> None:
    mask = masks()["right"]
    kwargs = inputs(seed, mask)
    for name in HEADS:
        peer = toy(name, seed)
        peer.save_pretrained(tmp_path / name)
        model = getattr(fastbert, name).from_pretrained(tmp_path / name)
        with torch.no_grad():
            expected = peer(**kwargs, output_hidden_states=True)
            actual = model(**kwargs, output_hidden_states=True)
        assert len(actual.hidden_states) == 4
        for one, other in zip(actual.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(one[real(mask)], other[real(mask)], atol=1e-4, rtol=1e-4)
        assert model(**kwargs).hidden_states is None


@pytest.mark.parametrize("name", list(TARGETS))
def test_the_loss_is_the_same_with_states(name: str, tmp_path: Path, seed: int) -> None:
    kwargs = inputs(seed, masks()["right"])
    toy(name, seed).save_pretrained(tmp_path)
    model = getattr(fastbert, name).from_pretrained(tmp_path).train()
    plain = model(**kwargs, **TARGETS[name]).loss
    kept = model(**kwargs, **TARGETS[name], output_hidden_states=True)
    torch.testing.assert_close(kept.loss, plain, atol=1e-5, rtol=1e-5)
    # The states take part in the graph: a loss on them reaches the embeddings.
    kept.hidden_states[1].square().sum().backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0
