"""Attention beside torch's implementations: forward and backward, full and half-empty batches, with and without
dropout.

fastbert's is packed. Peers work on padded tensors with a key mask, or on packed tokens where torch supports them.
Before timing, outputs and gradients of a short and a long sequence are compared with float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastbert import ops
from fastbert.benchmarks.gpu import attention_peers, moments
from fastbert.benchmarks.gpu.attention_peers import CHECKED_HEADS, Inputs, largest
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
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

TOKENS = 32768
LONG_DRAWS = 12  # of dropout masks, for more than 512 tokens
LENGTHS = (128, 512, 2048, 8192)
# The allowed multiple of eager torch's error: fastbert's by the project's rule; a peer beyond its own computes other
# results, and does not count as a rival.
OWN_FACTOR, PEER_FACTOR = 2.0, 4.0
# A peer without dropout, which is also measured in cases with dropout.
WITHOUT_DROPOUT = "sdpa cudnn, no dropout"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One case of attention. `padding`: full, half (uniform lengths, half of the padded batch is empty), lognormal."""

    length: int
    sequences: int
    padding: str = "full"
    dropout: float = 0.0
    direction: str = "forward"
    causal: bool = False
    bias: bool = False
    head_dim: int = 64
    heads: int = 16
    compiled: bool = False
    """Beside `torch.compile` of the eager form instead of the other peers."""

    @property
    def name(self) -> str:
        """Return the case's unique name in the results."""
        extras = [f"head_dim {self.head_dim}"] if self.head_dim != 64 else []
        extras += [word for word in ("causal", "bias", "compiled") if getattr(self, word)]
        words = ["attention", self.direction, str(self.length), self.padding, f"dropout {self.dropout:g}", *extras]
        return " ".join(words)

    def lengths(self) -> list[int]:
        """Return the lengths, the same on every call; the longest is `length` wherever there is padding."""
        count, longest = self.sequences, self.length
        if self.padding == "full":
            return [longest] * count
        if self.padding == "half":
            lengths = [math.ceil((2 * i + 1) * longest / (2 * count)) for i in range(count)]
        else:
            normal = torch.empty(count).log_normal_(3.5, 0.6, generator=torch.Generator().manual_seed(0))
            lengths = normal.long().clamp(5, longest).sort().values.tolist()
        lengths[-1] = longest
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()
        return [lengths[i] for i in order]

    def work(self) -> Work:
        """Count real tokens only: 4 S^2 D operations per head forward, two and a half times that backward."""
        lengths = self.lengths()
        squares = sum(length * length for length in lengths)
        operations = 4.0 * squares * self.head_dim * self.heads * (0.5 if self.causal else 1.0)
        tokens = sum(lengths)
        row_bytes = 2 * self.heads * self.head_dim
        forward = self.direction == "forward"
        # q, k, v, out; backward reads these and the gradient of out, and writes three gradients.
        return Work(
            tokens=tokens,
            operations=operations if forward else 2.5 * operations,
            moved_bytes=float(tokens * row_bytes * (4 if forward else 8)),
        )


def shapes(dry: bool) -> list[Shape]:
    """Return all cases, those with a goal first."""
    if dry:
        return _dry_shapes()
    cases = [
        Shape(length=length, sequences=TOKENS * empty // length, padding=padding, dropout=dropout, direction=direction)
        for padding, empty in (("full", 1), ("half", 2))
        for length in LENGTHS
        for dropout in (0.1, 0.0)
        for direction in ("forward", "backward")
    ]
    single: list[dict[str, Any]] = [
        {"length": 128, "sequences": 840, "padding": "lognormal", "dropout": 0.1},
        {"length": 512, "sequences": 64, "bias": True},
        {"length": 2048, "sequences": 16, "causal": True},
        *({"length": length, "sequences": TOKENS // length, "dropout": 0.1} for length in (16, 32, 64)),
        *({"length": 512, "sequences": 64, "head_dim": width} for width in (32, 96, 128)),
        *({"length": n, "sequences": TOKENS // n, "dropout": 0.1, "compiled": True} for n in (128, 512, 2048)),
    ]
    return cases + [Shape(**case, direction=direction) for case in single for direction in ("forward", "backward")]


def _dry_shapes() -> list[Shape]:
    small: dict[str, Any] = {"heads": 1}
    return [
        Shape(length=24, sequences=2, dropout=0.1, direction="forward", **small),
        Shape(length=24, sequences=2, padding="half", dropout=0.1, direction="backward", **small),
        Shape(length=130, sequences=1, dropout=0.1, direction="forward", heads=1),
        Shape(length=24, sequences=2, bias=True, direction="backward", **small),
    ]


def case_names(dry: bool) -> list[str]:
    return headline_names(dry) + other_names(dry)


def headline_names(dry: bool) -> list[str]:
    """Return the cases of 128 and 512 tokens that have a goal."""
    return [shape.name for shape in shapes(dry) if _is_headline(shape, dry)]


def other_names(dry: bool) -> list[str]:
    """Return the other cases: long sequences, masks, other widths."""
    return [shape.name for shape in shapes(dry) if not _is_headline(shape, dry)]


def _is_headline(shape: Shape, dry: bool) -> bool:
    plain = not (shape.causal or shape.bias or shape.compiled) and shape.head_dim == 64 and shape.padding != "lognormal"
    return plain and shape.length in ((24, 40) if dry else (128, 512))


def run_case(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Compare and time one case, without peers that crashed the process before."""
    device = open_device(dry)
    (shape,) = (candidate for candidate in shapes(dry) if candidate.name == name)
    with dispatch.use_backend(own_backend(device, "attention")):
        backend = dispatch.preferred_backend("attention", device.torch_device)
        case = _measure(device, shape, without, seconds, {**asdict(shape), "backend": backend})
    device.free()
    return case.as_json()


def make_inputs(device: Device, shape: Shape, seed: int) -> Inputs:
    """Draw one set of random inputs."""
    return Inputs.draw(
        device.torch_device,
        shape.lengths(),
        shape.length,
        heads=shape.heads,
        head_dim=shape.head_dim,
        dropout=shape.dropout,
        causal=shape.causal,
        with_bias=shape.bias,
        seed=seed,
    )


def run_fastbert(inputs: Inputs) -> Tensor:
    """Call the public operation on packed tokens."""
    return ops.attention(
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.cu_seqlens,
        inputs.cu_seqlens,
        inputs.longest,
        inputs.longest,
        causal=inputs.causal,
        dropout_p=inputs.dropout,
        dropout_key=inputs.key,
        bias=inputs.bias,
    )


def _measure(device: Device, shape: Shape, without: Sequence[str], seconds: float, details: dict[str, Any]) -> Case:
    case = Case()
    set_bytes = 3 * 2 * sum(shape.lengths()) * shape.heads * shape.head_dim  # q, k, v
    sets = [make_inputs(device, shape, seed) for seed in range(input_sets(device, set_bytes))]
    backward = shape.direction == "backward"
    announce(FASTBERT)
    judged = judge(shape, sets[0], run_fastbert, padded=False, factor=OWN_FACTOR)
    differences, outputs = {FASTBERT: judged[0]}, {FASTBERT: judged[1]}
    # In a dry run, whose kernels are interpreted, many draws would take long.
    if shape.dropout and judged[1] == "close" and not device.dry_run:
        outputs[FASTBERT] = judge_masks(shape, sets[0], run_fastbert, padded=False)
    candidates: dict[str, Callable[[], Calls]] = {FASTBERT: partial(_calls, run_fastbert, sets, backward)}
    for name, peer in _peers(shape).items():
        candidates[name] = partial(_calls, peer.call, sets, backward, peer.padded)
        if peer.compares and name not in without:
            announce(name)
            try:
                if shape.dropout:
                    outputs[name] = judge_masks(shape, sets[0], peer.call, peer.padded)
                    continue
                judged = judge(shape, sets[0], peer.call, peer.padded, PEER_FACTOR)
            except REFUSALS:
                continue  # tried again below, where the refusal is recorded
            differences[name], outputs[name] = judged
    contenders = willing(device, case, shape.name, candidates, without)
    if FASTBERT not in contenders:
        return case
    outputs = {name: outputs.get(name, "not compared") for name in contenders}
    case.add(
        contest(
            device,
            shape.name,
            contenders,
            shape.work(),
            seconds=seconds,
            differences=differences,
            outputs=outputs,
            details=details,
        )
    )
    return case


def _peers(shape: Shape) -> dict[str, attention_peers.Peer]:
    if shape.compiled:
        return {"eager compiled": attention_peers.compiled()}
    peers = attention_peers.dense(bias=shape.bias)
    peers |= attention_peers.packed(shape.padding != "full")
    if shape.dropout:
        peers[WITHOUT_DROPOUT] = attention_peers.sdpa("cudnn", dropout=False)
    return peers


def _calls(function: Callable[[Inputs], Tensor], sets: list[Inputs], backward: bool, padded: bool = False) -> Calls:
    """Return forward calls, or backward calls of results that were computed before."""
    if not backward:
        return each(partial(without_gradient, function), sets)
    return [partial(_backward, function(inputs), inputs, padded) for inputs in sets]


def _backward(out: Tensor, inputs: Inputs, padded: bool) -> tuple[Tensor, ...]:
    gradient = inputs.padded_gradient if padded else inputs.gradient
    return torch.autograd.grad(out, inputs.leaves(padded), gradient, retain_graph=True)


# Comparing


def judge(
    shape: Shape, inputs: Inputs, function: Callable[[Inputs], Tensor], padded: bool, factor: float
) -> tuple[float, str]:
    """Return the largest difference from float64 of the checked sequences, and whether it is within `factor` times the
    error of eager torch in the same dtype."""
    results = _checked(inputs, function(inputs), padded)
    names = ("output",) if shape.direction == "forward" else ("dq", "dk", "dv", "dbias")
    errors = {name: largest(results[name], inputs.exact[name]) for name in names if name in inputs.exact}
    wrong = [name for name, error in errors.items() if not error <= factor * inputs.rounding[name] + 1e-5]
    verdict = "close"
    if wrong:
        name = wrong[0]
        verdict = f"wrong: {name} is off by {errors[name]:.3g}, eager torch by {inputs.rounding[name]:.3g}"
    # A NaN among the errors is the result.
    return next((error for error in errors.values() if math.isnan(error)), max(errors.values())), verdict


def judge_masks(shape: Shape, inputs: Inputs, function: Callable[[Inputs], Tensor], padded: bool) -> str:
    """Return whether mean and variance over dropout masks, of the output or of dv, are as expected: "close", or which
    is not. Each call draws a new mask: fastbert's keys are replaced, torch's generator advances."""
    name = "output" if shape.direction == "forward" else "dv"
    key = inputs.key

    def draw() -> Tensor:
        if inputs.key is not None:
            inputs.key = torch.randint_like(inputs.key, 2**62)
        return _checked(inputs, function(inputs), padded)[name]

    try:
        draws = moments.DRAWS if shape.length <= LENGTHS[1] else LONG_DRAWS
        return moments.judge(moments.sample(draw, draws), inputs.expected[name])
    finally:
        inputs.key = key


def _checked(inputs: Inputs, out: Tensor, padded: bool) -> dict[str, Tensor]:
    """Return output and gradients of the checked sequences and heads, packed; upstream gradients are zero elsewhere."""
    gradient = inputs.only_checked(padded)
    gradients = torch.autograd.grad(out, inputs.leaves(padded), gradient)
    results = {
        name: inputs.checked_rows(tensor.detach(), padded)
        for name, tensor in zip(("output", "dq", "dk", "dv"), (out, *gradients))
    }
    if inputs.bias is not None:
        results["dbias"] = gradients[3][:CHECKED_HEADS]
    return results
