"""Queries and documents: the prompts and the similarity of their vectors, as the settings of a model name them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.models.encoder import EncoderModel

Similarity = Literal["cosine", "dot"]


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
