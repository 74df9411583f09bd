"""The parameters of a pre-training model, part by part. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastbert.planning.shape import ALPHABET, ElmoShape, EncoderShape, ModelShape


@dataclass(frozen=True)
class PartParameters:
    """The parameters of one part, each counted once: tied weights belong to the part that comes first."""

    name: str
    count: int
    multiplied: int = 0
    """Weights of the part's matmuls, those that are tied to another part included: prepacked copies hold them."""
    is_layers: bool = False
    """True for parts of the layers, whose activations are checkpointed and whose weights FSDP gathers one by one."""


def parameters(shape: ModelShape) -> list[PartParameters]:
    """Return the parameters of a model's parts."""
    counted: list[PartParameters] = []
    for stack in shape:
        counted += _elmo(stack) if isinstance(stack, ElmoShape) else _encoder(stack)
    return [part for part in counted if part.count or part.multiplied]


def total(parts: Iterable[PartParameters]) -> int:
    """Return the number of parameters of all parts."""
    return sum(part.count for part in parts)


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _encoder(stack: EncoderShape) -> list[PartParameters]:
    width, inner, narrow, name = stack.width, stack.inner, stack.embedding, stack.name
    norm = 2 * narrow if stack.embedding_norm else 0
    rows = (("token embedding", stack.vocab), ("position embedding", stack.positions))
    owned = [*rows, ("segment embedding", stack.segments)]
    parts = [] if stack.shares_embeddings else [PartParameters(f"{label}", count * narrow) for label, count in owned]
    if not stack.shares_embeddings:
        parts.append(PartParameters("embedding norm", norm))
    if narrow != width:
        parts.append(PartParameters(f"{name}embedding projection", _linear(narrow, width), narrow * width))
    square = stack.layers * width * width
    attention = stack.layers * 4 * _linear(width, width)
    network = stack.layers * (_linear(width, inner) + _linear(inner, width))
    norms = stack.layers * 4 * width + (2 * width if stack.final_norm else 0)
    parts += [
        PartParameters(f"{name}attention", attention, 4 * square, is_layers=True),
        PartParameters(f"{name}feed-forward", network, stack.layers * 2 * width * inner, is_layers=True),
        PartParameters(f"{name}norms of layers", norms, is_layers=True),
    ]
    if stack.pooler:
        parts.append(PartParameters("pooler", _linear(width, width), width * width))
        parts.append(PartParameters("next-sentence head", _linear(width, 2), 2 * width))
    if stack.head == "detection":
        parts.append(PartParameters("detection head", _linear(width, width) + _linear(width, 1), width * (width + 1)))
        return parts
    if stack.head == "masked":
        transform = _linear(width, narrow) + 2 * narrow
        parts.append(PartParameters(f"{name}prediction transform", transform, width * narrow))
    bias = stack.vocab if stack.head == "masked" else 0  # the weight is the token embedding
    parts.append(PartParameters(f"{name}vocabulary bias", bias, stack.vocab * narrow))
    return parts


def _elmo(stack: ElmoShape) -> list[PartParameters]:
    width, units, filters = stack.projection, stack.units, sum(stack.filters)
    convolutions = sum(size * count * stack.characters + count for size, count in enumerate(stack.filters, 1))
    highways = stack.highways * _linear(filters, 2 * filters)
    layer = 2 * (2 * 4 * units * width + units * width + 4 * units)
    return [
        PartParameters("character embedding", ALPHABET * stack.characters),
        PartParameters("character convolution", convolutions),
        PartParameters("highways", highways, stack.highways * 2 * filters * filters),
        PartParameters("word projection", _linear(filters, width), filters * width),
        PartParameters("LSTMs", stack.layers * layer, is_layers=True),
        PartParameters("vocabulary", _linear(width, stack.vocab), stack.vocab * width),
    ]
