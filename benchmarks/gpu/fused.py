"""The patterns between matmuls, each one pass over its rows: the LayerNorm family, bias + GELU, the embedding.

Rows are bf16, weights and tables fp32. A case is a pattern at one width, forward (saving tensors for backward) and
backward; eager torch composes the same operations as under autocast, LayerNorm in fp32, with torch's own dropout.
Before timing, fastbert is compared with float64 under the same masks. Bytes are the minimum of the pattern, so that the
rate relative to a copy's shows the remaining potential.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert import ops
from fastbert.benchmarks.gpu import linear
from fastbert.benchmarks.gpu.check import compiled, judged_apart
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.benchmarks.gpu.timing import Calls, Case, Work, contest, each, input_sets, willing, without_gradient
from fastbert.benchmarks.gpu.worker import announce
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.ops import dispatch
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.dropout.masks import token_mask

EPS, DROPOUT = 1e-12, 0.1
TOKENS, DRY_TOKENS, LENGTH = 32768, 32, 128
VOCABULARY, POSITIONS, SEGMENTS = 30522, 512, 2
ROWS = torch.bfloat16
COMPILED = "eager compiled"

Named = Mapping[str, Tensor]
Drop = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Tensors by name, the names of those that require gradients, the upstream gradient, and the dropout."""

    tensors: dict[str, Tensor]
    leaves: tuple[str, ...]
    gradient: Tensor
    dropout: TokenDropout | None

    def leaves_of(self, tensors: Named) -> list[Tensor]:
        """Return the leaves among tensors of these names."""
        return [tensors[name] for name in self.leaves]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """An operation: fastbert's, the same from torch's operations, and the minimum of bytes that it moves."""

    operation: str
    rows: tuple[str, ...]
    """Inputs of shape (tokens, width) in bf16."""
    columns: tuple[str, ...]
    """Inputs of shape (width,) in fp32."""
    fastbert: Callable[[Inputs], Tensor]
    eager: Callable[[Named, torch.dtype, Drop], Tensor]
    element_bytes: tuple[int, int]
    """Forward and backward."""
    drops: bool = False
    widths: tuple[int, ...] = (768, 1024)


def _eager_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute LayerNorm in the weights' dtype, which is fp32 under autocast, and cast back."""
    return F.layer_norm(x.to(weight.dtype), weight.shape, weight, bias, EPS).to(x.dtype)


def _layer_norm(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    return _eager_norm(t["x"], t["weight"], t["bias"])


def _dropout_add(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    return _eager_norm(drop(t["x"] + t["x_bias"].to(rows)) + t["residual"], t["weight"], t["bias"])


def _gelu_norm(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    return _eager_norm(_bias_gelu(t, rows, drop), t["weight"], t["bias"])


def _bias_gelu(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    return F.gelu(t["x"] + t["x_bias"].to(rows))


def _embedding(t: Named, rows: torch.dtype, drop: Drop) -> Tensor:
    summed = F.embedding(t["ids"], t["words"]) + F.embedding(t["places"], t["positions"])
    summed = summed + F.embedding(t["kinds"], t["segments"])
    return drop(_eager_norm(summed, t["weight"], t["bias"]).to(rows))


def _fastbert_embedding(inputs: Inputs) -> Tensor:
    t = inputs.tensors
    ids, tables = (t["ids"], t["places"], t["kinds"]), (t["words"], t["positions"], t["segments"])
    with torch.autocast(t["ids"].device.type, dtype=ROWS):
        return ops.embedding_layer_norm(ids, tables, t["weight"], t["bias"], EPS, inputs.dropout)


def _fastbert_dropout_add(inputs: Inputs) -> Tensor:
    t = inputs.tensors
    return ops.dropout_add_layer_norm(
        t["x"], t["residual"], t["weight"], t["bias"], EPS, inputs.dropout, x_bias=t["x_bias"]
    )


def _fastbert_norm(inputs: Inputs) -> Tensor:
    return ops.layer_norm(inputs.tensors["x"], inputs.tensors["weight"], inputs.tensors["bias"], EPS)


def _fastbert_gelu_norm(inputs: Inputs) -> Tensor:
    t = inputs.tensors
    return ops.gelu_layer_norm(t["x"], t["x_bias"], t["weight"], t["bias"], EPS, "none")


def _fastbert_bias_gelu(inputs: Inputs) -> Tensor:
    return ops.bias_gelu(inputs.tensors["x"], inputs.tensors["x_bias"], "none")


PATTERNS = {
    pattern.operation: pattern
    for pattern in (
        # Reads x, writes y; reads x and the gradient, writes one.
        Pattern(
            operation="layer_norm",
            rows=("x",),
            columns=("weight", "bias"),
            fastbert=_fastbert_norm,
            eager=_layer_norm,
            element_bytes=(4, 6),
        ),
        # Reads x and residual, writes y and the sum; reads gradient and sum, writes two gradients.
        Pattern(
            operation="dropout_add_layer_norm",
            rows=("x", "residual"),
            columns=("x_bias", "weight", "bias"),
            fastbert=_fastbert_dropout_add,
            eager=_dropout_add,
            element_bytes=(8, 8),
            drops=True,
        ),
        Pattern(
            operation="gelu_layer_norm",
            rows=("x",),
            columns=("x_bias", "weight", "bias"),
            fastbert=_fastbert_gelu_norm,
            eager=_gelu_norm,
            element_bytes=(4, 6),
        ),
        # Writes y, reads a gradient; the rows of the tables are added.
        Pattern(
            operation="embedding_layer_norm",
            rows=(),
            columns=("weight", "bias"),
            fastbert=_fastbert_embedding,
            eager=_embedding,
            element_bytes=(2, 2),
            drops=True,
        ),
        Pattern(
            operation="bias_gelu",
            rows=("x",),
            columns=("x_bias",),
            fastbert=_fastbert_bias_gelu,
            eager=_bias_gelu,
            element_bytes=(4, 6),
            widths=(3072, 4096),
        ),
    )
}


def case_names(dry: bool) -> list[str]:
    """Return the cases: patterns and matmuls with a goal first, then those that are only reported."""
    widths = {name: (96,) if dry else pattern.widths for name, pattern in PATTERNS.items()}
    patterns = [f"fused {name} {width}" for name, pattern_widths in widths.items() for width in pattern_widths]
    others = [
        f"fused {name} {widths[name][0]} {variant}"
        for name, variant in (("dropout_add_layer_norm", "inference"), ("embedding_layer_norm", "frequent"))
        if not dry or variant == "inference"
    ]
    return [*patterns, *linear.case_names(dry), *others]


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
    if name in linear.case_names(dry):
        return linear.run_case(name, dry, seconds, without)
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
    checks = judged_apart(device, partial(_ours, pattern, sets[0]), exact, eager)
    del exact, eager
    functions = _functions(device, pattern, "inference" in variant)
    for workload, backward, (difference, verdict) in zip(workloads(name), (False, True), checks):
        inference = "inference" in variant and not backward
        candidates = {
            contender: partial(calls, function, sets, backward, inference) for contender, function in functions.items()
        }
        case.rows += contest(
            device,
            workload,
            willing(device, case, workload, candidates, without),
            Work(tokens=tokens, moved_bytes=moved_bytes(pattern, sets[0], backward, "inference" in variant)),
            seconds=seconds,
            differences={FASTBERT: difference},
            outputs={
                FASTBERT: verdict,
                **{contender: "not compared" for contender in candidates if contender != FASTBERT},
            },
            details={"backend": dispatch.preferred_backend(pattern.operation, device.torch_device), "width": width},
        )


def _functions(device: Device, pattern: Pattern, undropped: bool) -> dict[str, Callable[[Inputs], Tensor]]:
    def eager(inputs: Inputs) -> Tensor:
        return pattern.eager(inputs.tensors, ROWS, drop)

    drop = partial(F.dropout, p=DROPOUT) if pattern.drops and not undropped else _keep
    whole = compiled(device, partial(pattern.eager, rows=ROWS, drop=drop))
    return {FASTBERT: pattern.fastbert, "eager": eager, COMPILED: lambda inputs: whole(inputs.tensors)}


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
    if name in linear.case_names(device.dry_run):
        linear.warm(device, name)
        return
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
