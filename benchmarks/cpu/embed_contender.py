"""Embedders in turns: the first texts warm them up, then a round is one pass over all texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks.cpu.contender import WARMING
from fastbert.benchmarks.cpu.lineup import Lineup, Result
from fastbert.benchmarks.cpu.workloads import Workload, layer_operations
from fastbert.benchmarks.harness.measure import Row
from fastbert.embeddings.folder import read_settings
from fastbert.models import registry
from fastbert.tokenizers.loading import load_tokenizer

WARMING_TEXTS = 200
QUERIES, QUERY_TOKENS = 128, (8, 32)  # special tokens included


class EmbedLineup(Lineup):
    """The embedders that take part."""

    class_path = "fastbert.benchmarks.cpu.contender:TextContender"
    warms = False  # the first texts and the values that are compared have done it

    def measure(self, workload: Workload, rounds: int) -> Result:
        """Compare, then time, every contender that can run here, with its texts per second."""
        assert isinstance(workload, TextWorkload)
        self.say(f"{workload.name}: {workload.note}, {workload.operations / 1e9:,.0f} GFLOP")
        return with_texts(super().measure(workload, rounds), workload)


class QueryLineup(EmbedLineup):
    """The embedders that take part, each with one text at a time."""

    class_path = "fastbert.benchmarks.cpu.contender:QueryContender"

    def measured(self, name: str) -> dict[str, Any]:
        """Return the percentiles of a contender's calls."""
        details: dict[str, Any] = self.members[name].call("measured")
        return details


@dataclass(frozen=True, kw_only=True)
class TextWorkload(Workload):
    """Texts to embed."""

    texts: int


def workload(name: str, texts: Sequence[str], folder: Path) -> TextWorkload:
    """Return a workload of texts of one line each, with the operations that the model needs without padding."""
    model_folder, settings, _ = read_settings(folder)
    config, tokenizer = registry.read_config(model_folder), load_tokenizer(model_folder)
    limit = min(settings.max_length or tokenizer.model_max_length, config.max_sequence_length)
    lengths = np.diff(tokenizer.encode_ragged(list(texts), True, max_length=limit)[1]).tolist()
    tokens = sum(lengths)
    return TextWorkload(
        name=name,
        tokens=tokens,
        operations=layer_operations(config, lengths),  # no contender computes a pooler
        arrays=text_arrays(texts, texts[:WARMING_TEXTS]),
        note=f"{len(texts):,} texts, {tokens:,} tokens with special ones, at most {limit} each",
        texts=len(texts),
    )


def queries(name: str, texts: Sequence[str], folder: Path) -> TextWorkload | None:
    """Return the workload of single texts of `QUERY_TOKENS` tokens, of which a call computes one; None without any."""
    model_folder, _, _ = read_settings(folder)
    config, tokenizer = registry.read_config(model_folder), load_tokenizer(model_folder)
    lengths = np.diff(tokenizer.encode_ragged(list(texts), True)[1]).tolist()
    low, high = QUERY_TOKENS
    chosen = [(text, length) for text, length in zip(texts, lengths, strict=True) if low <= length <= high][:QUERIES]
    if not chosen:
        return None
    sizes = [length for _, length in chosen]
    mean = sum(sizes) / len(sizes)
    return TextWorkload(
        name=name,
        tokens=round(mean),
        operations=layer_operations(config, sizes) / len(sizes),
        arrays=text_arrays([text for text, _ in chosen], []),
        note=f"one of {len(sizes)} texts of {low} to {high} tokens per call, {mean:.1f} in the mean",
        texts=1,
    )


def text_arrays(texts: Sequence[str], first: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a workload, for `peers.texts_of`: its texts, and the first ones, which warm up."""
    named = {"texts": texts, WARMING: first}
    return {name: np.frombuffer("\n".join(lines).encode(), dtype=np.uint8) for name, lines in named.items()}


def with_texts(result: Result, work: TextWorkload) -> Result:
    """Return the rows with their texts per second."""

    def timed(row: Row) -> Row:
        speed = float(f"{work.texts / (row.median_ms / 1e3):.5g}")
        notes = [str(row.details["note"])] if "note" in row.details else []
        if "p99_ms" in row.details:
            notes.insert(0, f"99 % within {row.details['p99_ms']:,.4g} ms")
        note = "; ".join([f"{speed:,.0f} texts/s", *notes])
        return replace(row, details={**row.details, "texts_per_second": speed, "note": note})

    return Result([timed(row) for row in result.rows], result.absent)
