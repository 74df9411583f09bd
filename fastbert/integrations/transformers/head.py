"""The forward of an accelerated masked-LM head of transformers, which skips the padding of the hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from fastbert.integrations.forward_patch import ForwardPatch
from fastbert.integrations.module_checks import (
    activation_name,
    has_hooks_inside,
    is_tokenwise_linear,
    norm_eps,
    torch_is_patched,
)
from fastbert.integrations.transformers import layouts
from fastbert.models.fusibility import PLAIN_TENSORS, owns_weight, project, project_without_bias
from fastbert.ops.autocast import matmul_dtype
from fastbert.ops.compiling import is_exporting
from fastbert.ops.encoder_layer.composition import activate
from fastbert.ops.encoder_layer.spec import APPROXIMATIONS, Activation
from fastbert.ops.linear.op import linear
from fastbert.ops.native import buffers, prepacked_weights
from fastbert.ops.norm.op import gelu_layer_norm, layer_norm
from fastbert.packing import pad

# The attribute of restored hidden states that holds the indices of their tokens, for heads that skip padding.
SLOTS = "_fastbert_slots"

# A function of the tokens' states (tokens, width).
Tokenwise = Callable[[Tensor], Tensor]


class PackedHead(ForwardPatch):
    """A masked-LM head's forward: hidden states (..., hidden_size) -> logits (..., vocab_size), or the states of a head
    whose logits another module computes.

    Of states (rows, columns, hidden_size) that the encoder has marked, only those of tokens are computed; the result at
    padding is zeros."""

    _sums: tuple[int, float] | None = None

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Return the logits, of tokens alone if the encoder has marked them."""
        arguments = (*args, *kwargs.values())
        hidden = arguments[0] if arguments else None
        function = self._function(arguments[1:]) if self._is_as_written() else None
        if function is None or not isinstance(hidden, Tensor) or hidden.dim() < 2:
            return self.original(*args, **kwargs)
        if not hidden.numel() or hidden.is_meta:
            return self.original(*args, **kwargs)
        slots, x = getattr(hidden, SLOTS, None), hidden.flatten(0, -2)
        if slots is None:
            y = function(x)
            return y.view(*hidden.shape[:-1], y.shape[-1])
        y = pad(function(x.index_select(0, slots)), slots, (hidden.shape[0], hidden.shape[1]))
        if self._precedes_decoder():
            setattr(y, SLOTS, slots)
        return y

    def _precedes_decoder(self) -> bool:
        """Return whether another module multiplies the result with the vocabulary."""
        layout = layouts.head_layout(self.module)
        return layout is not None and layout.decoder is None and not layout.reads_table

    def _is_as_written(self) -> bool:
        """Return whether nothing but the head's modules decides what it computes."""
        if has_hooks_inside(self.module) or _has_any_global_hook() or torch_is_patched():
            return False
        return not (torch.jit.is_tracing() or is_exporting() or buffers.is_transformed())

    def _function(self, others: tuple[Any, ...]) -> Tokenwise | None:
        """Return what the head computes of tokens, given forward's other arguments; None where it is something else."""
        layout, head = layouts.head_layout(self.module), layouts.prediction_head(self.module)
        if layout is None or head is None or type(head.norm) is not nn.LayerNorm:
            return None
        activation = activation_name(head.activation)
        if activation is None or norm_eps(head.norm, type(self.module).__module__) is None:
            return None
        decode: Tokenwise | None
        if layout.reads_table:
            decode = self._table_decoder(others)
        elif others:
            return None
        elif head.decoder is None:
            decode = _same
        else:
            decode = self._module_decoder(head.decoder)
        if decode is None or not is_tokenwise_linear(head.dense):
            return None
        return lambda x: decode(_transform(head, activation, x))

    def _module_decoder(self, decoder: nn.Module) -> Tokenwise | None:
        """Return the matmul of the head's own linear layer with the vocabulary."""
        if not is_tokenwise_linear(decoder):
            return None
        self._detect_row_writes(decoder)
        return lambda x: project(decoder, x)

    def _table_decoder(self, others: tuple[Any, ...]) -> Tokenwise | None:
        """Return the matmul with the token embedding, the head's second argument; its hooks see none of it."""
        bias = self.module._parameters.get("bias")
        if len(others) != 1 or not isinstance(others[0], nn.Embedding) or type(bias) not in PLAIN_TENSORS:
            return None
        weight = others[0]._parameters.get("weight")
        if type(weight) not in PLAIN_TENSORS:
            return None
        self._detect_row_writes(others[0])

        def decode(x: Tensor) -> Tensor:
            assert weight is not None
            assert bias is not None
            if matmul_dtype(x) == bias.dtype:
                return linear(x, weight, bias)
            return linear(x, weight) + bias  # under autocast the sum has the bias's dtype

        return decode

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


class PackedDecoder(PackedHead):
    """The forward of a linear layer that multiplies with the vocabulary."""

    def _function(self, others: tuple[Any, ...]) -> Tokenwise | None:
        """Return the matmul, unless the weight is computed from other tensors."""
        decoder: Any = self.module
        if others or type(decoder) is not nn.Linear or not owns_weight(decoder):
            return None
        self._detect_row_writes(decoder)
        return lambda x: linear(x, decoder.weight, decoder.bias)


def _transform(head: layouts.PredictionHead, activation: Activation, x: Tensor) -> Tensor:
    """Return the norm of the activation of the head's linear layer of x (tokens, hidden_size)."""
    norm: Any = head.norm
    product, bias = project_without_bias(head.dense, x)
    if activation in APPROXIMATIONS:
        return gelu_layer_norm(product, bias, norm.weight, norm.bias, norm.eps, APPROXIMATIONS[activation])
    return layer_norm(activate(product, bias, activation), norm.weight, norm.bias, norm.eps)


def _same(x: Tensor) -> Tensor:
    return x
