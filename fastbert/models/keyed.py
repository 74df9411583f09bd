"""Packed sequences of which only some tokens are keys: the others attend to these, and no token attends to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.attention.rotary import positions_of, rotate
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

    def without_positions(
        self, q: Tensor, k: Tensor, features: dict[str, Any]
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return q and k (tokens, heads, head_dim), turned by rotary tables, before keys are selected, and the features
        of attention that are left, which are none.

        Raises `UserError` for windows and relative positions, which count all tokens between a query and a key.
        """
        rotary, positions = features.get("rotary"), features.get("rotary_positions")
        others = [name for name, value in features.items() if value is not None and not name.startswith("rotary")]
        if others:
            raise UserError(
                f"{others[0]}: tokens that nobody attends to cannot be left out of the keys of a model with windows or"
                " relative positions; use a model with absolute or rotary positions"
            )
        if rotary is not None:
            positions = positions_of(self.cu_seqlens, len(q)) if positions is None else positions
            q, k = rotate(q, rotary, positions), rotate(k, rotary, positions)
        return q, k, {}


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedLayerBatch(LayerBatch):
    """The tensors of a call with a `KeyedBatch`: its layers are composed, with keys and values of some tokens."""

    keyed: KeyedBatch
