"""The arguments of packed attention, as every backend receives them."""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import check_devices, check_dropout, check_scale, check_tensor, is_debugging

_RELATIVE = ("rotary", "rotary_positions", "distance_bias", "position_keys", "position_queries", "buckets")


class AttentionArguments(NamedTuple):
    """The arguments of `fastbert.ops.attention`; `dropout_key` is None exactly when nothing is dropped. The fields with
    defaults are those of newer encoders: `features` names the ones in use."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    dropout_p: float
    dropout_key: Tensor | None
    dropout_site: int
    bias: Tensor | None
    scale: float
    tf32: bool
    """True if fp32 matmuls may round their operands to tf32."""
    window: int | None = None
    """Tokens on each side that a query attends to, besides itself; None: its whole sequence."""
    rotary: Tensor | None = None
    """Cosines, then sines of the angles of each position, fp32 (positions, rotary_dim): the first half of the rotated
    dims is turned against the second."""
    rotary_positions: Tensor | None = None
    """Rows of `rotary`, int64 (tokens,); None: the index of a token in its sequence."""
    distance_bias: Tensor | None = None
    """Added to the scores by distance, floating (heads, 2 x length - 1): column key - query + length - 1."""
    position_keys: Tensor | None = None
    """Keys of relative positions (rows, heads, head_dim), which queries are multiplied by (content to position)."""
    position_queries: Tensor | None = None
    """Queries of relative positions (rows, heads, head_dim), which keys are multiplied by (position to content)."""
    buckets: Tensor | None = None
    """Rows of `position_keys` and `position_queries` by distance, int32 (2 x length - 1,), indexed as
    `distance_bias`."""

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the newer features that the call uses."""
        names = ("window", "rotary", "distance_bias", "position_keys", "position_queries")
        grouped = ("grouped heads",) if self.key_value_heads != self.heads else ()
        return (*(name for name in names if getattr(self, name) is not None), *grouped)

    @property
    def key_value_heads(self) -> int:
        """The number of heads of keys and values; each is shared by consecutive heads of queries."""
        return self.k.shape[1]

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return self.cu_seqlens_q.shape[0] - 1

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.q.shape[1]

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        q, k, v = self.q, self.k, self.v
        if q.dim() != 3 or k.shape != v.shape or k.dim() != 3 or q.shape[2] != k.shape[2]:
            raise UserError(
                "q, k, v must have shape (tokens, heads, head_dim) with equal head_dim, and k and v equal shapes, not"
                f" {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
            )
        if k.shape[1] != q.shape[1] and (k.shape[1] < 1 or q.shape[1] % k.shape[1]):
            raise UserError(
                f"q has {q.shape[1]} heads, k and v {k.shape[1]}: theirs must be as many, or divide the heads of q"
            )
        if not q.dtype.is_floating_point or k.dtype != q.dtype or v.dtype != q.dtype:
            raise UserError(f"q, k, v must have one floating dtype, not {q.dtype}, {k.dtype}, {v.dtype}")
        offsets = {"cu_seqlens_q": self.cu_seqlens_q, "cu_seqlens_k": self.cu_seqlens_k}
        for name, cu_seqlens in offsets.items():
            if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1 or cu_seqlens.dtype != torch.int32:
                raise UserError(
                    f"{name} must be int32 of shape (sequences + 1,), not {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
                )
        if self.cu_seqlens_k.shape[0] != self.cu_seqlens_q.shape[0]:
            raise UserError(
                "cu_seqlens_q and cu_seqlens_k must describe the same sequences, not"
                f" {self.sequences} and {self.cu_seqlens_k.shape[0] - 1}"
            )
        for name, length in (("max_seqlen_q", self.max_seqlen_q), ("max_seqlen_k", self.max_seqlen_k)):
            if isinstance(length, Tensor):
                raise UserError(f"{name} is a tensor: it must be an integer, which needs no host-device sync")
            if not torch.compiler.is_compiling() and not isinstance(length, Integral | torch.SymInt):
                raise UserError(f"{name}={length!r} must be an integer")
            if length < 0 or length >= 2**31:
                raise UserError(f"{name}={length} must be the length of the longest sequence, or more, and below 2**31")
        check_dropout("dropout_", self.dropout_p, self.dropout_site)
        check_scale(self.scale)
        if self.dropout_key is not None:
            check_tensor("dropout_key", self.dropout_key, "int64", (self.sequences,), ", one per sequence")
        if self.bias is not None:
            check_tensor("bias", self.bias, "floating", (self.heads, "queries", "keys"), ", one per head")
        others = {"k": k, "v": v, **offsets, "dropout_key": self.dropout_key, "bias": self.bias}
        for name in _RELATIVE:
            others[name] = getattr(self, name)
        check_devices(others, "q", q.device)
        self._check_features()

    def _check_features(self) -> None:
        """Raise UserError for windows, rotary tables and relative positions that no backend supports."""
        q = self.q
        window: object = self.window
        if window is not None and (
            isinstance(window, bool) or not isinstance(window, int | torch.SymInt) or not 1 <= window < 2**31
        ):
            raise UserError(
                f"window={window!r} must be an integer of at least 1 token on each side and below 2**31, or None for"
                " whole sequences"
            )
        if self.rotary is not None:
            check_tensor("rotary", self.rotary, "float32", ("positions", "rotary_dim"))
            width = self.rotary.shape[1]
            if width % 2 or not 2 <= width <= q.shape[2]:
                raise UserError(
                    f"rotary turns {width} dims of each head: they must be even, at least 2 and at most"
                    f" head_dim={q.shape[2]}"
                )
            if q.shape[0] != self.k.shape[0]:
                raise UserError(f"rotary needs the same tokens in q and k, not {q.shape[0]} and {self.k.shape[0]}")
            if self.rotary_positions is None and self.rotary.shape[0] < self.max_seqlen_k:
                raise UserError(
                    f"rotary has {self.rotary.shape[0]} positions, but max_seqlen_k={self.max_seqlen_k}: make the table"
                    " longer"
                )
        if self.rotary_positions is not None:
            if self.rotary is None:
                raise UserError("rotary_positions were given without rotary, the table that they index")
            check_tensor("rotary_positions", self.rotary_positions, "int64", (q.shape[0],), ", one per token")
        longest = max(self.max_seqlen_q, self.max_seqlen_k)
        if self.distance_bias is not None:
            check_tensor("distance_bias", self.distance_bias, "floating", (self.heads, "distances"), ", one per head")
            _check_distances("distance_bias", self.distance_bias.shape[1], longest)
        tables = {name: getattr(self, name) for name in ("position_keys", "position_queries")}
        tables = {name: table for name, table in tables.items() if table is not None}
        if not tables:
            return
        if self.buckets is None:
            raise UserError(f"{next(iter(tables))} needs buckets, int32 (2 x length - 1,): its rows by distance")
        check_tensor("buckets", self.buckets, "int32", ("distances",))
        _check_distances("buckets", self.buckets.shape[0], longest)
        for name, table in tables.items():
            if table.dim() != 3 or table.shape[1:] != q.shape[1:] or table.dtype != q.dtype or not len(table):
                raise UserError(
                    f"{name} must be {q.dtype} of shape (rows, {q.shape[1]}, {q.shape[2]}), as q, not {table.dtype}"
                    f" {tuple(table.shape)}"
                )
        if len({len(table) for table in tables.values()}) > 1:
            sizes = " and ".join(f"{name} {len(table)}" for name, table in tables.items())
            raise UserError(f"both tables of relative positions must have as many rows, not {sizes}")

    def check_positions(self) -> None:
        """Raise UserError for positions and buckets outside of their tables.

        Reads them on a CPU; on a GPU only under FASTBERT_DEBUG=1.
        """
        if self.q.device.type != "cpu" and not is_debugging():
            return
        rows = {"rotary_positions": self.rotary, "buckets": self.position_keys}
        if self.position_keys is None:
            rows["buckets"] = self.position_queries
        for name, table in rows.items():
            indices: Tensor | None = getattr(self, name)
            if indices is None or table is None or not indices.numel():
                continue
            low, high = (int(value) for value in indices.aminmax())
            if low < 0 or high >= len(table):
                raise UserError(f"{name} holds {low if low < 0 else high}, outside of a table of {len(table)} rows")

    def check_offsets(self) -> None:
        """Raise UserError for offsets that do not describe the tokens.

        Reads them on a CPU; on a GPU, where reading is a host-device sync, only under FASTBERT_DEBUG=1.
        """
        if self.q.device.type != "cpu" and not is_debugging():
            return
        for side, cu_seqlens, tokens, max_seqlen in (
            ("q", self.cu_seqlens_q, self.q.shape[0], self.max_seqlen_q),
            ("k", self.cu_seqlens_k, self.k.shape[0], self.max_seqlen_k),
        ):
            name = f"cu_seqlens_{side}"
            offsets = cu_seqlens.tolist()
            if offsets[0] != 0:
                raise UserError(f"{name} starts at {offsets[0]}: it must start at 0")
            for i in range(len(offsets) - 1):
                length = offsets[i + 1] - offsets[i]
                if length < 0:
                    raise UserError(f"{name} decreases from {offsets[i]} to {offsets[i + 1]} at sequence {i}")
                if length > max_seqlen:
                    raise UserError(f"sequence {i} has {length} tokens, more than max_seqlen_{side}={max_seqlen}")
            if offsets[-1] != tokens:
                raise UserError(f"{name} ends at {offsets[-1]}, but {side} has {tokens} tokens: it must end there")


def _check_distances(name: str, distances: int, longest: int) -> None:
    """Raise UserError unless a table by distance covers sequences of `longest` tokens."""
    if not distances % 2 or (distances + 1) // 2 < longest:
        raise UserError(
            f"{name} has {distances} distances: it must have an odd number of them, at least {max(2 * longest - 1, 1)}"
            f" for sequences of {longest} tokens"
        )


class WantedGradients(NamedTuple):
    """The gradients, beside those of q, k and v, that backward computes."""

    bias: bool = False
    distance_bias: bool = False
    position_keys: bool = False
    position_queries: bool = False


class AttentionGradients(NamedTuple):
    """Gradients of an attention's tensors, in their dtypes; None where not wanted."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None = None
    distance_bias: Tensor | None = None
    position_keys: Tensor | None = None
    position_queries: Tensor | None = None
