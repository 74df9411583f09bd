"""Packed sequences of which only some tokens are keys: the others attend to these, and no token attends to them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.packing import PackedBatch


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedBatch(PackedBatch):
    """A batch whose keys are the tokens `key_indices` int64 (keys,), ordered by sequence; `cu_seqlens_k` int32 (B + 1,)
    are the offsets of each sequence's among them. Each sequence has at least one."""

    key_indices: Tensor
    cu_seqlens_k: Tensor

    def filled(self, multiple: int) -> KeyedBatch:
        """Return the batch unchanged: a dummy sequence would need keys too."""
        return self


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedLayerBatch(LayerBatch):
    """The tensors of a call with a `KeyedBatch`: its layers are composed, with keys and values of some tokens."""

    keyed: KeyedBatch
