"""Predict the memory of an encoder on a batch, so that a contender that would not fit is left out instead of killed.

The prediction counts weights and the activations of one layer. It is meant to be near, rather below what a contender
uses than above: a wrong refusal would hide a contender, and a process that is killed after all is reported too.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastbert.config import BertConfig
from fastbert.training.watchdogs.host_memory import read_host_memory

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
# Contenders that compute attention's scores of all heads at once, and how many copies they hold.
SCORES = {"transformers eager": 2, "onnxruntime": 1, "ctranslate2": 1}
PACKED = ("fastbert", "llama.cpp")  # the others compute padding too
PREPACKED = ("fastbert", "accelerated")
PROCESS_BYTES = 200 << 20  # of an interpreter with its libraries


@dataclass(frozen=True, kw_only=True)
class BatchSize:
    """A batch and the model that computes it."""

    sequences: int
    tokens: int
    padded_to: int
    hidden_size: int
    intermediate_size: int
    heads: int
    parameters: int
    matrices: int
    """Those of the parameters that layers multiply by."""

    @staticmethod
    def of(config: BertConfig, sequences: int, tokens: int, padded_to: int) -> BatchSize:
        """Return the size of a batch of a model."""
        width, inner = config.hidden_size, config.intermediate_size
        layer = 4 * width * width + 2 * width * inner + 9 * width + inner
        rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
        return BatchSize(
            sequences=sequences,
            tokens=tokens,
            padded_to=padded_to,
            hidden_size=width,
            intermediate_size=inner,
            heads=config.num_attention_heads,
            parameters=config.num_hidden_layers * layer + rows * width + width * width,
            matrices=config.num_hidden_layers * (4 * width * width + 2 * width * inner),
        )


def needed(size: BatchSize, contender: str, dtype: str) -> int:
    """Return the bytes that a contender needs: its process, weights, and the activations of one layer."""
    # int8 contenders hold activations in bf16 or fp32, and embeddings in their first dtype.
    element = max(2, ELEMENT_BYTES[dtype])
    packed = contender.startswith(PACKED)
    rows = size.tokens if packed else size.sequences * size.padded_to
    # Input, queries, keys and values, attention's result and output; the feed-forward network's activations, which
    # fastbert computes for some of the tokens at a time.
    activations = rows * (6 * size.hidden_size + (0 if packed else size.intermediate_size)) * element
    copies = next((count for name, count in SCORES.items() if contender.startswith(name)), 0)
    scores = copies * size.sequences * size.heads * size.padded_to**2 * element
    return PROCESS_BYTES + _weights(size, contender, dtype) + activations + scores


def _weights(size: BatchSize, contender: str, dtype: str) -> int:
    """Return the bytes of weights; fastbert keeps the original ones beside the prepacked matrices."""
    if not contender.startswith(PREPACKED):
        return size.parameters * ELEMENT_BYTES[dtype]
    original = 4 if dtype == "fp32" or (dtype == "int8" and contender.startswith("accelerated")) else 2
    return size.parameters * original + size.matrices * ELEMENT_BYTES[dtype]


def available() -> int | None:
    """Return the bytes until the tightest limit of this process: the machine's free memory, its container's, or that of
    the shell; None where the system tells none."""
    memory = read_host_memory()
    limit = None if memory is None else memory.tightest
    return None if limit is None else limit.free


def lack(size: BatchSize | None, contender: str, dtype: str, held: int = 0) -> str | None:
    """Return why a contender does not fit into memory, of which its process holds `held` bytes already; None if it
    fits, and where the size or the memory is not known."""
    free = available()
    if size is None or free is None:
        return None
    bytes_needed = needed(size, contender, dtype)
    if bytes_needed <= free + held:
        return None
    return (
        f"not enough memory: needs about {gigabytes(bytes_needed)}, {gigabytes(free + held)} are available; choose a"
        " smaller --model, or other --workloads"
    )


def gigabytes(size: float) -> str:
    """Format bytes."""
    return f"{size / 1e9:,.1f} GB" if size < 10e9 else f"{size / 1e9:,.0f} GB"
