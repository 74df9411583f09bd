"""The forward of a masked-LM head behind an accelerated encoder: computed of tokens, not of padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from fastbert import ops
from fastbert.integrations.forward_patch import Replaced
from fastbert.integrations.module_checks import gelu_of, is_by_token, is_plain_norm, is_touched, torch_is_patched
from fastbert.integrations.transformers.encoder import SLOTS
from fastbert.integrations.transformers.layouts import PredictionHead, prediction_head
from fastbert.models.fusibility import project, project_apart
from fastbert.ops.native import buffers, prepacked_weights
from fastbert.packing import pad


class PackedHead(Replaced):
    """Logits (rows, columns, vocab_size) of hidden states (rows, columns, hidden_size); zeros at padding."""

    _sums: tuple[int, float] | None = None

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else next(iter(kwargs.values()), None)
        head = self._head()
        if head is None or not isinstance(hidden, Tensor) or hidden.dim() != 3 or not hidden.numel() or hidden.is_meta:
            return self.original(*args, **kwargs)
        slots = getattr(hidden, SLOTS, None)
        shape, x = (hidden.shape[0], hidden.shape[1]), hidden.flatten(0, 1)
        if slots is not None:
            x = x.index_select(0, slots)
        norm: Any = head.norm
        product, bias = project_apart(head.dense, x)
        x = ops.gelu_layer_norm(product, bias, norm.weight, norm.bias, norm.eps, gelu_of(head.activation) or "none")
        self._look_at_rows(head.decoder)
        logits = project(head.decoder, x)
        return logits.view(*shape, logits.shape[-1]) if slots is None else pad(logits, slots, shape)

    def _head(self) -> PredictionHead | None:
        """The parts of the head, if nothing but them decides what it computes."""
        if is_touched(self.module) or _has_any_global_hook() or torch_is_patched():
            return None
        if torch.jit.is_tracing() or torch.compiler.is_exporting() or buffers.is_transformed():
            return None
        head = prediction_head(self.module)
        if head is None or gelu_of(head.activation) is None or not is_plain_norm(head.norm):
            return None
        return head if is_by_token(head.dense) and is_by_token(head.decoder) else None

    def _look_at_rows(self, decoder: nn.Module) -> None:
        """Rows of the table that were written past torch's count of writes (`embeddings.weight.data[id] = ...`) are
        too few among all for a fingerprint of it; one number of each row is not much to read."""
        weight = decoder._parameters.get("weight")
        if weight is None or weight.device.type != "cpu" or torch.is_grad_enabled():
            return
        found = (id(weight), float(weight.detach()[:, 0].double().sum()))
        if self._sums is not None and self._sums != found:
            prepacked_weights.forget(weight)
        self._sums = found
