"""The forward of a masked-LM head behind an accelerated encoder: computed of tokens, not of padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from fastbert import ops
from fastbert.integrations.families import prediction_head
from fastbert.integrations.packed_forward import SLOTS, Replaced
from fastbert.integrations.packed_layers import gelu_of, is_plain_norm, is_touched
from fastbert.models.plain import project, project_apart
from fastbert.packing import pad


class PackedHead(Replaced):
    """Logits (rows, columns, vocab_size) of hidden states (rows, columns, hidden_size); zeros at padding."""

    def compute(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        module: nn.Module = self.module
        head = (
            None if is_touched(module) or _has_any_global_hook() or torch.jit.is_tracing() else prediction_head(module)
        )
        approximation = None if head is None else gelu_of(head.activation)
        if head is None or approximation is None or not is_plain_norm(head.norm) or hidden.dim() != 3:
            return self.original(hidden, *args, **kwargs)
        slots = getattr(hidden, SLOTS, None)
        shape, x = (hidden.shape[0], hidden.shape[1]), hidden.flatten(0, 1)
        if slots is not None:
            x = x.index_select(0, slots)
        norm: Any = head.norm
        product, bias = project_apart(head.dense, x)
        x = ops.gelu_layer_norm(product, bias, norm.weight, norm.bias, norm.eps, approximation)
        logits = project(head.decoder, x)
        return logits.view(*shape, -1) if slots is None else pad(logits, slots, shape)
