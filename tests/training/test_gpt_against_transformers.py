"""GPT-2 trained by fastbert and by transformers: the same weights, batches and optimiser give the same losses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastbert
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import TokenShards
from fastbert.packing import PackedBatch
from fastbert.training.config import PretrainConfig
from fastbert.training.pretrain import pretrain

transformers = pytest.importorskip("transformers")


def padded(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """The batch as transformers takes it."""
    shape = (len(batch), batch.max_seqlen)
    slots = batch.sequence_ids * shape[1] + batch.offsets_in_sequence
    ids = torch.zeros(shape, dtype=torch.int64).flatten().index_copy(0, slots, batch.input_ids).view(shape)
    mask = torch.zeros(shape, dtype=torch.int64).flatten().index_fill(0, slots, 1).view(shape)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def differences(
    shards: TokenShards, sizes: dict[str, int], steps: int, rows: int, length: int, tmp: Path
) -> list[float]:
    """Relative differences of the losses of each step."""
    config = transformers.GPT2Config(
        vocab_size=shards.vocab_size, n_positions=length, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, pad_token_id=0,
        bos_token_id=2, eos_token_id=3, **sizes,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config)
    theirs.save_pretrained(tmp)
    theirs.train()
    ours = fastbert.GPT2LMHeadModel.from_pretrained(tmp).train()
    data = PretrainingData(shards, objective="ltr", max_length=length)
    models = (ours, theirs)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01) for model in models]
    result = []
    for step in range(steps):
        batch = data.samples(range(step * rows, (step + 1) * rows))
        losses: list[Any] = [ours(batch).loss, theirs(**padded(batch)).loss]
        for loss, optimizer, model in zip(losses, optimizers, models, strict=True):
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.param_groups[0]["lr"] = 5e-4 * min(1.0, (step + 1) / 20)
            optimizer.step()
            optimizer.zero_grad()
        mine, other = (float(loss.detach()) for loss in losses)
        result.append(abs(mine - other) / other)
    return result


def test_losses_are_those_of_transformers(config: PretrainConfig, tmp_path: Path) -> None:
    pretrain(replace(config, steps=1, objective="ltr"))
    shards = TokenShards.open(config.out / "data")
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2}
    assert max(differences(shards, sizes, 15, 4, 32, tmp_path / "gpt2")) < 1e-4


@pytest.mark.slow
def test_two_hundred_steps_at_mini_scale(data_dir: Path, tmp_path: Path) -> None:
    corpus = data_dir / "wiki-en" / "wiki_en.sent.txt.xz"
    run = PretrainConfig(
        corpus=(corpus,), model="tiny", objective="ltr", steps=1, vocab_size=4000, out=tmp_path / "run"
    )
    pretrain(run)
    sizes = {"n_embd": 256, "n_layer": 4, "n_head": 4}
    relative = differences(TokenShards.open(run.out / "data"), sizes, 200, 16, 128, tmp_path / "gpt2")
    print(f"largest relative difference of 200 losses: {max(relative):.1e}, median {np.median(relative):.1e}")
    assert max(relative) < 1e-4
