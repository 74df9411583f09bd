"""Pack sequences end to end, the form in which all data is processed. Padding exists only in this file.

A batch of B sequences with T tokens in total is one row of T tokens; `cu_seqlens` holds the offset of each sequence, so
sequence i is `tokens[cu_seqlens[i]:cu_seqlens[i + 1]]`. Nothing is computed for padding because there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from fastbert.errors import UserError

IGNORE_INDEX = -100
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedBatch:
    """B sequences with T tokens in total, on one device.

    Shapes and dtypes: `input_ids`, `token_type_ids`, `position_ids`, `sequence_ids` int64 (T,); `cu_seqlens` int32
    (B + 1,); `dropout_key` int64 (B,), one key of the counter-based random numbers per sequence. For training:
    `masked_positions` int64 (M,), indices into the T tokens, with `labels` int64 (M,); `next_sentence_label` int64
    (B,), 0 = B follows A, 1 = it does not. `max_seqlen` is a host integer (possibly an upper bound), so that no
    operation needs a host-device sync for it.

    `position_ids` default to 0, 1, 2, ... within each sequence, `token_type_ids` to 0; without `dropout_key`, keys are
    drawn when dropout first needs them. Raises `UserError` unless `input_ids` and `cu_seqlens` have one axis.

    Example:
        >>> import torch
        >>> import fastbert
        >>> tokenizer = fastbert.WordPieceTokenizer.from_pretrained("runs/mine/model")
        >>> batch = tokenizer.pack(["a short one.", "one"])
        >>> len(batch), batch.input_ids.shape, batch.cu_seqlens.tolist(), batch.max_seqlen
        (2, torch.Size([9]), [0, 6, 9], 6)
        >>> batch[1:].input_ids.tolist()
        [2, 7, 3]
        >>> ids, offsets = torch.tensor([2, 5, 3, 2, 7, 8, 3]), torch.tensor([0, 3, 7], dtype=torch.int32)
        >>> fastbert.PackedBatch(input_ids=ids, cu_seqlens=offsets, max_seqlen=4).position_ids.tolist()
        [0, 1, 2, 0, 1, 2, 3]
    """

    input_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    token_type_ids: Tensor = None  # type: ignore[assignment]  # filled in __post_init__
    position_ids: Tensor = None  # type: ignore[assignment]
    sequence_ids: Tensor = None  # type: ignore[assignment]
    dropout_key: Tensor | None = None
    masked_positions: Tensor | None = None
    labels: Tensor | None = None
    next_sentence_label: Tensor | None = None

    def __post_init__(self) -> None:
        if self.input_ids.dim() != 1:
            raise UserError(f"input_ids must be flat, of shape (tokens,), not {tuple(self.input_ids.shape)}")
        if self.cu_seqlens.dim() != 1 or self.cu_seqlens.numel() < 1:
            raise UserError(f"cu_seqlens must have shape (sequences + 1,), not {tuple(self.cu_seqlens.shape)}")
        fill = object.__setattr__
        if self.sequence_ids is None:
            lengths = self.cu_seqlens.diff().long()
            index = torch.arange(len(lengths), device=lengths.device)
            fill(self, "sequence_ids", index.repeat_interleave(lengths, output_size=self.input_ids.numel()))
        if self.token_type_ids is None:
            fill(self, "token_type_ids", torch.zeros_like(self.input_ids))
        if self.position_ids is None:
            fill(self, "position_ids", self.offsets_in_sequence)

    @property
    def offsets_in_sequence(self) -> Tensor:
        """Return each token's distance from the first token of its sequence, int64 (T,)."""
        index = torch.arange(self.input_ids.numel(), device=self.input_ids.device)
        return index - self.cu_seqlens[self.sequence_ids].long()

    @property
    def device(self) -> torch.device:
        """Return the device of the batch."""
        return self.input_ids.device

    @property
    def num_tokens(self) -> int:
        """Return T, the number of tokens in all sequences."""
        return self.input_ids.numel()

    def __len__(self) -> int:
        """Return B, the number of sequences."""
        return self.cu_seqlens.numel() - 1

    def _map(self, function: Any) -> PackedBatch:
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}
        return replace(self, **{name: function(tensor) for name, tensor in tensors.items()})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        """Return the batch on a device: itself, if it is there."""
        if torch.device(device) == self.device:
            return self
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        """Return the batch in page-locked memory, from which copies to a GPU are asynchronous."""
        return self._map(lambda tensor: tensor.pin_memory())

    def __getitem__(self, index: int | slice) -> PackedBatch:
        """Return one sequence, or a slice of consecutive sequences, as a batch.

        Raises IndexError for a sequence that the batch does not have, and `UserError` for slices with steps.
        """
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"sequence {index} of a batch of {len(self)}")
            index = slice(index % len(self), index % len(self) + 1)
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise UserError(f"a packed batch supports only slices with step 1, not {step}")
        stop = max(start, stop)
        first, last = self.cu_seqlens[start].item(), self.cu_seqlens[stop].item()
        tokens, rows = slice(int(first), int(last)), slice(start, stop)
        cu_seqlens = self.cu_seqlens[start : stop + 1] - self.cu_seqlens[start]
        masked = labels = None
        if self.masked_positions is not None:
            inside = (self.masked_positions >= first) & (self.masked_positions < last)
            masked = self.masked_positions[inside] - first
            labels = None if self.labels is None else self.labels[inside]
        return PackedBatch(
            input_ids=self.input_ids[tokens],
            token_type_ids=self.token_type_ids[tokens],
            position_ids=self.position_ids[tokens],
            sequence_ids=self.sequence_ids[tokens] - start,
            cu_seqlens=cu_seqlens,
            max_seqlen=int(cu_seqlens.diff().max()) if stop > start else 0,
            dropout_key=None if self.dropout_key is None else self.dropout_key[rows],
            masked_positions=masked,
            labels=labels,
            next_sentence_label=None if self.next_sentence_label is None else self.next_sentence_label[rows],
        )

    def longest_first(self) -> PackedBatch:
        """Return the batch, on a CPU, with its sequences sorted by length, descending; equal lengths keep their order.

        A GPU starts programs in the order of the sequences: the longest must not be the last that it waits for. Raises
        `UserError` as `PackedBatch` does.
        """
        return self.reordered(self.cu_seqlens.diff().argsort(descending=True, stable=True))

    def reordered(self, order: Tensor) -> PackedBatch:
        """Return the batch, on a CPU, in another order: sequence i is sequence `order[i]` of this batch.

        `order` int64 (B,) is a permutation. Raises `UserError` as `PackedBatch` does.
        """
        if torch.equal(order, torch.arange(len(self))):
            return self
        lengths = self.cu_seqlens.diff().long()[order]
        ends = lengths.cumsum(0)
        # Of each token of the result: its sequence there, and its place in this batch.
        sequence_ids = torch.arange(len(self)).repeat_interleave(lengths)
        first = self.cu_seqlens[:-1].long()[order] - (ends - lengths)
        tokens = torch.arange(self.num_tokens) + first[sequence_ids]
        masked, labels = self.masked_positions, self.labels
        if masked is not None:
            places = torch.empty_like(tokens)
            places[tokens] = torch.arange(self.num_tokens)
            masked, by_position = places[masked].sort()
            labels = None if labels is None else labels[by_position]
        return PackedBatch(
            input_ids=self.input_ids[tokens],
            token_type_ids=self.token_type_ids[tokens],
            position_ids=self.position_ids[tokens],
            sequence_ids=sequence_ids,
            cu_seqlens=torch.cat((ends.new_zeros(1), ends)).to(self.cu_seqlens.dtype),
            max_seqlen=self.max_seqlen,
            dropout_key=None if self.dropout_key is None else self.dropout_key[order],
            masked_positions=masked,
            labels=labels,
            next_sentence_label=None if self.next_sentence_label is None else self.next_sentence_label[order],
        )

    def padded_to(
        self, tokens: int, sequences: int, masked: int | None = None, *, max_seqlen: int | None = None
    ) -> PackedBatch:
        """Return the batch extended to fixed shapes: `tokens`, `sequences` and, if it has labels, `masked` positions.

        Dummy sequences of at most `max_seqlen` tokens (default: the batch's; it becomes the result's) are appended for
        the additional tokens, whose ids, positions, types and keys are 0; further additional sequences are empty.
        Tokens and sequences of the batch keep their indices. Added labels are IGNORE_INDEX (at position 0), so they do
        not count. Everything follows from shapes, without a host-device sync. Raises UserError if the batch does not
        fit.
        """
        extra, longest = tokens - self.num_tokens, self.max_seqlen if max_seqlen is None else max_seqlen
        if extra < 0:
            raise UserError(f"tokens={tokens} are too few for a batch of {self.num_tokens}")
        if longest < self.max_seqlen or (extra and longest < 1):
            raise UserError(f"max_seqlen={longest} is too short: it must be at least {max(self.max_seqlen, 1)}")
        dummies = -(-extra // longest) if extra else 0
        if sequences < len(self) + dummies:
            raise UserError(
                f"sequences={sequences} are too few for a batch of {len(self)} and {dummies} more that hold {extra}"
                f" additional tokens, at most max_seqlen={longest} each"
            )
        count = 0 if self.masked_positions is None else len(self.masked_positions)
        if masked is not None and (masked < count or self.masked_positions is None or not tokens):
            raise UserError(f"masked={masked} does not fit a batch of {self.num_tokens} tokens, {count} of them masked")
        added, missing = sequences - len(self), 0 if masked is None else masked - count
        index = torch.arange(extra, device=self.device)
        ends = torch.arange(1, added + 1, device=self.device).mul_(longest).clamp_(max=extra).add_(self.num_tokens)

        def extend(values: Tensor | None, count: int, fill: int) -> Tensor | None:
            return None if values is None else torch.cat((values, values.new_full((count,), fill)))

        return PackedBatch(
            input_ids=torch.cat((self.input_ids, torch.zeros_like(index))),
            token_type_ids=torch.cat((self.token_type_ids, torch.zeros_like(index))),
            # 0 is valid for every model: `max_seqlen` may exceed its position table.
            position_ids=torch.cat((self.position_ids, torch.zeros_like(index))),
            sequence_ids=torch.cat((self.sequence_ids, len(self) + index // max(longest, 1))),
            cu_seqlens=torch.cat((self.cu_seqlens, ends.to(self.cu_seqlens.dtype))),
            max_seqlen=longest,
            dropout_key=extend(self.dropout_key, added, 0),
            masked_positions=extend(self.masked_positions, missing, 0),
            labels=extend(self.labels, missing, IGNORE_INDEX),
            next_sentence_label=extend(self.next_sentence_label, added, IGNORE_INDEX),
        )

    def filled(self, multiple: int) -> PackedBatch:
        """Return the batch with a dummy sequence appended that rounds the number of tokens up to a multiple.

        Libraries that prepare one kernel per number of rows then need few kernels. Tokens and sequences keep their
        indices; the result has no labels.
        """
        extra = -self.num_tokens % multiple
        if not extra:
            return self
        unlabelled = replace(self, masked_positions=None, labels=None, next_sentence_label=None)
        return unlabelled.padded_to(self.num_tokens + extra, len(self) + 1, max_seqlen=max(self.max_seqlen, extra))

    def unpack(self, pad_token_id: int = 0) -> dict[str, Tensor]:
        """Return padded tensors: `input_ids`, `token_type_ids`, `attention_mask` int64 (B, longest) and, if present,
        `labels` int64 (B, longest), -100 at unlabelled positions, and `next_sentence_label` int64 (B,)."""
        longest = int(self.cu_seqlens.diff().max()) if len(self) else 0
        slots = self.sequence_ids * longest + self.offsets_in_sequence
        shape = (len(self), longest)
        padded = {
            "input_ids": pad(self.input_ids, slots, shape, fill=pad_token_id),
            "token_type_ids": pad(self.token_type_ids, slots, shape),
            "attention_mask": pad(torch.ones_like(self.input_ids), slots, shape),
        }
        if self.masked_positions is not None and self.labels is not None:
            padded["labels"] = pad(self.labels, slots[self.masked_positions], shape, fill=IGNORE_INDEX)
        if self.next_sentence_label is not None:
            padded["next_sentence_label"] = self.next_sentence_label
        return padded


def pad(values: Tensor, slots: Tensor, shape: tuple[int, int], fill: float = 0) -> Tensor:
    """Scatter packed `values` (T, ...) to a padded tensor (rows, columns, ...): value t goes to flat index `slots[t]`.

    Differentiable; other elements are `fill`.
    """
    flat = values.new_full((shape[0] * shape[1], *values.shape[1:]), fill)
    # In place, to avoid another copy; torch.func transforms do not allow writing to plain tensors.
    padded = flat.index_copy(0, slots, values) if _is_transformed() else flat.index_copy_(0, slots, values)
    return padded.view(*shape, *values.shape[1:])


def _is_transformed() -> bool:
    """Return whether a torch.func transform is active."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def check_padded(
    input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None, position_ids: Tensor | None
) -> None:
    """Raise UserError for padded input of wrong types, dtypes, shapes or devices, without a host-device sync."""
    if input_ids.dim() != 2:
        raise UserError(f"input_ids must have shape (sequences, length), not {tuple(input_ids.shape)}")
    others = (("attention_mask", attention_mask), ("token_type_ids", token_type_ids), ("position_ids", position_ids))
    for name, tensor in (("input_ids", input_ids), *others):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise UserError(f"{name} must be a tensor, not {type(tensor).__name__}: use torch.tensor({name})")
        if name != "attention_mask" and tensor.dtype not in INTEGERS:
            raise UserError(f"{name} must be int64, not {tensor.dtype}: give the ids that the tokenizer returned")
        if tensor.device != input_ids.device:
            raise UserError(f"{name} is on {tensor.device}, input_ids on {input_ids.device}: move them to one device")
        if name == "position_ids" and _is_shared(tensor, input_ids):
            continue
        if tensor.shape != input_ids.shape:
            raise UserError(f"{name} has shape {tuple(tensor.shape)}, but input_ids {tuple(input_ids.shape)}")


def _is_shared(position_ids: Tensor, input_ids: Tensor) -> bool:
    """Return whether position ids are one row for all sequences, (length,) or (1, length)."""
    return position_ids.dim() in (1, 2) and position_ids.shape in (input_ids.shape[1:], (1, *input_ids.shape[1:]))


def check_mask(attention_mask: Tensor) -> None:
    """Raise UserError for an attention mask with values other than 0 and 1, such as an additive mask; reads it."""
    if attention_mask.dtype == torch.bool or not attention_mask.numel():
        return
    invalid = (attention_mask != 0) & (attention_mask != 1)
    if bool(invalid.any()):
        raise UserError(
            f"attention_mask holds {attention_mask[invalid][0].item():g}: it must be 1 at tokens and 0 at padding, not"
            " added to scores"
        )


def unpad(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    position_ids: Tensor | None = None,
) -> tuple[PackedBatch, Tensor]:
    """Return padded input (rows, columns) as a packed batch, and the slots for `pad`, which restores the padding.

    Any pattern of zeros in `attention_mask` is allowed (left padding, gaps); as in transformers, a token's position is
    its column unless `position_ids` are given.
    """
    check_padded(input_ids, attention_mask, token_type_ids, position_ids)
    rows, columns = input_ids.shape
    if attention_mask is None:
        return _without_padding(input_ids, token_type_ids, position_ids)
    is_token = attention_mask.bool()
    slots = is_token.flatten().nonzero().flatten()
    lengths = is_token.sum(dim=1)
    cu_seqlens = torch.zeros(rows + 1, dtype=torch.int32, device=input_ids.device)
    cu_seqlens[1:] = lengths.cumsum(0)
    if position_ids is None:
        positions = slots % max(columns, 1)
    else:
        positions = position_ids.expand(rows, columns).flatten()[slots]
    batch = PackedBatch(
        input_ids=input_ids.flatten()[slots].long(),
        token_type_ids=None if token_type_ids is None else token_type_ids.flatten()[slots].long(),  # type: ignore[arg-type]
        position_ids=positions.long(),
        sequence_ids=slots // max(columns, 1),
        cu_seqlens=cu_seqlens,
        max_seqlen=int(lengths.max()) if rows else 0,
    )
    return batch, slots


def _without_padding(
    input_ids: Tensor, token_type_ids: Tensor | None, position_ids: Tensor | None
) -> tuple[PackedBatch, Tensor]:
    """Return the rows (rows, columns) as sequences of one length, as `unpad` does."""
    rows, columns = input_ids.shape
    device = input_ids.device
    slots = torch.arange(rows * columns, device=device)
    row, column = (torch.zeros_like(slots), slots) if rows == 1 else (slots // max(columns, 1), slots % max(columns, 1))
    batch = PackedBatch(
        input_ids=input_ids.flatten().long(),
        token_type_ids=None if token_type_ids is None else token_type_ids.flatten().long(),  # type: ignore[arg-type]
        position_ids=column if position_ids is None else position_ids.expand(rows, columns).flatten().long(),
        sequence_ids=row,
        cu_seqlens=torch.arange(rows + 1, dtype=torch.int32, device=device) * columns,
        max_seqlen=columns if rows else 0,
    )
    return batch, slots
