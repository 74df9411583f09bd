"""Steps of contrastive losses in several passes, with cached gradients and replayed dropout.

Bitwise equal over pass sizes on the native CPU path: the vectors of texts, forward, and therefore the loss and the
gradient of each vector. Not bitwise: gradients of weights, which are sums over the texts of a pass, and then over
passes; the order of these sums is that of the passes, so they agree within rounding.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from accuracy import assert_as_accurate
from toy_tasks import sentence, toy_folder

from fastbert import cpu_capability, losses
from fastbert.distributed.world import World
from fastbert.finetuning import order, start
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.coupled_step import CoupledStep
from fastbert.tasks.registry import make_task
from fastbert.tokenizers import WordPieceTokenizer

UNITS = 24
PASSES = (1 << 20, 100, 64, 1)
"""Tokens per pass: all texts at once, some, few, and each by itself."""


class Step:
    """A model with dropout and a batch of triplets."""

    def __init__(self, folder: Path, seed: int, task: str = "embedding", **flags: Any) -> None:
        toy_folder(folder / "model", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
        draw = Random(seed)
        rows = [
            {"anchor": self._text(draw), "positive": self._text(draw), "negative": self._text(draw)}
            for _ in range(UNITS)
        ]
        train = folder / "train.jsonl"
        train.write_text("\n".join(map(json.dumps, rows)) + "\n")
        config = FinetuneConfig(
            task=task, model=str(folder / "model"), train=train, max_length=32, loss="info-nce", **flags
        )
        self.task = make_task(task, config.task_settings())
        examples = self.task.read(str(train), labelled=True)
        self.task.learn_labels(examples)
        tokenizer = WordPieceTokenizer.from_pretrained(folder / "model")
        begun = start.begin(self.task, folder / "model", config, 0)
        self.task.prepare(begun, folder / "model", 0)
        self.model = begun.train()
        self.rows = self.task.encode(examples, tokenizer, labelled=True)
        self.units = np.arange(UNITS)
        self.keys = order.dropout_keys(self.units, seed, 0)

    @staticmethod
    def _text(draw: Random) -> str:
        return sentence(draw, bool(draw.randrange(2)), draw.randint(1, 20))

    def coupled(self, pass_tokens: int) -> CoupledStep:
        return CoupledStep(self.model, self.task, self.rows, World(), torch.float32, pass_tokens=pass_tokens)

    def backward(self, pass_tokens: int) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
        """The loss, the gradients by name, and the number of passes."""
        self.model.zero_grad(set_to_none=True)
        coupled = self.coupled(pass_tokens)
        share = coupled.share(self.units, self.keys)
        numbers = coupled.backward(share, torch.amp.GradScaler("cpu", enabled=False), 0.5)
        gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        return numbers, gradients, len(share.passes)

    @torch.no_grad()
    def vectors(self, pass_tokens: int) -> torch.Tensor:
        """The vectors of all texts, in the order of the rows."""
        coupled = self.coupled(pass_tokens)
        share = coupled.share(self.units, self.keys)
        pieces = [(each.vectors, self.task.represent(self.model, each.inputs)) for each in share.passes]
        result = torch.empty(share.count, pieces[0][1].shape[1])
        for indices, piece in pieces:
            result[indices] = piece
        return result

    def exact(self) -> dict[str, torch.Tensor]:
        """The gradients in float64, of mean-pooled cosines, with the same dropout."""
        (every,) = self.coupled(1 << 20).share(self.units, self.keys).passes
        self.model.double().zero_grad(set_to_none=True)
        states = self.model.encode(every.inputs)[0]
        sequences = every.inputs.sequence_ids
        sums = torch.zeros(len(every.inputs), states.shape[1], dtype=torch.float64).index_add(0, sequences, states)
        pooled = sums / every.inputs.cu_seqlens.diff()[:, None]
        vectors = torch.empty_like(pooled).index_copy(0, every.vectors, pooled).view(UNITS, 3, -1)
        anchors, positives, negatives = vectors.unbind(1)
        losses.info_nce(anchors, torch.cat((positives, negatives))).backward()
        gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        self.model.float()
        return gradients


@pytest.fixture
def step(tmp_path: Path, seed: int) -> Step:
    return Step(tmp_path, seed)


def test_cached_gradients_are_as_accurate_as_those_of_one_pass(step: Step) -> None:
    numbers, at_once, passes = step.backward(PASSES[0])
    assert passes == 1
    exact = step.exact()
    assert exact.keys() == at_once.keys()
    assert max(float(gradient.abs().max()) for gradient in exact.values()) > 1e-3
    for tokens in PASSES[1:]:
        cached_numbers, cached, passes = step.backward(tokens)
        assert passes > 1
        assert torch.equal(cached_numbers, numbers) or not native(), "the same vectors have the same loss"
        assert torch.allclose(cached_numbers, numbers, rtol=1e-6)
        for name, gradient in cached.items():
            assert_as_accurate(gradient, at_once[name], exact[name], f"{name}, {passes} passes")


def test_a_wrong_replay_of_dropout_is_seen(step: Step) -> None:
    _, at_once, _ = step.backward(PASSES[0])
    step.keys = step.keys + 1
    _, other, _ = step.backward(PASSES[0])
    assert max(float((at_once[name] - other[name]).abs().max()) for name in other) > 1e-3


def test_vectors_are_bitwise_equal_over_pass_sizes(step: Step) -> None:
    if not native():
        pytest.skip("portable matmuls are PyTorch's, whose sums depend on the number of rows")
    at_once = step.vectors(PASSES[0])
    for tokens in PASSES[1:]:
        assert torch.equal(step.vectors(tokens), at_once), tokens


def test_vectors_of_tokens_have_the_gradients_of_one_pass(tmp_path: Path, seed: int) -> None:
    step = Step(tmp_path, seed, "colbert", token_width=16)
    numbers, at_once, _ = step.backward(PASSES[0])
    cached_numbers, cached, passes = step.backward(64)
    assert passes > 1
    assert torch.allclose(cached_numbers, numbers, rtol=1e-6)
    for name, gradient in cached.items():
        assert torch.allclose(gradient, at_once[name], rtol=1e-4, atol=1e-6), name


def native() -> bool:
    """Return whether matmuls are fastbert's own."""
    return cpu_capability.current() != "portable"
