"""The masked-language-model loss: vocabulary product and cross-entropy, forward and backward, time and memory.

x (rows, 768) bf16, weight (30522, 768) and bias fp32, under bf16 autocast; eager torch writes bf16 logits, makes them
fp32, and takes the mean of F.cross_entropy. Loss and gradients are compared with float64 before timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert import ops
from fastbert.benchmarks.gpu.check import compiled, judged
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.benchmarks.gpu.measure import Calls, Case, Work, contest, willing
from fastbert.benchmarks.gpu.worker import announce
from fastbert.benchmarks.harness.measure import OWN
from fastbert.ops import dispatch

ROWS = (10_000, 4_096, 40_000)
COMPILED_ROWS = 10_000  # torch compiles for each number of rows: for one of them
WIDTH, VOCABULARY = 768, 30522
COMPILED = "eager compiled"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """x (rows, width) bf16, weight (vocabulary, width) and bias fp32, labels int64 (rows,)."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    labels: Tensor

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return self.x, self.weight, self.bias


def case_names(dry: bool) -> list[str]:
    return [f"loss {rows}" for rows in ((40,) if dry else ROWS)]


def warm_names(dry: bool) -> list[str]:
    """The one that torch compiles something for."""
    return case_names(dry)[:1]


def draw(device: Device, rows: int) -> Inputs:
    """Random states behind a LayerNorm, weights as a model begins with them."""
    generator = torch.Generator(device.torch_device).manual_seed(0)
    width, vocabulary = (32, 100) if device.dry_run else (WIDTH, VOCABULARY)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device.torch_device)

    return Inputs(
        x=normal(rows, width).bfloat16().requires_grad_(),
        weight=(0.05 * normal(vocabulary, width)).requires_grad_(),
        bias=(0.1 * normal(vocabulary)).requires_grad_(),
        labels=torch.randint(0, vocabulary, (rows,), generator=generator, device=device.torch_device),
    )


def ours(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """The mean loss."""
    return ops.linear_cross_entropy(x, weight, bias, labels).loss_sum * (1 / len(labels))


def eager(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """As models have it: logits in fp32 for the softmax, unless they are float64."""
    logits = F.linear(x, weight, bias)
    return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels, reduction=reduction)


def step(function: Callable[..., Tensor], one: Inputs) -> tuple[Tensor, ...]:
    """The loss and its gradients, by operands in bf16 wherever there is a product."""
    with torch.autocast(one.x.device.type, dtype=torch.bfloat16, enabled=one.x.dtype != torch.float64):
        loss = function(one.x, one.weight, one.bias, one.labels)
    return loss.detach(), *torch.autograd.grad(loss, one.leaves)


def run_case(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Compare, measure the memory, and time forward and backward at one number of rows."""
    device = open_device(dry)
    rows = int(name.split()[1])
    one, case = draw(device, rows), Case()
    with dispatch.use_backend(own_backend(device, "linear_cross_entropy")):
        difference, verdict = _check(device, one)
        candidates: dict[str, Callable[[], Calls]] = {
            who: partial(_calls, function, one) for who, function in _functions(device, rows).items()
        }
        takers = willing(device, case, name, candidates, without)
        extra = {who: _extra_bytes(device, calls, one) for who, calls in takers.items()}
        width = one.weight.shape[1]
        measured = contest(
            device,
            name,
            takers,
            Work(tokens=rows, operations=6.0 * rows * width * one.weight.shape[0]),
            seconds=seconds,
            differences={OWN: difference},
            outputs={OWN: verdict, **{who: "not compared" for who in takers if who != OWN}},
            details={
                "backend": dispatch.preferred_backend("linear_cross_entropy", device.torch_device),
                "logits_bytes": 4 * rows * one.weight.shape[0],
            },
        )
    case.rows = [
        replace(each, row=replace(each.row, details={**each.row.details, "extra_bytes": extra[each.row.contender]}))
        for each in measured
    ]
    device.free()
    return case.as_json()


def _check(device: Device, one: Inputs) -> tuple[float, str]:
    """Loss and gradients against float64, where its logits fit into the memory."""
    names = ("x", "weight", "bias")
    double = replace(one, **{name: getattr(one, name).detach().double().requires_grad_() for name in names})
    try:
        exact, theirs = _named(step(eager, double)), _named(step(eager, one))
        theirs["loss"] = exact["loss"] + max((theirs["loss"] - exact["loss"]).abs(), _spread(one, double))
    except torch.OutOfMemoryError:
        return 0.0, "not compared"
    announce(OWN)
    return judged(device, lambda: _named(step(ours, one)), exact, theirs)


def _spread(one: Inputs, double: Inputs) -> Tensor:
    """Two standard deviations of the mean of eager torch's errors, a row each: the mean itself may be right by luck."""
    with torch.no_grad():
        exact = eager(double.x, double.weight, double.bias, one.labels, reduction="none")
        with torch.autocast(one.x.device.type, dtype=torch.bfloat16):
            rounded = eager(one.x, one.weight, one.bias, one.labels, reduction="none")
    return 2 * (rounded - exact).square().mean().sqrt() / len(exact) ** 0.5


def _functions(device: Device, rows: int) -> dict[str, Callable[..., Tensor]]:
    found: dict[str, Callable[..., Tensor]] = {OWN: ours, "eager": eager}
    if device.dry_run or rows == COMPILED_ROWS:
        found[COMPILED] = compiled(device, eager)
    return found


def _calls(function: Callable[..., Tensor], one: Inputs) -> Calls:
    return [partial(step, function, one)]


def _extra_bytes(device: Device, calls: Calls, one: Inputs) -> int | None:
    """Memory that a call needs for a while, besides the weight's gradient; None where it cannot be known."""
    peak = device.peak_bytes(calls[0])
    return None if peak is None else peak - one.weight.numel() * one.weight.element_size()


def warm(device: Device, name: str) -> None:
    """Compile what a case runs, ours and torch's, at its own size."""
    rows = int(name.split()[1])
    one = draw(device, rows)
    with dispatch.use_backend(own_backend(device, "linear_cross_entropy")):
        for who, function in _functions(device, rows).items():
            if who != "eager":
                step(function, one)


def _named(found: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return dict(zip(("loss", "gradient of x", "gradient of weight", "gradient of bias"), found, strict=True))
