"""Models and training steps as `fastbert` runs them: launched kernel by kernel, or replayed from CUDA graphs where a
capture succeeds; else the reason."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fastbert.benchmarks.gpu.timing import Calls
from fastbert.models import BertForPreTraining, BertModel
from fastbert.packing import PackedBatch
from fastbert.training.device_step import DeviceStep
from fastbert.training.flat_parameters import reason_not_flat
from fastbert.training.optimizer import AdamW, adamw
from fastbert.training.step_loss import StepLoss

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
    optimizer = flat_adamw(model, lr, weight_decay)
    step = kind(model, optimizer, max_grad_norm=max_grad_norm, dtype=torch.bfloat16)
    calls = [partial(_with_copies, optimizer, step, [step.prepare(batch)], lr) for batch in batches]
    for call in calls:
        call()
    _insist(step)
    return calls


def flat_adamw(model: BertForPreTraining, lr: float, weight_decay: float) -> AdamW:
    """Return the optimiser of `fastbert pretrain` in bf16: on a GPU with parameters and gradients in flat buffers."""
    optimizer, parameters = adamw(model, lr=lr, weight_decay=weight_decay), list(model.parameters())
    if reason_not_flat(parameters, parameters[0].device, torch.bfloat16) is None:
        optimizer.flatten(model, torch.bfloat16)
    return optimizer


def copies(optimizer: AdamW) -> contextlib.AbstractContextManager[None]:
    """Let layers use the optimiser's copies of their weights, where it has any."""
    return contextlib.nullcontext() if optimizer.flat is None else optimizer.flat.active()


def _with_copies(optimizer: AdamW, step: Callable[..., Any], *arguments: Any) -> None:
    with copies(optimizer):
        step(*arguments)


def launched_steps(
    model: BertForPreTraining, batches: Sequence[PackedBatch], lr: float, weight_decay: float, max_grad_norm: float
) -> Calls:
    """Return the optimizer steps of `fastbert pretrain` in bf16 without graphs, one per batch."""
    optimizer = flat_adamw(model, lr, weight_decay)
    scaler = torch.amp.GradScaler(batches[0].device.type, enabled=False)
    step = DeviceStep(StepLoss(model), optimizer, scaler, max_grad_norm=max_grad_norm, dtype=torch.bfloat16)
    return [partial(_with_copies, optimizer, step, [batch], lr) for batch in batches]


def _insist(graphed: Any) -> None:
    """Raise `NotImplementedError` if a batch was not recorded: it would run without a graph."""
    refused = [use.reason for use in graphed.report() if use.how != "graph"]
    if refused:
        raise NotImplementedError(refused[0])
