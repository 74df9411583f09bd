"""The masked-language-model loss: vocabulary matmul and cross-entropy, forward and backward, time and memory.

x (rows, 768) bf16, weight (30522, 768) and bias fp32, under bf16 autocast; eager torch writes bf16 logits, casts them
to fp32, and takes the mean of F.cross_entropy. Loss and gradients are compared with float64 before timing.
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
from fastbert.benchmarks.gpu import liger
from fastbert.benchmarks.gpu.check import Verdict, compiled, judged
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.benchmarks.gpu.timing import Calls, Case, Work, contest, willing
from fastbert.benchmarks.gpu.worker import announce
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.ops import dispatch

ROWS = (10_000, 4_096, 40_000)
COMPILED_ROWS = 10_000  # torch compiles per number of rows: only this one
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
    """Return the case that torch compiles something for."""
    return case_names(dry)[:1]


def draw(device: Device, rows: int) -> Inputs:
    """Draw random states as after a LayerNorm, and weights as a new model has them."""
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


def run_fastbert(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss."""
    return ops.linear_cross_entropy(x, weight, bias, labels).loss_sum * (1 / len(labels))


def eager(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the loss as models do: logits in fp32 for the softmax, unless they are float64."""
    logits = F.linear(x, weight, bias)
    return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels, reduction=reduction)


def step(function: Callable[..., Tensor], inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the loss and its gradients, with matmuls in bf16."""
    with torch.autocast(inputs.x.device.type, dtype=torch.bfloat16, enabled=inputs.x.dtype != torch.float64):
        loss = function(inputs.x, inputs.weight, inputs.bias, inputs.labels)
    return loss.detach(), *torch.autograd.grad(loss, inputs.leaves)


def run_case(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Compare, measure the memory, and time forward and backward at one number of rows."""
    device = open_device(dry)
    rows = int(name.split()[1])
    inputs, case = draw(device, rows), Case()
    with dispatch.use_backend(own_backend(device, "linear_cross_entropy")):
        judged_results = _check(device, inputs)
        candidates: dict[str, Callable[[], Calls]] = {
            contender: partial(_calls, function, inputs) for contender, function in _functions(device, rows).items()
        }
        runnable = willing(device, case, name, candidates, without)
        extra = {contender: _extra_bytes(device, calls, inputs) for contender, calls in runnable.items()}
        width = inputs.weight.shape[1]
        measured = contest(
            device,
            name,
            runnable,
            Work(tokens=rows, operations=6.0 * rows * width * inputs.weight.shape[0]),
            seconds=seconds,
            differences={contender: difference for contender, (difference, _) in judged_results.items()},
            outputs={
                **dict.fromkeys(runnable, "not compared"),
                **{contender: verdict for contender, (_, verdict) in judged_results.items()},
            },
            details={
                "backend": dispatch.preferred_backend("linear_cross_entropy", device.torch_device),
                "logits_bytes": 4 * rows * inputs.weight.shape[0],
            },
        )
    case.add(
        [
            replace(each, row=replace(each.row, details={**each.row.details, "extra_bytes": extra[each.row.contender]}))
            for each in measured
        ]
    )
    device.free()
    return case.as_json()


def _check(device: Device, inputs: Inputs) -> dict[str, Verdict]:
    """Compare loss and gradients of fastbert and Liger-Kernel with float64, if its logits fit into memory."""
    names = ("x", "weight", "bias")
    double = replace(inputs, **{name: getattr(inputs, name).detach().double().requires_grad_() for name in names})
    try:
        exact, eager_results = _named(step(eager, double)), _named(step(eager, inputs))
        eager_results["loss"] = exact["loss"] + max(
            (eager_results["loss"] - exact["loss"]).abs(), _spread(inputs, double)
        )
    except torch.OutOfMemoryError:
        return {}
    functions = {FASTBERT: run_fastbert}
    if liger.measurable(device):
        functions[liger.LIGER] = liger.linear_cross_entropy
    results = {}
    for name, function in functions.items():
        announce(name)
        find = partial(_named_step, function, inputs)
        results[name] = judged(device, find, exact, eager_results)
    return results


def _spread(inputs: Inputs, double: Inputs) -> Tensor:
    """Return two standard deviations of the mean of eager torch's errors per row: the mean itself may be right by
    chance."""
    with torch.no_grad():
        exact = eager(double.x, double.weight, double.bias, inputs.labels, reduction="none")
        with torch.autocast(inputs.x.device.type, dtype=torch.bfloat16):
            rounded = eager(inputs.x, inputs.weight, inputs.bias, inputs.labels, reduction="none")
    return 2 * (rounded - exact).square().mean().sqrt() / len(exact) ** 0.5


def _functions(device: Device, rows: int) -> dict[str, Callable[..., Tensor]]:
    functions: dict[str, Callable[..., Tensor]] = {FASTBERT: run_fastbert, "eager": eager}
    if liger.measurable(device):
        functions[liger.LIGER] = liger.linear_cross_entropy
    if device.dry_run or rows == COMPILED_ROWS:
        functions[COMPILED] = compiled(device, eager)
    return functions


def _calls(function: Callable[..., Tensor], inputs: Inputs) -> Calls:
    return [partial(step, function, inputs)]


def _extra_bytes(device: Device, calls: Calls, inputs: Inputs) -> int | None:
    """Return the temporary memory of a call besides the weight's gradient; None if the device does not count it."""
    peak = device.peak_bytes(calls[0])
    return None if peak is None else peak - inputs.weight.numel() * inputs.weight.element_size()


def warm(device: Device, name: str) -> None:
    """Compile fastbert's and torch's kernels of a case, at its own size."""
    rows = int(name.split()[1])
    inputs = draw(device, rows)
    with dispatch.use_backend(own_backend(device, "linear_cross_entropy")):
        for contender, function in _functions(device, rows).items():
            if contender != "eager":
                step(function, inputs)


def _named_step(function: Callable[..., Tensor], inputs: Inputs) -> dict[str, Tensor]:
    return _named(step(function, inputs))


def _named(results: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return dict(zip(("loss", "gradient of x", "gradient of weight", "gradient of bias"), results, strict=True))
