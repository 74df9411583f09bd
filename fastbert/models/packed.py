"""Read the inputs of a model, packed, padded or as embeddings, and restore outputs to the form of the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.errors import UserError
from fastbert.models.padded import PaddedBatch, is_readable, is_recorded, padded_batch, refuse_graphs
from fastbert.models.unsupported_arguments import refuse_arguments
from fastbert.packing import IGNORE_INDEX, PackedBatch, check_mask, check_padded, pad, unpad


class Packed:
    """A model's input as a `PackedBatch`, and the way back to the form of the input.

    Where PyTorch records or transforms the call, the batch is a `PaddedBatch`, whose padding counts as tokens, unless
    it is `always_packed`. So it is where the attention mask has padding between tokens and `columns_matter`: distances
    between tokens count it. Raises `UserError` for inputs that are missing, given twice or of the wrong shape.
    """

    def __init__(
        self,
        batch: PackedBatch | Tensor | None,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None = None,
        *,
        always_packed: bool = False,
        columns_matter: bool = False,
    ) -> None:
        self.slots: Tensor | None = None
        """Each token's index among the flattened padded input, int64 (tokens,); None without padded input."""
        self.shape: tuple[int, int] | None = None
        """Sequences and columns of the padded input; None of a packed one."""
        self.embeds: Tensor | None = None
        """Packed `inputs_embeds` (tokens, hidden_size), which replace the rows of the token table."""
        if isinstance(batch, PackedBatch):
            if any(tensor is not None for tensor in (input_ids, attention_mask, token_type_ids, position_ids)):
                raise UserError("give either a PackedBatch or input_ids with attention_mask, not both")
            if inputs_embeds is not None:
                raise UserError("give either a PackedBatch or inputs_embeds with attention_mask, not both")
            refuse_graphs("a PackedBatch", "give input_ids with attention_mask")
            self.batch: PackedBatch = batch
            return
        if batch is not None and input_ids is not None:
            raise UserError("input_ids were given twice, by position and by name")
        padded = batch if batch is not None else input_ids
        if inputs_embeds is not None:
            if padded is not None:
                raise UserError("give either input_ids or inputs_embeds, not both")
            padded = _placeholder_ids(inputs_embeds)
        if not isinstance(padded, Tensor):
            cure = ": call model(**batch)" if isinstance(padded, Mapping) else ""
            raise UserError(f"a model takes a PackedBatch or a tensor of input_ids, not {type(padded).__name__}{cure}")
        stays_padded = is_recorded(padded if inputs_embeds is None else inputs_embeds)
        if not stays_padded and columns_matter and attention_mask is not None:
            check_padded(padded, attention_mask, token_type_ids, position_ids)
            stays_padded = has_gaps(attention_mask)
        if not always_packed and stays_padded:
            check_padded(padded, attention_mask, token_type_ids, position_ids)
            self.batch = padded_batch(padded, attention_mask, token_type_ids, position_ids)
        else:
            self.batch, self.slots = unpad(padded, attention_mask, token_type_ids, position_ids)
            if attention_mask is not None and is_readable(attention_mask):
                check_mask(attention_mask)
        self.shape = (padded.shape[0], padded.shape[1])
        if inputs_embeds is not None:
            rows = inputs_embeds.flatten(0, 1)
            self.embeds = rows if self.slots is None else rows.index_select(0, self.slots)

    @property
    def came_padded(self) -> bool:
        """Return whether the input was padded."""
        return self.shape is not None

    def restore(self, values: Tensor) -> Tensor:
        """Return packed values (tokens, ...) in the form of the input: (sequences, columns, ...) with zeros at padding
        where it was padded."""
        if isinstance(self.batch, PaddedBatch):
            return self.batch.restore(values)
        if self.slots is None or self.shape is None:
            return values
        if len(values) == self.shape[0] * self.shape[1]:  # there is no padding
            return values.view(*self.shape, *values.shape[1:])
        return pad(values, self.slots, self.shape)

    def labels(self, labels: Tensor) -> Tensor:
        """Return labels in the form of the input as (tokens,). Raises UserError for another shape."""
        if self.shape is None:
            return labels
        if tuple(labels.shape) != self.shape:
            raise UserError(f"labels have shape {tuple(labels.shape)}, but the input {self.shape}")
        if self.slots is not None:
            return labels.flatten()[self.slots]
        mask = self.batch.mask if isinstance(self.batch, PaddedBatch) else None
        return (labels if mask is None else labels.masked_fill(~mask, IGNORE_INDEX)).reshape(-1)

    def index_of(self, token: int) -> str:
        """Return a token's index in the input, for messages: `[row, column]`, or `[token]` of a packed batch."""
        if self.slots is None or self.shape is None:
            return f"[{token}]"
        slot = int(self.slots[token])
        return f"[{slot // self.shape[1]}, {slot % self.shape[1]}]"


def read_inputs(
    model: nn.Module,
    batch: PackedBatch | Tensor | None,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    **unsupported: Any,
) -> Packed:
    """Read the arguments of a model's forward. Raises UserError for `unsupported` arguments that are set."""
    refuse_arguments(model, unsupported)
    ids = batch if isinstance(batch, Tensor) else input_ids
    positions = relative_positions(model, ids, position_ids)
    return Packed(
        batch, input_ids, attention_mask, token_type_ids, positions, inputs_embeds, columns_matter=columns_matter(model)
    )


def columns_matter(model: Any) -> bool:
    """Return whether a model reads distances between tokens, which count padding between them."""
    positions = getattr(getattr(model, "base_model", None), "positions", None)
    return bool(getattr(positions, "needs_columns", False))


def has_gaps(attention_mask: Tensor) -> bool:
    """Return whether a mask (sequences, columns) has padding between tokens; reads it."""
    is_token = attention_mask != 0
    starts = is_token[:, 1:] & ~is_token[:, :-1]
    runs = starts.sum(1) + is_token[:, :1].sum(1)
    return bool((runs > 1).any())


def relative_positions(model: Any, input_ids: Tensor | None, position_ids: Tensor | None) -> Tensor | None:
    """Return positions counted from a model's first one, as a `PackedBatch` holds them; None for the columns.

    Where positions begin behind the padding's, as RoBERTa's do, `position_ids` count from the table's first row, and
    without them positions count the tokens that are not padding.
    """
    offset = model.position_offset
    if not offset:
        return position_ids
    if position_ids is not None:
        return position_ids - offset
    if not isinstance(input_ids, Tensor) or input_ids.dim() < 2:
        return None
    is_token = input_ids != model.config.pad_token_id
    return is_token.long().cumsum(-1) * is_token - 1


def _placeholder_ids(inputs_embeds: Tensor) -> Tensor:
    """Return zeros, int64 (sequences, length), as the ids of `inputs_embeds`. Raises UserError for another shape."""
    if not isinstance(inputs_embeds, Tensor) or inputs_embeds.dim() != 3 or not inputs_embeds.is_floating_point():
        shown = tuple(inputs_embeds.shape) if isinstance(inputs_embeds, Tensor) else type(inputs_embeds).__name__
        raise UserError(f"inputs_embeds must be floating of shape (sequences, length, hidden_size), not {shown}")
    return torch.zeros(inputs_embeds.shape[:2], dtype=torch.int64, device=inputs_embeds.device)
