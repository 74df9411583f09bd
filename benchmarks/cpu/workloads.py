"""The batches and matmuls that the encoder benchmark measures, and their useful work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from fastbert.benchmarks.cpu.memory_needs import BatchSize
from fastbert.config import BertConfig

SEED = 20
FIRST_ID = 1000  # lower ids are special or unused in the released vocabularies
# Lengths exp(MEAN + DEVIATION z) at 32 equally likely z, capped at 128: 37 % of a batch padded to 128 are real tokens.
LOGNORMAL_MEAN, LOGNORMAL_DEVIATION = 3.7, 0.6
LONGEST = 128
MATMUL_ROWS = (4096, 1500, 128, 16)


@dataclass(frozen=True, kw_only=True)
class ForwardWork:
    """What a forward pass must compute and move, whatever the implementation."""

    matmuls: float
    """Multiplications and additions of matmuls with weights."""
    attention: float
    """Multiplications and additions of queries with keys, and of weights with values."""
    weights: float
    """Elements of the matrices, each read once."""
    activations: float
    """Elements of activations of all tokens, each counted when it is written and when it is read."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The computation of one call, the same for every contender; stored as one file that all of them read."""

    name: str
    tokens: int
    operations: float
    """Useful multiplications and additions: of real tokens, in matmuls and attention."""
    arrays: dict[str, np.ndarray]
    note: str = ""
    forward: ForwardWork | None = None
    """The work of a forward pass by kind, for the model of its time; None for other calls."""
    size: BatchSize | None = None
    """The sizes from which memory is predicted; None: it is not."""

    def save(self, path: Path) -> None:
        """Write the arrays for `CpuContender.open`."""
        np.savez(path, **self.arrays)  # type: ignore[arg-type]


def lognormal_lengths(sequences: int, longest: int) -> list[int]:
    """Return lengths in tokens at equally likely quantiles of a lognormal distribution, shuffled and capped."""
    quantiles = [NormalDist().inv_cdf((index + 0.5) / sequences) for index in range(sequences)]
    lengths = [round(math.exp(LOGNORMAL_MEAN + LOGNORMAL_DEVIATION * z) * longest / LONGEST) for z in quantiles]
    order = np.random.default_rng(SEED).permutation(sequences)
    return [min(max(lengths[index], 1), longest) for index in order]


def batch(name: str, lengths: Sequence[int], padded_to: int, config: BertConfig, *, origin: str = "") -> Workload:
    """Return a workload of random tokens in sequences of these lengths; `origin` says where the lengths are from."""
    tokens = sum(lengths)
    size = f"{tokens:,} real tokens, {tokens / (len(lengths) * padded_to):.0%} of {len(lengths)} x {padded_to}"
    first = FIRST_ID if config.vocab_size > 2 * FIRST_ID else 0
    return Workload(
        name=name,
        tokens=tokens,
        operations=encoder_operations(config, lengths),
        arrays={
            "input_ids": np.random.default_rng(SEED).integers(first, config.vocab_size, tokens, dtype=np.int64),
            "lengths": np.asarray(lengths, np.int64),
            "padded_to": np.asarray(padded_to, np.int64),
        },
        note=f"{size}; {origin}" if origin else size,
        forward=forward_work(config, lengths),
        size=BatchSize.of(config, len(lengths), tokens, padded_to),
    )


def batches(config: BertConfig, quick: bool = False) -> list[Workload]:
    """Return the workloads of an encoder; `quick` ones have an eighth of the sequences."""
    many, few = (4, 1) if quick else (32, 8)
    return [
        batch("lognormal", lognormal_lengths(many, LONGEST), LONGEST, config),
        batch("full-128", [LONGEST] * many, LONGEST, config),
        batch("full-512", [512] * few, 512, config),
        batch("latency-16", [16], 16, config),
        batch("latency-128", [128], 128, config),
    ]


def layer_operations(config: BertConfig, lengths: Sequence[int]) -> float:
    """Count the operations of a forward pass through the layers: 8 H^2 + 4 H I per token and layer, and 4 S^2 H per
    sequence and layer."""
    width, inner = config.hidden_size, config.intermediate_size
    matmuls = sum(lengths) * (8 * width * width + 4 * width * inner)
    return float(config.num_hidden_layers * matmuls) + attention_operations(config, lengths)


def attention_operations(config: BertConfig, lengths: Sequence[int]) -> float:
    """Count the operations of attention in all layers: 4 S^2 H per sequence and layer."""
    squares = sum(length * length for length in lengths)
    return 4.0 * config.num_hidden_layers * config.hidden_size * squares


def encoder_operations(config: BertConfig, lengths: Sequence[int]) -> float:
    """Count the operations of the layers, and 2 H^2 per sequence in the pooler."""
    return layer_operations(config, lengths) + 2.0 * config.hidden_size**2 * len(lengths)


def forward_work(config: BertConfig, lengths: Sequence[int]) -> ForwardWork:
    """Return the work of a forward pass by kind.

    Per token a layer writes and reads 6 H elements of activations: its input, queries, keys and values, attention's
    result, and that of its output projection. Those of the feed-forward network stay in the cache, since it runs over
    some of the tokens at a time. The embeddings' H elements are read once.
    """
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    attention = attention_operations(config, lengths)
    return ForwardWork(
        matmuls=encoder_operations(config, lengths) - attention,
        attention=attention,
        weights=float(layers * (4 * width * width + 2 * width * inner) + width * width),
        activations=float(sum(lengths) * width * (12 * layers + 1)),
    )


def unread_operations(config: BertConfig) -> float:
    """Count the operations of the last layer after attention for a token whose output is not used."""
    return 2.0 * config.hidden_size * (config.hidden_size + 2 * config.intermediate_size)


def matmuls(config: BertConfig, quick: bool = False) -> list[Workload]:
    """Return the matmuls of one layer (attention's output, both of the feed-forward network; queries, keys and values
    in one) for several numbers of tokens, each with as many weights as the model has layers."""
    width, inner = config.hidden_size, config.intermediate_size
    shapes = ((width, width), (width, inner), (inner, width), (width, 3 * width))
    rows = MATMUL_ROWS[2:] if quick else MATMUL_ROWS
    return [_matmul(m, k, n, config.num_hidden_layers) for k, n in shapes for m in rows]


@lru_cache
def _weights(k: int, n: int, layers: int) -> np.ndarray:
    rng = np.random.default_rng(SEED)
    return rng.standard_normal((layers, n, k), np.float32) * np.float32(0.02)


def _matmul(m: int, k: int, n: int, layers: int) -> Workload:
    rng = np.random.default_rng(SEED + 1)
    return Workload(
        name=f"{m} x {k} to {n}",
        tokens=m,
        operations=2.0 * m * k * n,
        arrays={
            "x": rng.standard_normal((m, k), np.float32),
            "weight": _weights(k, n, layers),
            "bias": rng.standard_normal(n, np.float32),
        },
    )
