"""The patterns between matmuls, each one pass over its rows: the LayerNorm family, bias + GELU, the embedding.

Rows are bf16, weights and tables fp32. A case is a pattern at one width, forward (saving tensors for backward) and
backward; eager torch composes the same operations as under autocast, LayerNorm in fp32, with torch's own dropout.
Before timing, fastbert is compared with float64 under the same masks. Bytes are the minimum of the pattern, so that the
rate relative to a copy's shows the remaining potential.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.benchmarks.gpu import liger, moments
from fastbert.benchmarks.gpu.check import Verdict, compiled, judged_apart
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.benchmarks.gpu.fused_patterns import PATTERNS, ROWS, Inputs, Named, Pattern
from fastbert.benchmarks.gpu.timing import (
    REFUSALS,
    Calls,
    Case,
    Work,
    contest,
    each,
    input_sets,
    willing,
    without_gradient,
)
from fastbert.benchmarks.gpu.worker import announce
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.ops import dispatch
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.dropout.masks import token_mask

DROPOUT = 0.1
TOKENS, DRY_TOKENS, LENGTH = 32768, 32, 128
CHECKED = 1024  # rows, by their moments over dropout masks
VOCABULARY, POSITIONS, SEGMENTS = 30522, 512, 2
COMPILED = "eager compiled"


def case_names(dry: bool) -> list[str]:
    """Return the cases: patterns with a goal first, then those that are only reported."""
    widths = {name: pattern.widths for name, pattern in PATTERNS.items()}
    if dry:
        widths = dict.fromkeys(("dropout_add_layer_norm", "embedding_layer_norm", "bias_gelu"), (96,))
    patterns = [f"fused {name} {width}" for name, pattern_widths in widths.items() for width in pattern_widths]
    others = [
        f"fused {name} {widths[name][0]} {variant}"
        for name, variant in (("dropout_add_layer_norm", "inference"), ("embedding_layer_norm", "frequent"))
        if not dry
    ]
    return [*patterns, *others]


def warm_names(dry: bool) -> list[str]:
    """Return the cases that differ in what is compiled."""
    return [name for name in case_names(dry) if not name.endswith("frequent")]


def workloads(name: str) -> tuple[str, str]:
    """Return the names of a case's rows: forward, and backward."""
    _, operation, *rest = name.split()
    return " ".join([operation, "forward", *rest]), " ".join([operation, "backward", *rest])


def run_case(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Compare and time both directions of a case; "inference": without dropout, and forward saves nothing; "frequent":
    ids with the frequencies of words."""
    device = open_device(dry)
    _, operation, width, *variant = name.split()
    pattern, case = PATTERNS[operation], Case()
    with dispatch.use_backend(own_backend(device, operation)):
        _measure(device, case, pattern, name, int(width), tuple(variant), seconds, without)
    device.free()
    return case.as_json()


def _measure(
    device: Device,
    case: Case,
    pattern: Pattern,
    name: str,
    width: int,
    variant: tuple[str, ...],
    seconds: float,
    without: Sequence[str],
) -> None:
    tokens = DRY_TOKENS if device.dry_run else TOKENS
    make = partial(draw, device, pattern, tokens, width, variant=variant)
    # Including the gradient, which backward reads too; the embedding's inputs are at least as large as one of rows.
    set_bytes = 2 * tokens * width * (1 + max(1, len(pattern.rows)))
    sets = [make(seed) for seed in range(input_sets(device, set_bytes))]
    announce(FASTBERT)
    exact, eager = (_composed(pattern, sets[0], dtype) for dtype in (torch.float64, ROWS))
    checks = {FASTBERT: judged_apart(device, partial(_ours, pattern, sets[0]), exact, eager)}
    functions = _functions(device, pattern, "inference" in variant)
    if liger.LIGER in functions:
        checks[liger.LIGER] = _check_liger(device, pattern, sets[0])
    del exact, eager
    masks = _check_masks(functions, sets[0]) if sets[0].dropout is not None else {}
    for workload, backward in zip(workloads(name), (False, True)):
        judged = {contender: verdicts[backward] for contender, verdicts in checks.items()}
        inference = "inference" in variant and not backward
        candidates = {
            contender: partial(calls, function, sets, backward, inference) for contender, function in functions.items()
        }
        case.add(
            contest(
                device,
                workload,
                willing(device, case, workload, candidates, without),
                Work(tokens=tokens, moved_bytes=moved_bytes(pattern, sets[0], backward, "inference" in variant)),
                seconds=seconds,
                differences={contender: difference for contender, (difference, _) in judged.items()},
                outputs={
                    **dict.fromkeys(candidates, "not compared"),
                    **masks,
                    **{contender: verdict for contender, (_, verdict) in judged.items()},
                },
                details={"backend": dispatch.preferred_backend(pattern.operation, device.torch_device), "width": width},
            )
        )


def _functions(device: Device, pattern: Pattern, undropped: bool) -> dict[str, Callable[[Inputs], Tensor]]:
    def eager(inputs: Inputs) -> Tensor:
        return pattern.eager(inputs.tensors, ROWS, drop)

    drop = partial(F.dropout, p=DROPOUT) if pattern.drops and not undropped else _keep
    whole = compiled(device, partial(pattern.eager, rows=ROWS, drop=drop))
    functions = {FASTBERT: pattern.fastbert, "eager": eager, COMPILED: lambda inputs: whole(inputs.tensors)}
    if pattern.liger is not None and liger.measurable(device):
        call = pattern.liger
        functions[liger.LIGER] = lambda inputs: call(inputs.tensors)
    return functions


def _check_liger(device: Device, pattern: Pattern, inputs: Inputs) -> tuple[Verdict, Verdict]:
    """Compare Liger-Kernel's operation with float64 as fastbert's, by what it computes."""
    same = replace(pattern, eager=pattern.liger_eager or pattern.eager)
    exact, eager = (_composed(same, inputs, dtype) for dtype in (torch.float64, ROWS))
    call = pattern.liger
    assert call is not None
    return judged_apart(device, lambda: _gradients(call(inputs.tensors), inputs, inputs.tensors), exact, eager)


def _check_masks(functions: Mapping[str, Callable[[Inputs], Tensor]], inputs: Inputs) -> dict[str, str]:
    """Compare what torch compiled, with dropout, with eager torch by the moments over masks; empty if refused."""
    try:
        actual, expected = (
            moments.sample(lambda name=name: functions[name](inputs)[:CHECKED])
            for name in (COMPILED, "eager")  # type: ignore[misc]
        )
    except REFUSALS:
        return {}  # the reason is recorded when it is to be timed
    return {COMPILED: moments.judge(actual, expected)}


def _keep(x: Tensor) -> Tensor:
    return x


def calls(function: Callable[[Inputs], Tensor], sets: Sequence[Inputs], backward: bool, inference: bool) -> Calls:
    """Return forward calls, which save tensors for backward unless for `inference`, or backward calls of earlier
    results."""
    if backward:
        return [partial(_backward, function(inputs), inputs) for inputs in sets]
    return each(partial(without_gradient, function) if inference else function, sets)


def _backward(out: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, inputs.leaves_of(inputs.tensors), inputs.gradient, retain_graph=True)


def warm(device: Device, name: str) -> None:
    """Compile fastbert's and torch's kernels of a case, at its own size."""
    _, operation, width, *variant = name.split()
    pattern = PATTERNS[operation]
    inputs = draw(device, pattern, DRY_TOKENS if device.dry_run else TOKENS, int(width), 0, variant=tuple(variant))
    with dispatch.use_backend(own_backend(device, operation)):
        functions = _functions(device, pattern, "inference" in variant)
        for contender in (FASTBERT, COMPILED):
            calls(functions[contender], [inputs], True, False)[0]()
            if "inference" in variant:
                without_gradient(functions[contender], inputs)


# Inputs, and their expected results


def draw(device: Device, pattern: Pattern, tokens: int, width: int, seed: int, variant: tuple[str, ...] = ()) -> Inputs:
    """Draw random rows, weights near one and zero, dropout keys of sequences of LENGTH tokens."""
    target = device.torch_device
    generator = torch.Generator(target).manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator, device=target, dtype=dtype)

    tensors = {name: normal(tokens, width, dtype=ROWS) for name in pattern.rows}
    tensors |= {name: 0.1 * normal(width) + float(name == "weight") for name in pattern.columns}
    gradient = normal(tokens, width, dtype=ROWS)
    order, length = torch.arange(tokens, device=target), min(LENGTH, tokens // 2)
    if pattern.operation == "embedding_layer_norm":
        words, positions = (64, 32) if device.dry_run else (VOCABULARY, POSITIONS)
        tables = {"words": words, "positions": positions, "segments": SEGMENTS}
        tensors |= {name: 0.1 * normal(rows, width) for name, rows in tables.items()}
    leaves = tuple(tensors)
    for name in leaves:
        tensors[name].requires_grad_()
    if pattern.operation == "embedding_layer_norm":
        tensors["ids"] = _ids(tokens, words, generator, "frequent" in variant)
        tensors["places"] = order % length
        tensors["kinds"] = (order % length >= length // 2).long()
    dropout = None
    if pattern.drops and "inference" not in variant:
        key = torch.randint(0, 2**62, (-(-tokens // length),), generator=generator, device=target)
        dropout = TokenDropout(DROPOUT, key, order // length, order % length, Site.FEED_FORWARD_OUTPUT.of_layer(1))
    return Inputs(tensors=tensors, leaves=leaves, gradient=gradient, dropout=dropout)


def _ids(tokens: int, words: int, generator: torch.Generator, frequent: bool) -> Tensor:
    """Draw ids of which every word occurs once before any repeats, so that the rows to be read are known; or with the
    frequencies of words."""
    target = generator.device
    if frequent:
        weights = 1 / (10 + torch.arange(words, device=target, dtype=torch.float32))
        return torch.multinomial(weights, tokens, replacement=True, generator=generator)
    rounds = [torch.randperm(words, generator=generator, device=target) for _ in range(-(-tokens // words))]
    return torch.cat(rounds)[:tokens]


def moved_bytes(pattern: Pattern, inputs: Inputs, backward: bool, undropped: bool) -> float:
    """Count the minimum of bytes that a call reads and writes; statistics and weights (width,) are negligible.

    The embedding reads each used row once. Backward it writes the fp32 gradient of the sum once, reads it once per
    table, since each table groups the tokens in a different order, and writes the tables' whole gradients.
    """
    elements, each_bytes = inputs.gradient.numel(), pattern.element_bytes[backward]
    if pattern.operation == "dropout_add_layer_norm" and undropped:
        each_bytes = 6  # no sum is saved; both gradients are the same tensor
    if pattern.operation != "embedding_layer_norm":
        return float(each_bytes * elements)
    width, names = inputs.gradient.shape[1], (("ids", "words"), ("places", "positions"), ("kinds", "segments"))
    total = each_bytes * elements + sum(4 * width * len(inputs.tensors[ids].unique()) for ids, _ in names)
    if backward:
        total += 4 * elements * (1 + len(names)) + sum(4 * inputs.tensors[table].numel() for _, table in names)
    return float(total)


def _ours(pattern: Pattern, inputs: Inputs) -> dict[str, Tensor]:
    out = pattern.fastbert(inputs)
    return _gradients(out, inputs, inputs.tensors)


def _composed(pattern: Pattern, inputs: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return output and gradients of torch's operations with fastbert's masks, rows in a dtype; float64 applies to all
    tensors."""
    exact = dtype == torch.float64
    tensors = {
        name: (x.detach().to(dtype) if exact and x.is_floating_point() else x.detach())
        for name, x in inputs.tensors.items()
    }
    for x in inputs.leaves_of(tensors):
        x.requires_grad_()

    def drop(x: Tensor) -> Tensor:
        return x if inputs.dropout is None else x * token_mask(inputs.dropout, x.shape[-1], x.dtype)

    with dispatch.use_backend("eager"):
        return _gradients(pattern.eager(tensors, dtype, drop), inputs, tensors)


def _gradients(out: Tensor, inputs: Inputs, tensors: Named) -> dict[str, Tensor]:
    gradients = torch.autograd.grad(out, inputs.leaves_of(tensors), inputs.gradient.to(out.dtype))
    return {"output": out.detach(), **{f"gradient of {name}": x for name, x in zip(inputs.leaves, gradients)}}
