"""Row 21: what is learnt is what transformers' eager model learns from the same data.

Both begin with the same weights and read the same batches with dropout, each with random numbers of its own: fastbert
on its fast kernels with bf16 matmuls, transformers in fp32. Their losses on other batches may then differ as much as
those of two seeds do. Larger comparisons are in benchmarks/results: finetune-seeds (five seeds of tasks of GLUE beside
the Trainer), loss-curves and backend-losses.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torture.campaign import Campaign
from torture.ledger import Figures
from torture.scorecard import scored

from fastbert import BertForPreTraining
from fastbert.benchmarks.training.backend_losses import CONFIG, batch_of
from fastbert.packing import PackedBatch
from fastbert.training.optimizer import adamw

STEPS, SHORT_STEPS = 400, 40
OTHER = 1_000_000  # the number of the first batch of no training
NOISE = 0.1  # nats, between losses after few steps


def train_ours(model: BertForPreTraining, seed: int, steps: int) -> float:
    """Return the mean loss on other batches in nats, after so many steps."""
    optimizer = adamw(model.train(), lr=2e-3, weight_decay=0.01)
    for step in range(steps):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch_of(1000 * seed + step)).loss
        assert loss is not None
        loss.backward()
        optimizer.clip_gradients(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return sum(float(model(batch_of(OTHER + index)).loss) for index in range(30)) / 30


def padded(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Return a batch as arguments of transformers' model."""
    labels = torch.full_like(batch.input_ids, -100)
    labels[batch.masked_positions] = batch.labels
    bounds = batch.cu_seqlens.tolist()
    rows = [slice(begin, end) for begin, end in pairwise(bounds)]

    def pad(values: torch.Tensor, value: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([values[row] for row in rows], True, value)

    mask = pad(torch.ones_like(batch.input_ids), 0)
    ids, labels = pad(batch.input_ids, 0), pad(labels, -100)
    return {
        "input_ids": ids, "attention_mask": mask, "labels": labels, "next_sentence_label": batch.next_sentence_label,
    }  # fmt: skip


def train_reference(folder: Path, seed: int, steps: int) -> float:
    """Return the same of transformers' eager model with the weights in `folder`, trained by torch's AdamW in fp32."""
    transformers = pytest.importorskip("transformers")
    model = transformers.BertForPreTraining.from_pretrained(folder, attn_implementation="eager").train()
    plain = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, eps=1e-6)
    torch.manual_seed(seed)
    for step in range(steps):
        model(**padded(batch_of(1000 * seed + step))).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        return sum(float(model(**padded(batch_of(OTHER + index))).loss) for index in range(30)) / 30


@scored(row=21, unit="seeds", short=1, full=5, chunk=5, goal="gap of the mean losses within the seeds' spread")
def test_seeds_against_transformers(campaign: Campaign, tmp_path: Path) -> None:
    """A model of two layers, trained 400 steps of a toy task on both sides; the spread is that of transformers' five
    losses."""

    def train(numbers: range) -> Figures:
        steps = STEPS if campaign.full else SHORT_STEPS
        ours, reference = [], []
        for seed in numbers:
            model = BertForPreTraining(CONFIG)
            model.init_weights(seed=seed)
            model.save_pretrained(tmp_path / str(seed))
            ours.append(train_ours(model, seed, steps))
            reference.append(train_reference(tmp_path / str(seed), seed, steps))
        gap = abs(sum(ours) - sum(reference)) / len(numbers)
        spread = max(reference) - min(reference) if campaign.full else NOISE
        assert gap <= spread, (ours, reference)
        return {
            "largest_gap_of_means": round(gap, 4),
            "largest_spread": round(spread, 4),
            "largest_mean_loss": round(sum(ours) / len(ours), 4),
        }

    campaign.run(train)
