"""A teacher's scores of groups of texts: those of a cross-encoder, or the similarities of an embedder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastbert.checkpoints.pipeline_files import ROLE_PROMPTS, role_prompt
from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, TextGroup


def taught(
    dataset: Dataset[TextGroup], folder: Path, on_message: Callable[[str], None], device: str = "auto"
) -> Dataset[TextGroup]:
    """Return groups with the scores that a teacher gives to each query with its texts: the logits of a cross-encoder,
    or the cosines or dot products of an embedder, with its prompts for queries and documents.

    Equal pairs are scored once. Raises `UserError` for a folder that holds neither.
    """
    pairs: dict[tuple[str, str], int] = {}
    for example in dataset:
        for text in example.texts[1:]:
            pairs.setdefault((example.texts[0], text), len(pairs))
    scores = _scores(folder, list(pairs), on_message, device)
    examples = (
        replace(example, teacher=tuple(scores[pairs[example.texts[0], text]] for text in example.texts[1:]))
        for example in dataset
    )
    return Dataset(dataset.path, tuple(examples))


def _scores(folder: Path, pairs: list[tuple[str, str]], on_message: Callable[[str], None], device: Any) -> list[float]:
    """Return the teacher's score of each pair."""
    from fastbert.models import registry
    from fastbert.reranking.cross_encoder import CrossEncoder

    if _is_classifier(folder):
        encoder = CrossEncoder(folder, device=device)
        on_message(f"teacher: the cross-encoder {folder} scores {len(pairs):,} pairs, {encoder.how}")
        logits: list[float] = encoder.predict(pairs, activation="identity").tolist()
        return logits
    if any(kind.endswith("ForSequenceClassification") for kind in _classes(folder)):
        raise UserError(
            f"--teacher {folder}: has {registry.read_config(folder).num_labels} labels; a teacher of rankings has one"
        )
    from fastbert.embeddings.folder import load_embedder
    from fastbert.embeddings.roles import drop_default_prompt
    from fastbert.tasks.inference import choose_inference

    where, weights, how = choose_inference(device, "auto")
    model, tokenizer, settings = load_embedder(folder, dtype=weights)
    if settings.similarity not in (None, "cosine", "dot"):
        raise UserError(
            f"--teacher {folder}: compares vectors by {settings.similarity} distance; name an embedder of cosines or"
            " dot products, or a cross-encoder"
        )
    model = model.to(where)
    on_message(f"teacher: the embedder {folder} scores {len(pairs):,} pairs, on {where} in {how}")
    sides = []
    drop_default_prompt(model, settings)
    for role, texts in zip(ROLE_PROMPTS, zip(*pairs), strict=True):
        distinct = {text: index for index, text in enumerate(dict.fromkeys(texts))}
        vectors = model.embed(
            list(distinct),
            tokenizer,
            normalize=settings.similarity != "dot" or None,
            prompt=role_prompt(role, settings.prompts),
        )
        sides.append(vectors[[distinct[text] for text in texts]])
    similarities: list[float] = (sides[0] * sides[1]).sum(1).tolist()
    return similarities


def _classes(folder: Path) -> list[str]:
    from fastbert.config import read_config_file

    return [str(name) for name in read_config_file(folder)[1].get("architectures") or []]


def _is_classifier(folder: Path) -> bool:
    from fastbert.models import registry

    named = any(name.endswith("ForSequenceClassification") for name in _classes(folder))
    return named and registry.read_config(folder).num_labels == 1
