"""Attention whose scores are a perceptron of query and key (Bahdanau et al. 2015), in place of their dot product.

The kernels compute dot products alone, so this is composed of PyTorch operations: the perceptron has a hidden layer for
every pair of a query and a key, (queries, keys, head_dim) numbers per head.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fastbert.models.initialisation import draw
from fastbert.ops.encoder_layer.spec import AttentionSpec
from fastbert.ops.softmax.eager import softmax_eager

# Elements of the hidden layers that are computed at once.
CHUNK_ELEMENTS = 1 << 24


class PackedAttention(Protocol):
    """Attention over packed sequences, with the arguments of `fastbert.ops.attention`."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        causal: bool = False,
        dropout_p: float = 0.0,
        dropout_key: Tensor | None = None,
        dropout_site: int = 0,
    ) -> Tensor:
        """Return (query tokens, heads, head_dim) of q, and of k and v (key tokens, heads, head_dim)."""


class PerceptronSimilarity(nn.Module):
    """Attention with scores v . tanh(q + k), "additive", or v . tanh(W [q; k]), "concat" (Luong et al. 2015), per head.

    q and k are the projected query and key. `vector` is v (heads, head_dim), `mix` is W (heads, head_dim, 2 head_dim).
    The softmax and its sums are fp32; its dropout is that of `fastbert.ops.attention`.
    """

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__()
        self.vector: nn.Parameter = nn.Parameter(torch.empty(spec.heads, spec.head_dim))
        self.mix: nn.Parameter | None = None
        if spec.similarity == "concat":
            self.mix = nn.Parameter(torch.empty(spec.heads, spec.head_dim, 2 * spec.head_dim))

    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights from uniform distributions of Glorot's variance, with `generator` or torch's global one."""
        if self.vector.is_meta:
            return
        heads, width = self.vector.shape
        draw(nn.init.uniform_, self.vector, -((6 / (width + 1)) ** 0.5), (6 / (width + 1)) ** 0.5, generator=generator)
        if self.mix is not None:
            for head in range(heads):
                draw(nn.init.xavier_uniform_, self.mix[head], generator=generator)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        *,
        causal: bool = False,
        dropout_p: float = 0.0,
        dropout_key: Tensor | None = None,
        dropout_site: int = 0,
    ) -> Tensor:
        """Return attention over packed sequences, as `PackedAttention` says; the lengths are read on the host.

        With `causal`, the last query attends to all keys and each query before it to one key fewer. A query without a
        key gets zeros. Sequences without queries are skipped, so that their keys may be uninitialised memory.
        """
        del max_seqlen_q, max_seqlen_k  # upper bounds, of sequences without queries too
        key = dropout_key if dropout_p else None
        begins_q, begins_k = cu_seqlens_q.long(), cu_seqlens_k.long()
        lengths_q, lengths_k = begins_q.diff(), begins_k.diff()
        rows = lengths_q.nonzero().flatten()
        if not len(rows):
            return q.new_zeros(q.shape)
        queries, keys = self._hidden(q, k)
        heads, width = q.shape[1:]
        longest = int(lengths_q.max()) * max(int(lengths_k[rows].max()), 1)
        step = max(1, CHUNK_ELEMENTS // (longest * heads * width))
        outputs = []
        for chunk in rows.split(step):
            slots_q, seen_q = _slots(begins_q[chunk], lengths_q[chunk])
            slots_k, seen_k = _slots(begins_k[chunk], lengths_k[chunk])
            if not len(k):
                outputs.append(v.new_zeros(int(seen_q.sum()), heads, width))
                continue
            hidden = torch.tanh(queries[slots_q][:, :, None] + keys[slots_k][:, None])
            scores = torch.einsum("nqkhd,hd->nhqk", hidden, self.vector.to(hidden.dtype))
            visible = seen_k[:, None, None, :]
            if causal:
                last = torch.arange(slots_q.shape[1], device=q.device) + (lengths_k - lengths_q)[chunk][:, None]
                column = torch.arange(slots_k.shape[1], device=q.device)
                visible = visible & (column <= last[..., None])[:, None]
            chunk_key = None if key is None else key[chunk]
            shares = softmax_eager(scores, visible, 1.0, dropout_p, chunk_key, dropout_site)
            # Slots beyond a sequence hold a key of its own or of another sequence, perhaps not written yet.
            values = v[slots_k].masked_fill(~seen_k[..., None, None], 0)
            outputs.append(torch.einsum("nhqk,nkhd->nqhd", shares.to(values.dtype), values)[seen_q])
        return torch.cat(outputs)

    def _hidden(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parts of the hidden layer, before its tanh, that queries and keys add, in the shapes of q, k."""
        if self.mix is None:
            return q, k
        first, second = self.mix.to(q.dtype).chunk(2, dim=-1)
        return torch.einsum("thd,hed->the", q, first), torch.einsum("thd,hed->the", k, second)


def _slots(begins: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token of each slot of sequences that are padded to the longest, int64 (sequences, longest), and
    whether the slot has one, bool; other slots hold the sequence's first token, or token 0 if it is empty."""
    column = torch.arange(max(int(lengths.max()), 1), device=begins.device)
    seen = column < lengths[:, None]
    return torch.where(seen, begins[:, None] + column, (begins * (lengths > 0))[:, None]), seen


def perceptron_similarity(spec: AttentionSpec) -> PerceptronSimilarity | None:
    """Return the module of an attention's similarity; None for the dot product, which has no parameters."""
    return None if spec.similarity == "dot" else PerceptronSimilarity(spec)


def similarity_of(projections: Any) -> PackedAttention | None:
    """Return what computes the attention of these projections in place of `fastbert.ops.attention`, None if nothing."""
    similarity: PackedAttention | None = getattr(projections, "similarity", None)
    return similarity
