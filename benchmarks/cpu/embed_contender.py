"""Embedders in turns: the first texts warm them up, then a round is one pass over all texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fastbert.benchmarks.cpu.contender import WARMING
from fastbert.benchmarks.cpu.lineup import Lineup, Result
from fastbert.benchmarks.cpu.workloads import Workload, layer_operations
from fastbert.benchmarks.harness.measure import Row
from fastbert.embeddings.folder import read_settings
from fastbert.models import registry
from fastbert.tokenizers.loading import load_tokenizer

WARMING_TEXTS = 200


class EmbedLineup(Lineup):
    """The embedders that take part."""

    class_path = "fastbert.benchmarks.cpu.contender:TextContender"

    def measure(self, workload: Workload, rounds: int) -> Result:
        """Compare, then time, every contender that can run here, with its texts per second."""
        assert isinstance(workload, TextWorkload)
        self.say(f"{workload.name}: {workload.note}, {workload.operations / 1e9:,.0f} GFLOP")
        return with_texts(super().measure(workload, rounds), workload)


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


def text_arrays(texts: Sequence[str], first: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a workload, for `peers.texts_of`: its texts, and the first ones, which warm up."""
    named = {"texts": texts, WARMING: first}
    return {name: np.frombuffer("\n".join(lines).encode(), dtype=np.uint8) for name, lines in named.items()}


def with_texts(result: Result, work: TextWorkload) -> Result:
    """Return the rows with their texts per second."""

    def timed(row: Row) -> Row:
        speed = float(f"{work.texts / (row.median_ms / 1e3):.5g}")
        notes = [str(row.details["note"])] if "note" in row.details else []
        note = "; ".join([f"{speed:,.0f} texts/s", *notes])
        return replace(row, details={**row.details, "texts_per_second": speed, "note": note})

    return Result([timed(row) for row in result.rows], result.absent)
