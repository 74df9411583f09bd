"""Weights mapped from files: writes stay in memory, results are those of weights that were read."""

from pathlib import Path

import pytest
import torch

from fastbert import BertConfig, BertModel
from fastbert.ops.native import prepacked_weights

pytestmark = pytest.mark.usefixtures("unchecked_folders")

CONFIG = BertConfig(vocab_size=64, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    BertModel(CONFIG).save_pretrained(tmp_path)
    return tmp_path


def batch() -> torch.Tensor:
    return torch.arange(12).view(2, 6)


@torch.no_grad()
def test_writes_stay_in_memory_and_outlive_the_copies(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    model = BertModel.from_pretrained(folder)
    weight = model.encoder.layer[0].output.dense.weight
    weight[3, 5:9] = 7.0
    first = model(batch()).last_hidden_state
    assert weight[3, 5:9].tolist() == [7.0] * 4
    assert torch.equal(model(batch()).last_hidden_state, first)
    prepacked_weights.forget(model.parameters())
    assert torch.equal(model(batch()).last_hidden_state, first)
    assert (folder / "model.safetensors").read_bytes() == before
    again = BertModel.from_pretrained(folder, mapped=False)
    assert not torch.equal(again.encoder.layer[0].output.dense.weight, weight)


@torch.no_grad()
def test_mapped_or_not_gives_the_same(folder: Path) -> None:
    mapped, read = BertModel.from_pretrained(folder), BertModel.from_pretrained(folder, mapped=False)
    assert torch.equal(mapped(batch()).last_hidden_state, read(batch()).last_hidden_state)
    mapped.save_pretrained(folder)  # over the file that it lies in
    assert torch.equal(mapped(batch()).last_hidden_state, read(batch()).last_hidden_state)
    loaded = BertModel.from_pretrained(folder)
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), read.parameters(), strict=True))


def test_training_a_mapped_model(folder: Path) -> None:
    losses = []
    for mapped in (True, False):
        model = BertModel.from_pretrained(folder, mapped=mapped, hidden_dropout_prob=0.0).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        results = []
        for _ in range(4):
            model.eval()
            loss = model(batch()).last_hidden_state.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            results.append(loss.item())
        losses.append(results)
    assert losses[0] == losses[1]
