"""The inputs of all launchers of packed attention."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class TableGradients(NamedTuple):
    """The gradients of tables by distance that backward computes."""

    distance_bias: bool = False
    position_keys: bool = False
    position_queries: bool = False


NO_TABLES = TableGradients()


class AttentionInputs(NamedTuple):
    """The inputs of all launchers: q, k, v (tokens, heads, head_dim) with contiguous heads, int32 offsets. The fields
    with defaults are as in `fastbert.ops.attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    dropout_key: Tensor | None
    """int64 (sequences,); None without dropout."""
    dropout_threshold: int
    """8-bit draws below it are dropped."""
    dropout_scale: float
    """The factor of what is not dropped."""
    dropout_site: int
    bias: Tensor | None
    scale: float
    tf32: bool
    window: int | None = None
    rotary: Tensor | None = None
    rotary_positions: Tensor | None = None
    distance_bias: Tensor | None = None
    position_keys: Tensor | None = None
    position_queries: Tensor | None = None
    buckets: Tensor | None = None

    @property
    def is_positional(self) -> bool:
        """Return whether the kernels of `fastbert.kernels.attention.positional` compute the call."""
        tables = (self.rotary, self.distance_bias, self.position_keys, self.position_queries)
        shares_heads = self.k.shape[1] != self.q.shape[1]
        return shares_heads or self.window is not None or any(table is not None for table in tables)

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return self.cu_seqlens_q.shape[0] - 1

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.q.shape[1]

    @property
    def max_seqlen(self) -> int:
        """The longest sequence, of queries or of keys."""
        return max(self.max_seqlen_q, self.max_seqlen_k)
