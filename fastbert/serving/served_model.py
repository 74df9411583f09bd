"""A model of a server: its weights in memory, and the operations that it offers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastbert.embeddings.settings import find_prompt
from fastbert.models.encoder import EncoderModel
from fastbert.models.encoder_stack import freeze_layers
from fastbert.serving.jobs import Operation
from fastbert.tokenizers.tokenizer import Tokenizer


@dataclass(kw_only=True, eq=False)
class ServedModel:
    """A model in memory, and what it offers."""

    name: str
    source: str
    kind: str
    """"embedding", "token-vectors", "sparse", "reranker", "classifier", "tagger", "masked-lm" or "task"."""
    model: Any
    tokenizer: Tokenizer
    max_length: int
    """Tokens that it reads, special ones included."""
    how: str
    """Device and dtype in words."""
    dtype: str
    task_name: str | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    pooling: str | None = None
    labels: tuple[str, ...] | None = None
    problem_type: str | None = None
    query_prompt: str = ""
    """Precedes the queries of a reranker."""
    activation: str = "sigmoid"
    """Of a reranker's scores."""
    batch_tokens: int | None = None
    """Tokens of a batch; None: those that suit the device."""
    operations: dict[str, Operation] = field(default_factory=dict)
    """By route: embed, embed_all, embed_sparse, rerank, predict, token_classification, fill_mask."""

    @property
    def encoder(self) -> EncoderModel:
        """The encoder, without its head."""
        encoder: EncoderModel = self.model if isinstance(self.model, EncoderModel) else self.model.base_model
        return encoder

    def freeze_layers(self) -> None:
        """Let the CPU's kernels compute the encoder's layers as one call, where they can: nobody else has the model."""
        freeze_layers(self.encoder)

    @property
    def layer_weights(self) -> int:
        """The elements of the encoder's layers, each as often as it is applied."""
        layers = self.encoder.encoder.applications()
        return sum(weight.numel() for layer in layers for weight in layer.parameters())

    @property
    def label_json(self) -> list[str]:
        """The labels, each as a JSON string."""
        return [json.dumps(label, ensure_ascii=False) for label in self.labels or ()]

    @property
    def routes(self) -> list[str]:
        """The paths that the model answers."""
        more = ["/similarity"] if "embed" in self.operations else []
        return [*(f"/{name}" for name in self.operations), *more, "/tokenize", "/decode", "/attention"]

    def prompt(self, name: str | None) -> str:
        """Return the prompt of a name, or the default one. Raises `UserError` for one that the model does not have."""
        return find_prompt(self.prompts, self.default_prompt if name is None else name, "prompt_name")
