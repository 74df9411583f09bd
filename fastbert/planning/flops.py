"""Floating-point operations of a pre-training step, part by part, and model FLOPs utilisation. Imports no torch.

Counted are matmuls and attention, a multiplication and an addition as two, as torch's `FlopCounterMode` counts them:
attention by the real lengths of sequences, causal and windowed attention by the pairs that it reads, the head of masked
tokens and what follows attention in the last layer by the tokens that are predicted. Every count is linear in a batch's
statistics, so that `ModelFlops` takes a microsecond per step; what a forward pass computes once, such as projections of
relative positions, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from fastbert.planning.shape import model_shape
from fastbert.planning.stacks import ElmoShape, EncoderShape, ModelShape

if TYPE_CHECKING:
    from fastbert.config import BertConfig
    from fastbert.packing import PackedBatch

Checkpointing = Literal["none", "layer", "selective"]
Counts = dict[str, float]
"""Operations per unit of each statistic of a batch."""
OPTIMIZER_FLOPS = {"adamw": 17, "stableadamw": 20, "lamb": 23, "muon": 17}
"""Operations per parameter: moments, bias correction, decay, step, and the norm of all gradients."""
NEWTON_SCHULZ = 5  # iterations of Muon


@dataclass(frozen=True, kw_only=True)
class BatchStatistics:
    """What the operations of a step depend on; statistics of micro-batches add up."""

    sequences: float
    tokens: float
    squared_lengths: float
    """The sum of n^2 over sequences of n tokens: the pairs of tokens that attend to each other."""
    predictions: float
    """Tokens with a label; for ELMo those of one direction."""
    words: float = 0.0
    """Distinct words of each micro-batch, whose characters ELMo reads."""
    windows: float = 0.0
    """Windows of their characters: one more than the characters of each word, begin and end included, at most 50."""
    visible: Mapping[int, float] = field(default_factory=dict)
    """By the tokens of an attention window on each side, the pairs that attend to each other. For other windows as many
    are counted as there may be."""

    def __add__(self, other: BatchStatistics) -> BatchStatistics:
        """Return the statistics of both batches."""
        both = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        both_visible = self.visible.keys() & other.visible.keys()
        visible = {window: self.visible[window] + other.visible[window] for window in both_visible}
        return BatchStatistics(**both, visible=visible)

    def __mul__(self, factor: float) -> BatchStatistics:
        """Return the statistics of so many such batches."""
        scaled = {name: getattr(self, name) * factor for name in _SUMS}
        return BatchStatistics(**scaled, visible={window: n * factor for window, n in self.visible.items()})

    def dot(self, counts: Mapping[str, float]) -> float:
        """Return the operations of the batch, from those per unit of each statistic."""
        return sum(count * self._value(name) for name, count in counts.items())

    def _value(self, name: str) -> float:
        if not name.startswith(_WITHIN):
            value: float = getattr(self, name)
            return value
        window = int(name.removeprefix(_WITHIN))
        most = min(self.squared_lengths, self.tokens * (2 * window + 1))
        return self.visible.get(window, most)

    @classmethod
    def of(cls, batches: Iterable[PackedBatch], windows: Iterable[int] = ()) -> BatchStatistics:
        """Return the statistics of a step's micro-batches, with the pairs that attend to each other within each of
        `windows`; their tensors should be on the CPU.

        ELMo's words are counted, their windows estimated at 9 per word: ids do not tell the characters.
        """
        windows = tuple(windows)
        total = cls(sequences=0, tokens=0, squared_lengths=0, predictions=0, visible=dict.fromkeys(windows, 0))
        for batch in batches:
            words, lengths = int(batch.input_ids.unique().numel()), batch.cu_seqlens.diff().long()
            total += cls(
                sequences=len(batch),
                tokens=batch.num_tokens,
                squared_lengths=int(lengths.square().sum()),
                predictions=0 if batch.labels is None else len(batch.labels),
                words=words,
                windows=WINDOWS_PER_WORD * words,
                visible={window: sum(map(visible_pairs, lengths.tolist(), repeat(window))) for window in windows},
            )
        return total


_SUMS = tuple(item.name for item in fields(BatchStatistics) if item.name != "visible")
_WITHIN = "pairs within "  # the names of the statistics of windows
WINDOWS_PER_WORD = 9.0


def visible_pairs(length: float, window: int | None) -> float:
    """Return the pairs of tokens of a sequence that attend to each other, with `window` tokens on each side."""
    if window is None or length <= window + 1:
        return length * length
    return length * (2 * window + 1) - window * (window + 1)


@dataclass(frozen=True)
class PartFlops:
    """The operations of one part of a step, per unit of each statistic."""

    name: str
    forward: Counts
    backward: Counts
    recomputed: Counts
    """Operations of the forward pass that the backward pass repeats."""


def parts(shape: ModelShape, checkpointing: Checkpointing = "none", *, fused_attention: bool = True) -> list[PartFlops]:
    """Return the operations of a step's parts.

    `fused_attention` counts the scores that fused kernels compute again in the backward pass, instead of saving them.
    """
    counted: list[PartFlops] = []
    for stack in shape:
        if isinstance(stack, ElmoShape):
            counted += _elmo_parts(stack, checkpointing)
        else:
            counted += _encoder_parts(stack, checkpointing, fused_attention)
    return counted


@dataclass(frozen=True)
class StepFlops:
    """The operations of a step."""

    forward: float
    backward: float
    recomputed: float

    @property
    def model(self) -> float:
        """Return the operations that the model requires: without recomputation."""
        return self.forward + self.backward

    @property
    def total(self) -> float:
        """Return the operations that are computed."""
        return self.model + self.recomputed


def step_flops(counted: Iterable[PartFlops], statistics: BatchStatistics) -> StepFlops:
    """Return the operations of a step of a batch with these statistics."""
    listed = list(counted)
    return StepFlops(
        *(
            sum(statistics.dot(getattr(part, phase)) for part in listed)
            for phase in ("forward", "backward", "recomputed")
        )
    )


class ModelFlops:
    """The model FLOPs of training steps, for model FLOPs utilisation (MFU): forward and backward, no recomputation."""

    def __init__(self, config: BertConfig | Any, objective: str, generator_size: float | None = None) -> None:
        """Count the operations per unit of each statistic once. Raises `UserError` as `model_shape`."""
        self._counts: Counts = {}
        shape = model_shape(config, objective, generator_size)
        self.windows: tuple[int, ...] = windows_of(shape)
        """The windows of the model's attention, of whose pairs `BatchStatistics.of` should count."""
        for part in parts(shape):
            for counts in (part.forward, part.backward):
                _add(self._counts, counts)

    def of(self, statistics: BatchStatistics) -> float:
        """Return the model FLOPs of a step of a batch with these statistics."""
        return statistics.dot(self._counts)

    def utilisation(self, statistics: BatchStatistics, seconds: float, peak: float | None) -> float | None:
        """Return the share of `peak`, in FLOP/s of all devices, that a step of so many seconds used; None if the peak
        is unknown."""
        return None if not peak or seconds <= 0 else self.of(statistics) / (seconds * peak)


def model_flops(
    config: BertConfig | Any,
    statistics: BatchStatistics,
    objective: str = "mlm+nsp",
    generator_size: float | None = None,
) -> float:
    """Return the model FLOPs of a training step: forward and backward pass, no recomputation."""
    return ModelFlops(config, objective, generator_size).of(statistics)


def windows_of(shape: ModelShape) -> tuple[int, ...]:
    """Return the different attention windows of a model's layers, in tokens on each side."""
    windows = (window for stack in shape if isinstance(stack, EncoderShape) for window in stack.windows)
    return tuple(sorted({window for window in windows if window is not None}))


def optimizer_flops(optimizer: str, shape: ModelShape, count: int) -> float:
    """Return the operations of an optimiser's step on `count` parameters; those of Muon's matmuls are computed once,
    whatever the number of processes is."""
    flops = float(OPTIMIZER_FLOPS[optimizer] * count)
    for stack in shape if optimizer == "muon" else ():
        if isinstance(stack, EncoderShape):
            # x x', its square, and their product with x: 2 n per element of each result.
            flops += stack.distinct_layers * sum(
                NEWTON_SCHULZ * (4 * min(matrix) ** 2 * max(matrix) + 2 * min(matrix) ** 3)
                for matrix in stack.layer_matrices
            )
    return flops


def _add(total: Counts, counts: Mapping[str, float], factor: float = 1.0) -> Counts:
    for name, count in counts.items():
        total[name] = total.get(name, 0.0) + factor * count
    return total


def _matmul(rows: Mapping[str, float], inputs: float, outputs: float) -> Counts:
    """Return the operations of a matmul of (rows, inputs) with (inputs, outputs); `rows` are those per statistic."""
    return {name: 2.0 * share * inputs * outputs for name, share in rows.items()}


def _sum(*counts: Mapping[str, float]) -> Counts:
    total: Counts = {}
    for each in counts:
        _add(total, each)
    return total


def _scaled(counts: Mapping[str, float], factor: float) -> Counts:
    return _add({}, counts, factor)


def _linear_part(name: str, forward: Counts, *, trains: bool = True, recomputed: bool = False) -> PartFlops:
    """Return a part whose backward pass has a matmul for the gradient of the input and one for that of the weight."""
    backward = _scaled(forward, 2.0) if trains else {}
    return PartFlops(name, forward, backward, dict(forward) if recomputed else {})


def _encoder_parts(stack: EncoderShape, checkpointing: Checkpointing, fused_attention: bool) -> list[PartFlops]:
    width, layers, name = stack.width, stack.layers, stack.name
    every: Counts = {"tokens": 1.0}
    last = last_layer_rows(stack)
    again = checkpointing == "layer"
    counted = []
    if stack.embedding_projection is not None:
        counted.append(_linear_part(f"{name}embedding projection", _matmul(every, stack.embedding, width)))
    queries, both = stack.queries, stack.inner + stack.network_outputs
    projections = _scaled(_matmul(every, width, queries + 2 * stack.keys), layers)
    outputs = _sum(_scaled(_matmul(every, queries, width), layers - 1), _matmul(last, queries, width))
    counted.append(_linear_part(f"{name}attention projections", _sum(projections, outputs), recomputed=again))
    # Scores and their product with the values; causal attention reads n (n + 1) / 2 of n^2 pairs.
    pairs: Counts = {}
    for window in stack.windows or (None,) * layers:
        name_of_pairs = "squared_lengths" if window is None else f"{_WITHIN}{window}"
        _add(pairs, {name_of_pairs: 0.5, "tokens": 0.5} if stack.causal else {name_of_pairs: 1.0})
    matmul = _scaled(pairs, 2.0 * queries)
    recomputed = _scaled(matmul, (2.0 if again else 0.0) + (1.0 if fused_attention else 0.0))
    counted.append(PartFlops(f"{name}attention", _scaled(matmul, 2.0), _scaled(matmul, 4.0), recomputed))
    if stack.relative_rows:  # of each token's queries and keys with their tables
        relative = _scaled(_matmul(every, queries, stack.relative_rows), layers)
        counted.append(_linear_part(f"{name}relative positions", relative, recomputed=again))
    network = _sum(_scaled(_matmul(every, width, both), layers - 1), _matmul(last, width, both))
    counted.append(_linear_part(f"{name}feed-forward", network, recomputed=again))
    if stack.convolution is not None:
        size, groups = stack.convolution
        counted.append(_linear_part("convolution", _matmul(every, size * width, width / groups)))
    if stack.pooler:
        pooler = _sum(_matmul({"sequences": 1.0}, width, width), _matmul({"sequences": 1.0}, width, 2))
        counted.append(_linear_part("pooler and next-sentence head", pooler, trains=stack.pooler_trains))
    predicted: Counts = {"predictions": 1.0}
    if stack.head == "detection":
        head = _sum(_matmul(every, width, width), _matmul(every, width, 1))
        return [*counted, _linear_part("detection head", head)]
    transform = _matmul(predicted, width, stack.decoder_inputs) if stack.head == "masked" else {}
    decoder = _matmul(predicted, stack.decoder_inputs, stack.vocab)
    if transform:
        counted.append(_linear_part(f"{name}prediction transform", transform))
    counted.append(_linear_part(f"{name}vocabulary", decoder))
    if stack.shares_embeddings:  # samples of the generator, which are not differentiated
        counted.append(_linear_part("generator samples", _sum(transform, decoder), trains=False))
    return counted


def last_layer_rows(stack: EncoderShape) -> Counts:
    """Return the rows of the last layer behind its attention, those that a head reads, per unit of each statistic."""
    # A convolution behind the only layer reads all of its tokens.
    if stack.head == "detection" or (stack.convolution is not None and stack.layers == 1):
        return {"tokens": 1.0}
    return {"predictions": 1.0, "sequences": 1.0} if stack.pooler else {"predictions": 1.0}


def _elmo_parts(stack: ElmoShape, checkpointing: Checkpointing) -> list[PartFlops]:
    del checkpointing  # LSTMs save their states
    width, units, filters = stack.projection, stack.units, sum(stack.filters)
    words: Counts = {"words": 1.0}
    # All widths are one matmul, in which narrow filters have zeros behind their width.
    convolution = _matmul({"windows": 1.0}, len(stack.filters) * stack.characters, filters)
    highways = _scaled(_matmul(words, filters, 2 * filters), stack.highways)
    both: Counts = {"tokens": 2.0}
    later: Counts = {"tokens": 2.0, "sequences": -2.0}  # the first token of a sequence follows no state
    gates, recurrent, output = (
        _matmul(both, width, 4 * units), _matmul(later, width, 4 * units), _matmul(both, units, width),
    )  # fmt: skip
    # The gradient of the recurrent weight is one matmul over all rows.
    backward = _sum(_scaled(gates, 2.0), recurrent, _matmul(both, width, 4 * units), _scaled(output, 2.0))
    return [
        _linear_part("character convolution", convolution),
        _linear_part("highways", _sum(highways, _matmul(words, filters, width))),
        PartFlops("LSTMs", _scaled(_sum(gates, recurrent, output), stack.layers), _scaled(backward, stack.layers), {}),
        _linear_part("vocabulary", _matmul({"predictions": 2.0}, width, stack.vocab)),
    ]
