"""Small datasets and predictions for tests of reports and baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastbert.tasks.examples import Dataset, TaggedExample, TextExample


def texts(labels: Sequence[Any], pair: str | None = None) -> Dataset[TextExample]:
    return Dataset(
        "dev.tsv",
        tuple(
            TextExample(id=str(i), location=f"line {i + 1}", text=f"text {i}", pair=pair, label=label)
            for i, label in enumerate(labels)
        ),
    )


def labelled(names: Sequence[Any], probability: Sequence[float] = ()) -> list[dict[str, Any]]:
    return [
        {"id": str(i), "label": name, **({"probabilities": {name: probability[i]}} if probability else {})}
        for i, name in enumerate(names)
    ]


def tagged(*sentences: str) -> Dataset[TaggedExample]:
    """Sentences as `word/tag word/tag`."""
    pairs = [[item.split("/") for item in sentence.split()] for sentence in sentences]
    return Dataset(
        "dev.conll",
        tuple(
            TaggedExample(
                id=str(i), location=f"line {i}", words=tuple(w for w, _ in one), tags=tuple(t for _, t in one)
            )
            for i, one in enumerate(pairs)
        ),
    )
