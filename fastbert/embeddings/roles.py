"""Queries and documents: the prompts and the similarity of their vectors, as the settings of a model name them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Literal

from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.models.encoder import EncoderModel

Similarity = Literal["cosine", "dot"]
ROLE_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""Names of prompts that a model may have for each role, in the order of preference."""


def role_prompt(role: str, prompts: Container[str]) -> str | None:
    """Return the name of the prompt of a role, "query" or "document", that a model has; None if it has none."""
    return next((name for name in ROLE_PROMPTS[role] if name in prompts), None)


def drop_default_prompt(model: EncoderModel, settings: EmbedSettings) -> None:
    """Embed without a prompt unless one is named, as `encode_query` and `encode_document` of sentence-transformers do.

    A model's default prompt is often the one of queries: documents must not get it.
    """
    model.embed_settings = replace(settings, default_prompt=None)


def similarity_of(settings: EmbedSettings) -> Similarity:
    """Return the similarity of a model's vectors, by default cosine. Raises UserError for a distance."""
    if settings.similarity in (None, "cosine"):
        return "cosine"
    if settings.similarity == "dot":
        return "dot"
    raise UserError(f"the model's similarity_fn_name {settings.similarity!r} is not supported; name cosine or dot")
