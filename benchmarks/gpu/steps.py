"""Steps of pre-training in bf16 with dropout: forward, backward, clipping and AdamW.

fastbert's on packed tokens, kernel by kernel and from CUDA graphs, beside the same model in plain torch on padded
tokens, eager and compiled.

Before timing, loss and gradients of a few sequences are compared with eager torch in float64 under the same masks.
fastbert is measured first: rivals that fail cost none of its rows.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastbert.benchmarks.cpu.workloads import unread_operations
from fastbert.benchmarks.gpu import models, moments
from fastbert.benchmarks.gpu.check import compiled_layers, judge
from fastbert.benchmarks.gpu.device import Device, open_device
from fastbert.benchmarks.gpu.graphs import GRAPHS, copies, flat_adamw, launched_steps, replayed_steps
from fastbert.benchmarks.gpu.padded import PaddedBatch, PaddedForPreTraining, slots
from fastbert.benchmarks.gpu.timing import REFUSALS, Calls, Case, Work, contest, willing
from fastbert.benchmarks.gpu.worker import announce
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.config import BertConfig
from fastbert.models import BertForPreTraining
from fastbert.ops import dispatch
from fastbert.packing import PackedBatch

TOKENS, REAL_SEQUENCES = 32768, 400
SLOT, SLOT_TOKENS = 512, 509  # a slot of BERT-large, and the real tokens of the two sequences that share it
SETTINGS = {"lr": 1e-5, "weight_decay": 0.01, "max_grad_norm": 1.0}
FEWEST_TOKENS = 4096  # a step that does not fit is retried with half the sequences, down to this
DROPOUT = 0.1
EAGER, COMPILED = "eager", "eager compiled"
CHECKED = 4  # sequences
STATE_DRAWS = 12
FACTOR, SLACK, LOSS_SLACK = 2.0, 1e-5, 2.0**-10


def pretraining_names(dry: bool) -> list[str]:
    """Return the cases, those with a goal first."""
    if dry:
        return ["pretraining base 16 full", "pretraining large 16 packed"]
    goals = ["pretraining base 128 full", "pretraining base 512 full", "pretraining base 128 real"]
    return [*goals, "pretraining large 512 packed", "pretraining large 128 full", "pretraining large 512 full"]


def warm_names(dry: bool) -> list[str]:
    """Return the cases that torch compiles something for."""
    return [] if dry else [name for name in pretraining_names(dry) if name.split()[1] == "base"]


def slot_lengths(slots: int, longest: int) -> Tensor:
    """Return the lengths of the two sequences in each slot: together nearly the slot, the shorter between an eighth and
    half of it."""
    pair = longest * SLOT_TOKENS // SLOT
    shorter = torch.linspace(pair / 8, pair / 2, slots).long()
    return torch.stack((shorter, pair - shorter), 1).flatten()


def step_lengths(tokens: int, longest: int, how: str) -> Tensor:
    """Return the lengths of a step's sequences: "full" or "packed" slots of `longest` tokens, or "real" ones, as of
    sentences."""
    if how == "real":
        return models.real_lengths(REAL_SEQUENCES * tokens // TOKENS, longest, 0)
    slots = tokens // longest
    return slot_lengths(slots, longest) if how == "packed" else torch.full((slots,), longest)


def run_pretraining(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Check and measure the steps of one model size and batch."""
    device, case = open_device(dry), Case()
    _, size, length, variant = name.split()
    longest, tokens = int(length), 64 if dry else TOKENS
    config = models.small(BertConfig.preset(size), dry)
    announce(FASTBERT)
    difference, verdict = check(device, config, _batch(device, config, step_lengths(tokens, longest, variant), 0))
    device.free()
    while True:
        lengths = step_lengths(tokens, longest, variant)
        batches = [_batch(device, config, lengths, seed) for seed in range(2)]
        candidates = {
            FASTBERT: partial(_own_steps, launched_steps, device, config, batches),
            GRAPHS: partial(_own_steps, replayed_steps, device, config, batches),
        }
        contenders = willing(device, case, name, candidates, without)
        if FASTBERT in contenders or tokens // 2 < FEWEST_TOKENS:
            break
        tokens //= 2
        device.free()
    timed = partial(
        contest,
        device,
        name,
        work=_work(config, lengths),
        seconds=seconds,
        queued=False,
        details=models.details(device, len(lengths), int(lengths.sum()), longest),
    )
    ours = dict.fromkeys(contenders, verdict)
    case.add(timed(contenders=contenders, differences=dict.fromkeys(contenders, difference), outputs=ours))
    del candidates, contenders
    device.free()
    if size == "base":
        padded = [PaddedBatch.of(batch) for batch in batches]
        for rival in (EAGER, COMPILED):
            make = {rival: partial(_rival_steps, device, config, padded, rival == COMPILED)}
            runnable = willing(device, case, name, make, without)
            if runnable:
                outputs = {rival: check_rival(device, config, batches[0], compiles=rival == COMPILED)}
                case.add(timed(contenders=runnable, outputs=outputs))
            del runnable, make
            device.free()
    return case.as_json()


def _batch(device: Device, config: BertConfig, lengths: Tensor, seed: int) -> PackedBatch:
    return models.make_batch(config, lengths, seed).to(device.torch_device)


def _work(config: BertConfig, lengths: Tensor) -> Work:
    real = int(lengths.sum())
    read_rows = len(lengths) + round(models.MASKED * real)  # from the last layer: first tokens and masked positions
    unread = (real - min(real, read_rows)) * unread_operations(config)
    return Work(tokens=real, operations=3 * (real * models.operations_per_token(config, lengths.tolist()) - unread))


def _own_steps(make: Callable[..., Calls], device: Device, config: BertConfig, batches: Sequence[PackedBatch]) -> Calls:
    """Return steps of a model of their own, whose parameters and gradients they move."""
    return make(models.new_model(BertForPreTraining, config, device).train(), batches, **SETTINGS)


# Rivals


def _padded_model(device: Device, config: BertConfig, dropout: float, whole: bool = False) -> PaddedForPreTraining:
    """Return the rival's model, always of the same weights; `whole` compiles the layers, each as a whole."""
    model = PaddedForPreTraining(models.new_model(BertForPreTraining, config, device).train(), dropout)
    if whole:
        compiled_layers(device, model.encoder.layers)
    return model


def padded_step(device: Device, config: BertConfig, whole: bool) -> Callable[[PaddedBatch], None]:
    """Return a function that takes the same step in plain torch with its fused AdamW."""
    model = _padded_model(device, config, DROPOUT, whole)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=SETTINGS["lr"], weight_decay=SETTINGS["weight_decay"], fused=not device.dry_run
    )

    def step(batch: PaddedBatch) -> None:
        with torch.autocast(device.torch_device.type, dtype=torch.bfloat16):
            loss = model(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, SETTINGS["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _rival_steps(device: Device, config: BertConfig, batches: Sequence[PaddedBatch], whole: bool) -> Calls:
    step = padded_step(device, config, whole)
    return [partial(step, batch) for batch in batches]


def warm(device: Device, name: str) -> None:
    """Compile what torch compiles for a case, at its own size, for a model of one layer."""
    _, size, length, variant = name.split()
    config = models.small(BertConfig.preset(size, num_hidden_layers=1), device.dry_run)
    batch = _batch(device, config, step_lengths(64 if device.dry_run else TOKENS, int(length), variant), 0)
    padded_step(device, config, True)(PaddedBatch.of(batch))


# Comparing


def check(device: Device, config: BertConfig, batch: PackedBatch) -> tuple[float, str]:
    """Compare loss and gradients of a few sequences, with dropout, with eager torch in float64 under the same masks.

    The norm of the gradients' error may be twice that of eager operations under the same autocast. Returns the loss's
    difference and "close", or what exceeds the rule.
    """
    few, model = batch[:CHECKED], models.new_model(BertForPreTraining, config, device).train()
    with dispatch.use_backend("eager"):
        exact = _gradients(copy.deepcopy(model).double(), few, bf16=False)
        eager = _gradients(copy.deepcopy(model), few)
    try:
        actual = _gradients(copy.deepcopy(model), few)
    except REFUSALS:
        return 0.0, "not compared"  # the reason is recorded when it is to be timed
    norm = float(exact[1].norm())
    errors = [float((gradients.double() - exact[1]).norm()) / norm for _, gradients in (actual, eager)]
    losses = [abs(float(loss) - float(exact[0])) for loss, _ in (actual, eager)]
    if not losses[0] <= FACTOR * losses[1] + LOSS_SLACK * float(exact[0]):
        return losses[0], f"wrong: the loss is off by {losses[0]:.3g}, eager torch's by {losses[1]:.3g}"
    if not errors[0] <= FACTOR * errors[1] + SLACK:
        return losses[0], f"wrong: the gradients are off by {errors[0]:.3g}, eager torch's by {errors[1]:.3g}"
    return losses[0], "close"


def check_rival(device: Device, config: BertConfig, batch: PackedBatch, compiles: bool) -> str:
    """Compare the rival's hidden states: eager ones without dropout with float64; compiled ones with dropout with the
    eager ones, by their moments over the masks."""

    def states(model: PaddedForPreTraining, packed: PackedBatch) -> Tensor:
        padded = PaddedBatch.of(packed)
        with torch.autocast(device.torch_device.type, dtype=torch.bfloat16):
            hidden = model.encoder(padded.input_ids, padded.token_type_ids, padded.mask)
        rows: Tensor = hidden.detach().flatten(0, 1)[slots(packed)]
        return rows[: int(packed.cu_seqlens[min(CHECKED, len(packed))])]

    if compiles:
        actual, expected = (
            moments.sample(partial(states, _padded_model(device, config, DROPOUT, whole), batch), STATE_DRAWS)
            for whole in (True, False)
        )
        return moments.judge(actual, expected)
    few, model = batch[:CHECKED], models.new_model(BertForPreTraining, config, device).eval()
    with dispatch.use_backend("eager"), torch.no_grad():
        exact = copy.deepcopy(model).double().bert(few).last_hidden_state
        with torch.autocast(device.torch_device.type, dtype=torch.bfloat16):
            eager = model.bert(few).last_hidden_state
    padded = states(_padded_model(device, config, 0.0), few)
    return judge({"states": padded}, {"states": exact}, {"states": eager})[1]


def _gradients(model: BertForPreTraining, batch: PackedBatch, bf16: bool = True) -> tuple[Tensor, Tensor]:
    """Return the loss, and all gradients as one vector; in bf16 as a training step computes them."""
    optimizer = flat_adamw(model, SETTINGS["lr"], SETTINGS["weight_decay"]) if bf16 else None
    with contextlib.nullcontext() if optimizer is None else copies(optimizer):
        with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=bf16):
            loss = model(batch).loss
        assert loss is not None
        loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return loss.detach(), torch.cat([gradient.flatten() for gradient in gradients])
