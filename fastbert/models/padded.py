"""The padded form of a batch, for calls that PyTorch records or transforms: `torch.jit.trace`, `torch.export`, ONNX,
`torch.func` and `make_fx`.

Packing reads how many tokens there are, which such calls cannot answer. Here every place of the padded input is a
token, attention masks the padding, and all shapes follow from the input's shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.attention.rotary import rotate
from fastbert.ops.compiling import is_exporting
from fastbert.ops.dropout.masks import attention_mask
from fastbert.packing import PackedBatch

# Set while torch.fx's make_fx records.
_PROXY = torch._C._TorchDispatchModeKey.PROXY


@dataclass(frozen=True, kw_only=True, eq=False)
class PaddedBatch(PackedBatch):
    """Rows of equal length, padding included: `shape` (rows, columns), `mask` bool (rows, columns), True at tokens, or
    None where nothing is padding."""

    shape: tuple[int, int]
    mask: Tensor | None = None

    @property
    def first_positions(self) -> Tensor:
        """The index of each row's first real token among rows * columns, int64 (rows,)."""
        rows, columns = self.shape
        begins = torch.arange(rows, device=self.device) * columns
        return begins if self.mask is None else begins + self.mask.long().argmax(dim=1)

    @property
    def last_positions(self) -> Tensor:
        """The index of each row's last real token among rows * columns, int64 (rows,)."""
        rows, columns = self.shape
        ends = torch.arange(1, rows + 1, device=self.device) * columns - 1
        return ends if self.mask is None else ends - self.mask.flip(1).long().argmax(dim=1)

    def restore(self, values: Tensor) -> Tensor:
        """Reshape (rows * columns, ...) to (rows, columns, ...), with zeros at padding."""
        padded = values.reshape(self.shape[0], self.shape[1], *values.shape[1:])
        if self.mask is None:
            return padded
        mask = self.mask.reshape(*self.mask.shape, *[1] * (padded.dim() - 2))
        return padded.masked_fill(~mask, 0)


def is_recorded(tensor: Tensor) -> bool:
    """Return whether a call with this tensor is recorded, transformed or without values, so that it must stay padded.

    `torch.compile` does not count: it compiles packed batches.
    """
    if torch.compiler.is_compiling():
        return is_exporting()
    return tensor.is_meta or dispatch.is_recorded() or torch._C._get_dispatch_mode(_PROXY) is not None


def refuse_graphs(what: str, cure: str) -> None:
    """Raise UserError while torch.jit traces or torch.export exports: numbers of tokens would become constants."""
    if is_exporting() if torch.compiler.is_compiling() else torch._C._is_tracing():
        raise UserError(f"{what} cannot be traced or exported: {cure}")


def is_readable(tensor: Tensor) -> bool:
    """Return whether the values of a tensor can be checked without a host-device sync: on the CPU, not recorded."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not is_recorded(tensor)


def padded_batch(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
) -> PaddedBatch:
    """Make a batch of padded (rows, columns) inputs, whose shapes have been checked."""
    rows, columns = input_ids.shape
    device = input_ids.device
    column = torch.arange(columns, device=device)
    positions = column if position_ids is None else position_ids.long()
    row = torch.arange(rows, device=device)
    types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
    return PaddedBatch(
        input_ids=input_ids.long().reshape(-1),
        token_type_ids=types.long().reshape(-1),
        position_ids=positions.expand(rows, columns).reshape(-1),
        sequence_ids=row[:, None].expand(rows, columns).reshape(-1),
        cu_seqlens=torch.arange(rows + 1, dtype=torch.int32, device=device) * columns,
        max_seqlen=columns,
        shape=(rows, columns),
        mask=None if attention_mask is None else attention_mask != 0,
    )


def padded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: PaddedBatch,
    *,
    causal: bool,
    dropout_p: float,
    dropout_key: Tensor | None,
    dropout_site: int,
    scale: float | None = None,
    window: int | None = None,
    rotary: Tensor | None = None,
    rotary_positions: Tensor | None = None,
    distance_bias: Tensor | None = None,
    position_keys: Tensor | None = None,
    position_queries: Tensor | None = None,
    buckets: Tensor | None = None,
) -> Tensor:
    """Compute attention of all places, q, k, v and the result (rows * columns, heads, head_dim), in PyTorch's own
    operations; padding is never a visible key.

    The other arguments are those of `fastbert.ops.attention`; the position of a token is its column.
    """
    rows, columns = batch.shape
    if rotary is not None:
        positions = torch.arange(columns, device=q.device).repeat(rows)
        positions = positions if rotary_positions is None else rotary_positions
        q, k = rotate(q, rotary, positions), rotate(k, rotary, positions)
    if k.shape[1] != q.shape[1]:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    q, k, v = (x.reshape(rows, columns, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    visible = None if batch.mask is None else batch.mask[:, None, None, :]
    column = torch.arange(columns, device=q.device)
    distances = column[None, :] - column[:, None]
    if causal:
        visible = distances <= 0 if visible is None else visible & (distances <= 0)
    if window is not None:
        near = distances.abs() <= window
        visible = near if visible is None else visible & near
    wide = torch.promote_types(q.dtype, torch.float32)
    products = (q @ k.transpose(-1, -2)).to(wide)
    if buckets is not None:
        indices = buckets.long()[distances + len(buckets) // 2]
        if position_keys is not None:
            by_position = (q @ position_keys.permute(1, 2, 0)).to(wide)
            products = products + by_position.gather(-1, indices.expand(products.shape))
        if position_queries is not None:
            by_position = (k @ position_queries.permute(1, 2, 0)).to(wide)
            products = products + by_position.gather(-1, indices.T.expand(products.shape)).transpose(-1, -2)
    scores = products / math.sqrt(q.shape[-1]) if scale is None else products * scale
    if distance_bias is not None:
        scores = scores + distance_bias[:, distances + distance_bias.shape[1] // 2].to(wide)
    if visible is not None:
        # Not -inf: a row of nothing but padding would be NaN, and its zeros are put in later.
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    probabilities = scores.softmax(-1)
    if dropout_p and dropout_key is not None:
        shape = (probabilities.shape[0], probabilities.shape[1], columns, columns)
        probabilities = probabilities * attention_mask(shape, dropout_p, dropout_key, dropout_site, scores.dtype)
    context = (probabilities.to(v.dtype) @ v).transpose(1, 2)
    return context.reshape(-1, *context.shape[2:])
