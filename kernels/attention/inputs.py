"""The inputs of all launchers of packed attention."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class AttentionInputs(NamedTuple):
    """The inputs of all launchers: q, k, v (tokens, heads, head_dim) with contiguous heads, int32 offsets."""

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
