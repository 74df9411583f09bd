"""Score a model on held-out documents: masked-LM loss, and retrieval of the next passage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from fastbert.checkpoints.pipeline_files import role_prompt
from fastbert.data.prepare import prepare
from fastbert.data.pretraining import PretrainingData
from fastbert.data.shards import TokenShards
from fastbert.embeddings.embed import EmbedOptions, embed_chunks
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.roles import drop_default_prompt
from fastbert.embeddings.settings import EmbedSettings
from fastbert.models import registry
from fastbert.scoring.held_out import masked_lm
from fastbert.scoring.tokenized_texts import Progress
from fastbert.tasks.examples import Dataset, TextGroup
from fastbert.tasks.inference import choose_inference
from fastbert.tasks.retrieval.groups import DistinctTexts
from fastbert.tasks.retrieval.scores import predictions_of, scores_of
from fastbert.tokenizers.loading import load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

METRICS = ("ndcg@10", "mrr@10", "recall@10")
SEED = 0
"""The seed of masks and new heads."""


@dataclass(frozen=True, kw_only=True)
class MaskedLoss:
    """The masked-LM scores of a model on held-out text."""

    loss: float
    """Mean cross-entropy in nats."""
    accuracy: float
    """Percentage of masked tokens predicted correctly."""
    new_head: bool
    """True if the model has no trained head, so that a randomly initialised one was scored."""


def masked_loss(
    model: Path, shards: Path, *, device: str, max_length: int, progress: Progress | None = None
) -> MaskedLoss:
    """Return the masked-LM scores of the model in a folder on all documents of token shards, in fp32 without dropout.

    A missing head is initialised at random. The masks do not depend on the model. Raises `UserError` for an
    architecture without a masked LM, and if `max_length` exceeds its positions.
    """
    device, _, _ = choose_inference(device, "fp32")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        loaded = registry.load_with_head(model, "ForMaskedLM", dtype=torch.float32)
    loaded = loaded.to(device)
    data = PretrainingData(
        TokenShards.open(shards),
        objective="mlm",
        max_length=max_length,
        short_sequence_prob=0.0,
        seed=SEED,
        validation_fraction=0.0,
    )
    scores = masked_lm(loaded, data, progress=progress)
    return MaskedLoss(loss=scores.loss, accuracy=scores.accuracy, new_head=bool(loaded.new_weights))


def held_out_shards(documents: Sequence[Sequence[str]], tokenizer: Path, folder: Path) -> TokenShards:
    """Tokenize documents into a folder of token shards with the tokenizer in a model's folder."""
    return prepare(documents, load_tokenizer(tokenizer), folder, overwrite=True)


def retrieval(
    model: Path,
    pairs: Sequence[tuple[str, str]],
    *,
    device: str,
    dtype: str,
    max_length: int,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Return `METRICS` in percent for retrieving each query's passage among the passages of all pairs with the embedder
    in a folder: a sentence-transformers model with its settings, or an encoder with mean pooling.

    Raises the errors of `load_embedder`.
    """
    device, weights, _ = choose_inference(device, "auto" if dtype == "fp16" else dtype)
    loaded, tokenizer, settings = load_embedder(model, dtype=weights)
    loaded = loaded.to(device)
    examples = [TextGroup(id=str(number), location=f"pair {number}", texts=pair) for number, pair in enumerate(pairs)]
    dataset = Dataset("the held-out text", tuple(examples))
    queries, passages = (list(dict.fromkeys(pair[side] for pair in pairs)) for side in (0, 1))
    total, done = len(queries) + len(passages), 0

    def report(before: int, texts: int) -> None:
        if progress is not None:
            progress((before + texts) / total)

    sides: list[dict[str, Tensor]] = []
    drop_default_prompt(loaded, settings)
    for texts, role in ((queries, "query"), (passages, "document")):
        prompt = role_prompt(role, settings.prompts)
        options = EmbedOptions(max_length=_length(max_length, settings), prompt=prompt)
        chunks = embed_chunks(loaded, texts, tokenizer, options, progress=partial(report, done))
        vectors = torch.cat(list(chunks))
        if settings.similarity in (None, "cosine"):
            vectors = F.normalize(vectors, dim=1)
        sides.append(dict(zip(texts, vectors, strict=True)))
        done += len(texts)
    return _scores(dataset, sides)


def _length(max_length: int, settings: EmbedSettings) -> int:
    return max_length if settings.max_length is None else min(max_length, settings.max_length)


def _scores(dataset: Dataset[TextGroup], sides: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """Return the metrics of a dataset, with the vectors of queries and of passages by text."""
    distinct = DistinctTexts.of(dataset)
    vectors = torch.stack(
        [sides[0 if is_query else 1][text] for text, is_query in zip(distinct.texts, distinct.is_query, strict=True)]
    )

    def similarities(queries: list[int], passages: list[int]) -> Any:
        return vectors[queries] @ vectors[passages].T

    def paired(first: list[int], second: list[int]) -> Any:
        return (vectors[first] * vectors[second]).sum(1)

    scores = scores_of(dataset, predictions_of(dataset, similarities, paired))
    return {name: scores[name] for name in METRICS}
