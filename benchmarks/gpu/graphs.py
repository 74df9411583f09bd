"""Models replayed from CUDA graphs, where a capture succeeds; else the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fastbert.benchmarks.gpu.timing import Calls
from fastbert.models import BertForPreTraining, BertModel
from fastbert.packing import PackedBatch
from fastbert.training.optimizer import adamw

GRAPHS = "fastbert graphs"


def replayed_states(model: BertModel, batches: Sequence[PackedBatch]) -> Callable[[PackedBatch], Tensor]:
    """Return a function for the model's last hidden states, from graphs that are recorded here for the sizes of
    `batches`."""
    graphed = import_module("fastbert.graphs").graphed(model)

    def call(batch: PackedBatch) -> Tensor:
        with torch.no_grad():
            states: Tensor = graphed(batch).last_hidden_state
        return states

    for batch in batches:
        call(batch)
    _insist(graphed)
    return call


def replayed_steps(
    model: BertForPreTraining, batches: Sequence[PackedBatch], lr: float, weight_decay: float, max_grad_norm: float
) -> Calls:
    """Return optimizer steps in bf16, one per batch, from graphs that are recorded here."""
    kind = import_module("fastbert.training.graphed").GraphedStep
    optimizer = adamw(model, lr=lr, weight_decay=weight_decay)
    step = kind(model, optimizer, max_grad_norm=max_grad_norm, dtype=torch.bfloat16)
    calls = [partial(step, [step.prepare(batch)], lr) for batch in batches]
    for call in calls:
        call()
    _insist(step)
    return calls


def _insist(graphed: Any) -> None:
    """Raise `NotImplementedError` if a batch was not recorded: it would run without a graph."""
    refused = [use.reason for use in graphed.report() if use.how != "graph"]
    if refused:
        raise NotImplementedError(refused[0])
