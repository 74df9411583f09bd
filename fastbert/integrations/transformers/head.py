"""The forward of an accelerated masked-LM head of transformers, which skips the padding of the hidden states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from fastbert import ops
from fastbert.integrations.forward_patch import ForwardPatch
from fastbert.integrations.module_checks import (
    gelu_approximation,
    has_hooks_inside,
    is_plain_norm,
    is_tokenwise_linear,
    torch_is_patched,
)
from fastbert.integrations.transformers import layouts
from fastbert.models.fusibility import project, project_without_bias
from fastbert.ops.native import buffers, prepacked_weights
from fastbert.packing import pad

# The attribute of restored hidden states that holds the indices of their tokens, for heads that skip padding.
SLOTS = "_fastbert_slots"


class PackedHead(ForwardPatch):
    """A masked-LM head's forward: hidden states (rows, columns, hidden_size) -> logits (rows, columns, vocab_size).

    Logits at padding are zeros."""

    _sums: tuple[int, float] | None = None

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Return the logits, of tokens alone if the encoder has marked them."""
        hidden = args[0] if args else next(iter(kwargs.values()), None)
        head = self._head()
        if head is None or not isinstance(hidden, Tensor) or hidden.dim() != 3 or not hidden.numel() or hidden.is_meta:
            return self.original(*args, **kwargs)
        slots = getattr(hidden, SLOTS, None)
        shape, x = (hidden.shape[0], hidden.shape[1]), hidden.flatten(0, 1)
        if slots is not None:
            x = x.index_select(0, slots)
        norm: Any = head.norm
        product, bias = project_without_bias(head.dense, x)
        x = ops.gelu_layer_norm(
            product, bias, norm.weight, norm.bias, norm.eps, gelu_approximation(head.activation) or "none"
        )
        self._detect_row_writes(head.decoder)
        logits = project(head.decoder, x)
        return logits.view(*shape, logits.shape[-1]) if slots is None else pad(logits, slots, shape)

    def _head(self) -> layouts.PredictionHead | None:
        """Return the head's modules if they alone decide what it computes, else None."""
        if has_hooks_inside(self.module) or _has_any_global_hook() or torch_is_patched():
            return None
        if torch.jit.is_tracing() or torch.compiler.is_exporting() or buffers.is_transformed():
            return None
        head = layouts.prediction_head(self.module)
        if head is None or gelu_approximation(head.activation) is None or not is_plain_norm(head.norm):
            return None
        return head if is_tokenwise_linear(head.dense) and is_tokenwise_linear(head.decoder) else None

    def _detect_row_writes(self, decoder: nn.Module) -> None:
        """Drop the prepacked decoder if single rows were written to without torch counting it, as by
        `embeddings.weight.data[id] = ...`, which the fingerprint may miss: compare the sum of one number per row."""
        weight = decoder._parameters.get("weight")
        if weight is None or weight.device.type != "cpu" or torch.is_grad_enabled():
            return
        state = (id(weight), float(weight.detach()[:, 0].double().sum()))
        if self._sums is not None and self._sums != state:
            prepacked_weights.forget(weight)
        self._sums = state
