"""Attention with positions, forward and backward: DeBERTa's self-attention beside transformers' eager class, and
ModernBERT's local and global attention, from its projections on, beside torch's implementations.

All batches are full, so that packed and padded tokens are the same. Outputs and gradients are compared with float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert import ops
from fastbert.benchmarks.gpu.device import Device, open_device, own_backend
from fastbert.benchmarks.gpu.timing import REFUSALS, Calls, Case, Work, contest, willing
from fastbert.benchmarks.harness.measure import FASTBERT
from fastbert.ops import dispatch
from fastbert.ops.attention.rotary import rotate

TOKENS, WINDOW, BASE = 16384, 64, 10_000.0
TRANSFORMERS = "transformers eager"
# The allowed multiples of the rival's error against float64, and of the largest value.
FACTOR, FLOOR = 2.0, 1e-3


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One case: `disentangled`, `windowed` or `rotary` attention of full sequences."""

    kind: str
    length: int
    heads: int = 12
    head_dim: int = 64
    sequences: int = 0
    """0: as many as make `TOKENS`."""
    span: int = 256
    """Buckets of relative positions on each side."""

    @property
    def name(self) -> str:
        return f"{self.kind} step {self.length}"

    @property
    def count(self) -> int:
        """The number of sequences."""
        return self.sequences or max(TOKENS // self.length, 1)


def shapes(dry: bool) -> list[Shape]:
    """Return all cases."""
    if dry:
        small: dict[str, Any] = {"heads": 1, "head_dim": 32, "sequences": 1, "span": 4}
        return [Shape(kind="disentangled", length=12, **small), Shape(kind="windowed", length=20, **small)]
    cases = [Shape(kind="disentangled", length=length) for length in (128, 512, 2048)]
    cases += [Shape(kind="windowed", length=length) for length in (512, 8192)]
    return [*cases, Shape(kind="rotary", length=1024)]


def case_names(dry: bool) -> list[str]:
    return [shape.name for shape in shapes(dry)]


def run_case(name: str, dry: bool, seconds: float, without: Sequence[str] = ()) -> dict[str, Any]:
    """Compare and time forward and backward of one case."""
    device = open_device(dry)
    (shape,) = (candidate for candidate in shapes(dry) if candidate.name == name)
    case = Case()
    with dispatch.use_backend(own_backend(device, "attention")):
        backend = dispatch.preferred_backend("attention", device.torch_device)
        steps, leaves, gradient = _drawn(device, shape)
        candidates: dict[str, Callable[[], Calls]] = {
            contender: partial(_calls, step, leaves, gradient) for contender, step in steps.items()
        }
        contenders = willing(device, case, name, candidates, without)
        differences, outputs = _compared({each: steps[each] for each in contenders}, leaves, gradient)
        measured = contest(
            device,
            name,
            contenders,
            Work(tokens=shape.count * shape.length),
            seconds=seconds,
            differences=differences,
            outputs=outputs,
            details={"backend": backend, "sequences": shape.count, "heads": shape.heads, "head_dim": shape.head_dim},
        )
        case.add(measured)
    device.free()
    return case.as_json()


def _calls(step: Callable[..., Tensor], leaves: Sequence[Tensor], gradient: Tensor) -> Calls:
    return [partial(_step, step, leaves, gradient)]


def _step(step: Callable[..., Tensor], leaves: Sequence[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    """Return output and gradients."""
    out = step(*leaves)
    return (out.detach(), *torch.autograd.grad(out, leaves, gradient.to(out.dtype)))


def _compared(
    steps: Mapping[str, Callable[..., Tensor]], leaves: Sequence[Tensor], gradient: Tensor
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the largest differences from the first sequences' results in float64, and verdicts; the last contender is
    the reference, and fastbert's error may be twice its own."""
    if not steps:
        return {}, {}
    reference = list(steps)[-1]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    try:
        exact = _step(steps[reference], wide, gradient)
    except REFUSALS:  # memory, or a rival without float64
        return {}, dict.fromkeys(steps, "not compared")
    errors = {
        name: [float((x.double() - y).abs().max()) for x, y in zip(_step(step, leaves, gradient), exact, strict=True)]
        for name, step in steps.items()
    }
    floors = [FLOOR * max(1.0, float(y.abs().max())) for y in exact]
    outputs = {}
    for name, mine in errors.items():
        worst = max(
            (error - FACTOR * bound - floor, error, bound)
            for error, bound, floor in zip(mine, errors[reference], floors, strict=True)
        )
        outputs[name] = "close" if worst[0] <= 0 else f"wrong: off by {worst[1]:.3g}, {reference} by {worst[2]:.3g}"
    return {name: max(mine) for name, mine in errors.items()}, outputs


def _drawn(device: Device, shape: Shape) -> tuple[dict[str, Callable[..., Tensor]], list[Tensor], Tensor]:
    """Return the contenders, fastbert first and the reference last, their bf16 leaves, and the upstream gradient."""
    generator = torch.Generator(device.torch_device).manual_seed(shape.length)

    def normal(*size: int, factor: float = 1.0) -> Tensor:
        x = torch.randn(*size, generator=generator, device=device.torch_device) * factor
        return x.bfloat16().requires_grad_()

    width, tokens = shape.heads * shape.head_dim, shape.count * shape.length
    gradient = normal(tokens, width).detach()
    cu_seqlens = torch.arange(0, tokens + 1, shape.length, dtype=torch.int32, device=device.torch_device)
    if shape.kind == "disentangled":
        names = ("query_proj", "key_proj", "value_proj")
        projections = [x for _ in names for x in (normal(width, width, factor=width**-0.5), normal(width, factor=0.02))]
        leaves = [normal(tokens, width), normal(2 * shape.span, width), *projections]
        return _disentangled(shape, cu_seqlens), leaves, gradient
    return _rotary(device, shape, cu_seqlens), [normal(tokens, 3 * width)], gradient


# DeBERTa


def _disentangled(shape: Shape, cu_seqlens: Tensor) -> dict[str, Callable[..., Tensor]]:
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2 import modeling_deberta_v2 as theirs

    width = shape.heads * shape.head_dim
    config = DebertaV2Config(
        hidden_size=width,
        num_attention_heads=shape.heads,
        relative_attention=True,
        position_buckets=shape.span,
        max_relative_positions=512,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    module = theirs.DisentangledSelfAttention(config).to("meta")
    names = [f"{name}.{kind}" for name in ("query_proj", "key_proj", "value_proj") for kind in ("weight", "bias")]
    distances = torch.arange(1 - shape.length, shape.length, device=cu_seqlens.device)
    # Their positions are those of queries relative to keys.
    rows = theirs.make_log_bucket_position(-distances, shape.span, 512) + shape.span
    buckets = rows.clamp(0, 2 * shape.span - 1).int()
    mask = torch.ones(shape.count, 1, shape.length, shape.length, dtype=torch.bool, device=cu_seqlens.device)

    def fastbert(hidden: Tensor, table: Tensor, *projections: Tensor) -> Tensor:
        query, key, value = zip(projections[::2], projections[1::2], strict=True)

        def heads(x: Tensor, projection: tuple[Tensor, Tensor]) -> Tensor:
            return F.linear(x, *projection).unflatten(1, (shape.heads, shape.head_dim))

        out = ops.attention(
            heads(hidden, query),
            heads(hidden, key),
            heads(hidden, value),
            cu_seqlens,
            cu_seqlens,
            shape.length,
            shape.length,
            scale=1 / math.sqrt(3 * shape.head_dim),
            position_keys=heads(table, key),
            position_queries=heads(table, query),
            buckets=buckets,
        )
        return out.flatten(1)

    def transformers(hidden: Tensor, table: Tensor, *projections: Tensor) -> Tensor:
        inputs = (hidden.view(shape.count, shape.length, width), mask)
        parameters = dict(zip(names, projections, strict=True))
        out = torch.func.functional_call(module, parameters, inputs, {"rel_embeddings": table})
        context: Tensor = out[0]
        return context.flatten(0, 1)

    return {FASTBERT: fastbert, TRANSFORMERS: transformers}


# ModernBERT


def _rotary(device: Device, shape: Shape, cu_seqlens: Tensor) -> dict[str, Callable[..., Tensor]]:
    target, window = device.torch_device, WINDOW if shape.kind == "windowed" else None
    if device.dry_run and window is not None:
        window = 4
    frequencies = BASE ** (-torch.arange(0, shape.head_dim, 2, device=target) / shape.head_dim)
    angles = torch.arange(shape.length, device=target)[:, None] * frequencies
    table = torch.cat((angles.cos(), angles.sin()), 1)
    positions = torch.arange(shape.length, device=target).repeat(shape.count)
    index = torch.arange(shape.length, device=target)
    mask = None if window is None else (index[:, None] - index).abs() <= window

    def heads(qkv: Tensor) -> tuple[Tensor, ...]:
        return qkv.unflatten(1, (3, shape.heads, shape.head_dim)).unbind(1)

    def fastbert(qkv: Tensor) -> Tensor:
        sizes = (cu_seqlens, cu_seqlens, shape.length, shape.length)
        return ops.attention(*heads(qkv), *sizes, window=window, rotary=table).flatten(1)

    def turned(qkv: Tensor) -> tuple[Tensor, ...]:
        q, k, v = heads(qkv)
        size = (shape.count, shape.length)
        return tuple(
            x.unflatten(0, size).transpose(1, 2) for x in (rotate(q, table, positions), rotate(k, table, positions), v)
        )

    def rows(out: Tensor) -> Tensor:
        return out.transpose(1, 2).flatten(0, 1).flatten(1)

    def sdpa(qkv: Tensor) -> Tensor:
        return rows(F.scaled_dot_product_attention(*turned(qkv), attn_mask=mask))

    contenders: dict[str, Callable[..., Tensor]] = {FASTBERT: fastbert}
    if not device.dry_run and window is not None:
        contenders["flex"] = _flex(shape, window, target, turned, rows)
    return contenders | {"sdpa": sdpa}


def _flex(
    shape: Shape,
    window: int,
    target: torch.device,
    turned: Callable[[Tensor], tuple[Tensor, ...]],
    rows: Callable[[Tensor], Tensor],
) -> Callable[[Tensor], Tensor]:
    """Return torch's flex attention, compiled, which visits the blocks within the window alone."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def visible(sequence: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= window

    block_mask = create_block_mask(visible, None, None, shape.length, shape.length, device=str(target))
    compiled = torch.compile(flex_attention, dynamic=False)

    def flex(qkv: Tensor) -> Tensor:
        return rows(compiled(*turned(qkv), block_mask=block_mask))

    return flex
