"""Models for the losses of sentence-transformers that return fixed vectors and scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class FixedVectors(nn.Module):
    """Returns the vectors that its input holds, as an embedder or a model of token vectors."""

    def __init__(self, width: int = 0) -> None:
        super().__init__()
        self.width = width

    def get_embedding_dimension(self) -> int:
        return self.width

    def forward(self, features: dict[str, Tensor], task: str | None = None) -> dict[str, Tensor]:
        if "mask" in features:
            return {"token_embeddings": features["vectors"], "attention_mask": features["mask"]}
        return {"sentence_embedding": features["vectors"]}


def columns(*tensors: Tensor) -> list[dict[str, Tensor]]:
    """The input of a loss whose columns have these vectors."""
    return [{"vectors": tensor} for tensor in tensors]


def padded(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Token vectors of some texts as one padded column."""
    vectors = nn.utils.rnn.pad_sequence(list(tensors), batch_first=True)
    lengths = torch.tensor([len(tensor) for tensor in tensors])
    return {"vectors": vectors, "mask": torch.arange(vectors.shape[1]) < lengths[:, None]}


def fixed_scores(scores: Tensor) -> Any:
    """A cross-encoder of sentence-transformers with one label: the score of (query, "7") is the one with index 7."""
    from sentence_transformers import CrossEncoder

    class FixedScores(CrossEncoder):
        num_labels = 1
        device = torch.device("cpu")

        def __init__(self) -> None:
            nn.Module.__init__(self)

        def preprocess(self, pairs: list[tuple[str, str]], **_: Any) -> dict[str, Tensor]:
            return {"rows": torch.tensor([int(document) for _, document in pairs])}

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"scores": scores[features["rows"]][:, None]}

    return FixedScores()
