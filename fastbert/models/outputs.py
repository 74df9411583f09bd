"""What models return: read by attribute, by key and by index, as transformers' outputs are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor


class ModelOutput:
    """Base of the outputs: `output.loss`, `output["loss"]` and `output[0]` are the same; fields that are None are left
    out of keys and indices."""

    def keys(self) -> list[str]:
        """The names of the fields that hold something."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]  # type: ignore[arg-type]

    def to_tuple(self) -> tuple[Any, ...]:
        """The fields that hold something, in order."""
        return tuple(getattr(self, name) for name in self.keys())

    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            if key not in self.keys():
                raise KeyError(key)
            return getattr(self, key)
        return self.to_tuple()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def items(self) -> list[tuple[str, Any]]:
        """Names and values of the fields that hold something."""
        return [(name, getattr(self, name)) for name in self.keys()]


@dataclass
class EncoderOutput(ModelOutput):
    """`last_hidden_state` (tokens, hidden_size) packed or (sequences, length, hidden_size) padded; `pooler_output`
    (sequences, hidden_size); `hidden_states`: the embeddings' and each layer's output, when asked for."""

    last_hidden_state: Tensor
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class PreTrainingOutput(ModelOutput):
    """`loss` = masked-LM loss + next-sentence loss, fp32 means; `prediction_logits` (..., vocab_size);
    `seq_relationship_logits` (sequences, 2). With labels: sums and counts, for losses weighted over several batches."""

    loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    mlm_loss_sum: Tensor | None = None
    mlm_count: Tensor | None = None
    mlm_correct: Tensor | None = None
    nsp_loss_sum: Tensor | None = None
    nsp_count: Tensor | None = None
    nsp_correct: Tensor | None = None


@dataclass
class LogitsOutput(ModelOutput):
    """`loss` when labels were given, fp32 mean over the labels; `logits`, of the shape the head documents."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass
class SpanOutput(ModelOutput):
    """`start_logits` and `end_logits`, one per token; `loss` is the mean of both cross-entropies."""

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
