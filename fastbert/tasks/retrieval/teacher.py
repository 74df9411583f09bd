"""A teacher's scores of groups of texts: those of a cross-encoder, or the similarities of an embedder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, TextGroup


def taught(dataset: Dataset[TextGroup], folder: Path, on_message: Callable[[str], None]) -> Dataset[TextGroup]:
    """Return groups with the scores that a teacher gives to each query with its texts: the logits of a cross-encoder,
    or an embedder's similarities.

    Equal pairs are scored once. Raises `UserError` for a folder that holds neither.
    """
    pairs: dict[tuple[str, str], int] = {}
    for example in dataset:
        for text in example.texts[1:]:
            pairs.setdefault((example.texts[0], text), len(pairs))
    scores = _scores(folder, list(pairs), on_message)
    examples = (
        replace(example, teacher=tuple(scores[pairs[example.texts[0], text]] for text in example.texts[1:]))
        for example in dataset
    )
    return Dataset(dataset.path, tuple(examples))


def _scores(folder: Path, pairs: list[tuple[str, str]], on_message: Callable[[str], None]) -> list[float]:
    """Return the teacher's score of each pair."""
    from fastbert.models import registry
    from fastbert.reranking.cross_encoder import CrossEncoder

    if _is_classifier(folder):
        encoder = CrossEncoder(folder)
        on_message(f"teacher: the cross-encoder {folder} scores {len(pairs):,} pairs, {encoder.how}")
        logits: list[float] = encoder.predict(pairs, activation="identity").tolist()
        return logits
    if any(kind.endswith("ForSequenceClassification") for kind in _classes(folder)):
        raise UserError(
            f"--teacher {folder}: has {registry.read_config(folder).num_labels} labels; a teacher of rankings has one"
        )
    from fastbert.embeddings.folder import load_embedder

    model, tokenizer, settings = load_embedder(folder)
    on_message(f"teacher: the embedder {folder} scores {len(pairs):,} pairs")
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    index = {text: number for number, text in enumerate(texts)}
    vectors = model.embed(texts, tokenizer, normalize=settings.similarity in (None, "cosine") or None)
    left = vectors[[index[query] for query, _ in pairs]]
    right = vectors[[index[text] for _, text in pairs]]
    similarities: list[float] = (left * right).sum(1).tolist()
    return similarities


def _classes(folder: Path) -> list[str]:
    from fastbert.config import read_config_file

    return [str(name) for name in read_config_file(folder)[1].get("architectures") or []]


def _is_classifier(folder: Path) -> bool:
    from fastbert.models import registry

    named = any(name.endswith("ForSequenceClassification") for name in _classes(folder))
    return named and registry.read_config(folder).num_labels == 1
