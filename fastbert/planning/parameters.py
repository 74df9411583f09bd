"""The parameters of a pre-training model, part by part. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastbert.planning.stacks import ALPHABET, ElmoShape, EncoderShape, ModelShape


@dataclass(frozen=True)
class PartParameters:
    """The parameters of one part, each counted once: tied weights belong to the part that comes first."""

    name: str
    count: int
    multiplied: int = 0
    """Weights of the part's matmuls, those that are tied to another part included: prepacked copies hold them."""
    is_layers: bool = False
    """True for parts of the layers, whose activations are checkpointed and whose weights FSDP gathers one by one."""
    uses: float = 1.0
    """How often a forward pass reads the part's weights: more than once where layers share them."""


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
    width, narrow, name, layers = stack.width, stack.embedding, stack.name, stack.distinct_layers
    rows = (("token embedding", stack.vocab), ("position embedding", stack.positions))
    owned = [*rows, ("segment embedding", stack.segments)]
    parts = [] if stack.shares_embeddings else [PartParameters(f"{label}", count * narrow) for label, count in owned]
    if not stack.shares_embeddings:
        normed = width if stack.embedding_projection == "matrix" else narrow
        parts.append(PartParameters("embedding norm", stack.norm_vectors * normed if stack.embedding_norm else 0))
    if stack.embedding_projection is not None:
        bias = width if stack.embedding_projection == "linear" else 0
        parts.append(PartParameters(f"{name}embedding projection", narrow * width + bias, narrow * width))
    parts.append(PartParameters("relative positions", stack.relative_parameters))
    *attention, first, second = stack.layer_matrices
    matrices = layers * sum(rows * columns for rows, columns in attention)
    relative = stack.queries * stack.relative_projections
    biases = (stack.queries + 2 * stack.keys + relative) * stack.projection_bias + width * stack.output_bias
    network = layers * (first[0] * first[1] + second[0] * second[1])
    network_biases = stack.network_outputs * stack.first_bias + width * stack.second_bias
    norms = 2 * layers - stack.absent_norms + (1 if stack.final_norm else 0)
    uses = stack.layers / layers
    parts += [
        PartParameters(f"{name}attention", matrices + layers * biases, matrices, is_layers=True, uses=uses),
        PartParameters(f"{name}feed-forward", network + layers * network_biases, network, is_layers=True, uses=uses),
        PartParameters(f"{name}norms of layers", norms * stack.norm_vectors * width, is_layers=True, uses=uses),
    ]
    if stack.convolution is not None:
        size, groups = stack.convolution
        matrix = size * width * width // groups
        parts.append(PartParameters("convolution", matrix + width + stack.norm_vectors * width, matrix))
    if stack.pooler:
        parts.append(PartParameters("pooler", _linear(width, width), width * width))
        parts.append(PartParameters("next-sentence head", _linear(width, 2), 2 * width))
    if stack.head == "detection":
        parts.append(PartParameters("detection head", _linear(width, width) + _linear(width, 1), width * (width + 1)))
        return parts
    inputs = stack.decoder_inputs
    if stack.head == "masked":
        transform = width * inputs + stack.transform_vectors * inputs
        parts.append(PartParameters(f"{name}prediction transform", transform, width * inputs))
    if not stack.tied:
        parts.append(PartParameters("vocabulary", stack.vocab * inputs))
    bias = stack.vocab if stack.decoder_bias else 0  # a tied weight is the token embedding
    parts.append(PartParameters(f"{name}vocabulary bias", bias, stack.vocab * inputs))
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
