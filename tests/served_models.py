"""A server in this process with toy models of every kind, and requests to it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from embedding import saved
from reranking_models import cross_encoder, model_folder
from retrieval_data import masked_folder
from saved_models import saved as saved_with_settings

from fastbert.retrieval.settings import Folder, SparseSettings, TokenSettings

KINDS = {
    "embedder": "embedding",
    "reranker": "reranker",
    "classifier": "classifier",
    "tagger": "tagger",
    "reader": "task",
    "masked": "masked-lm",
    "splade": "sparse",
    "colbert": "token-vectors",
}
"""The toys' names and kinds."""


def toy_folders(folder: Path, seed: int) -> dict[str, Path]:
    """Save a toy of every kind; return their folders by name."""
    tags = {0: "O", 1: "B-PER", 2: "I-PER"}
    labels = {"id2label": tags, "label2id": {name: index for index, name in tags.items()}}
    sparse = SparseSettings(folder=Folder(max_length=30), pooling="max")
    tokens = TokenSettings(folder=Folder(max_length=30), normalize=True)
    return {
        "embedder": saved(folder / "embedder", seed),
        "reranker": cross_encoder(folder / "reranker", "Bert", seed),
        "classifier": cross_encoder(folder / "classifier", "Roberta", seed, num_labels=3),
        "tagger": model_folder(folder / "tagger", "BertForTokenClassification", seed, None, **labels),
        "reader": model_folder(folder / "reader", "BertForQuestionAnswering", seed),
        "masked": masked_folder(folder / "masked", seed),
        "splade": saved_with_settings(folder / "splade", "BertForMaskedLM", seed, sparse),
        "colbert": saved_with_settings(folder / "colbert", "BertModel", seed, tokens),
    }


def ask(
    address: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    """POST a body as JSON, or GET; return the status, the answer (parsed if it is JSON) and its headers."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    every = {**({} if body is None else {"Content-Type": "application/json"}), **(headers or {})}
    connection.request("GET" if body is None else "POST", path, raw, every)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    names = {name.lower(): value for name, value in response.getheaders()}
    is_json = names.get("content-type", "").startswith("application/json")
    return response.status, json.loads(answer) if is_json else answer, names


def sources(folders: dict[str, Path]) -> Sequence[str]:
    """The toys as arguments of `fastbert serve`."""
    return [f"{name}={folder}" for name, folder in folders.items()]
