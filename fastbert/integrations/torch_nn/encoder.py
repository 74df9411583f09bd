"""The forward of an accelerated `torch.nn.TransformerEncoder` (post-LN, batch_first), packed through all layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from fastbert.errors import UserError
from fastbert.integrations.forward_patch import ForwardPatch
from fastbert.integrations.layer_modules import LayerModules, largest_dropout, library_multiplies_bf16, run_layer
from fastbert.integrations.module_checks import (
    dropout_probability,
    gelu_approximation,
    has_hooks_inside,
    is_library_module,
    is_tokenwise_norm,
    torch_is_patched,
)
from fastbert.integrations.transformers.unpadding import Unpadding, unpad
from fastbert.models.layers import ROWS_MULTIPLE, layer_batch
from fastbert.ops.compiling import is_exporting
from fastbert.ops.native import buffers

HOME, ATTENTION_HOME = nn.TransformerEncoder.__module__, nn.MultiheadAttention.__module__


def is_encoder(module: nn.Module) -> bool:
    """Return whether a module is a `torch.nn.TransformerEncoder`, or a subclass that computes as it does."""
    kind: Any = type(module)
    if not isinstance(module, nn.TransformerEncoder) or kind.forward is not nn.TransformerEncoder.forward:
        return False
    return bool(kind.forward.__module__ == HOME)


def check(module: nn.Module, where: str) -> None:
    """Raise UserError for an encoder whose layers are not post-LN layers of (sequences, length, width)."""
    layers: Any = module.layers
    for index, layer in enumerate(layers):
        name = f"{where}.layers.{index}".removeprefix("TransformerEncoder.")
        if type(layer) is not nn.TransformerEncoderLayer:
            raise UserError(
                f"{name} is a {type(layer).__name__}, not a TransformerEncoderLayer; the model is unchanged"
            )
        if layer.norm_first:
            raise UserError(f"{name} has norm_first=True: only post-LN layers are supported; the model is unchanged")
        if not layer.self_attn.batch_first:
            raise UserError(f"{name} has batch_first=False: only batch_first is supported; the model is unchanged")


class TorchEncoderForward(ForwardPatch):
    """An encoder's forward on packed tokens: (sequences, length, width) -> the same shape, with zeros where the bool
    `src_key_padding_mask` is True."""

    def __init__(self, module: nn.Module, where: str, *, int8: bool) -> None:
        super().__init__(module, where)
        self.int8 = int8
        self._views: dict[int, tuple[tuple[Any, ...], tuple[nn.Linear, ...]]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchEncoderForward:
        from copy import deepcopy

        other = TorchEncoderForward(deepcopy(self.module, memo), self.where, int8=self.int8)
        other.enabled = self.enabled
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": {}}

    def copy_for(self, module: nn.Module) -> TorchEncoderForward:
        """Return the same patch for another module."""
        other = super().copy_for(module)
        other._views = {}
        return other

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Run the encoder packed, or the original forward where that is not supported."""
        arguments = self.__signature__.bind(*args, **kwargs).arguments
        src, padding = arguments["src"], arguments.get("src_key_padding_mask")
        reason = self._unsupported(src, padding, arguments)
        if reason is not None:
            if reason:
                self.fall_back(reason)
            return self.original(*args, **kwargs)
        ids = torch.zeros(src.shape[:2], dtype=torch.int64, device=src.device)
        unpadding = unpad(ids, None if padding is None else ~padding)
        # With another activation no layer is fused, so only unpadding is a gain.
        gelu = all(gelu_approximation(layer.activation) is not None for layer in self._layers())
        if unpadding.slots is None and not gelu:
            return self.original(*args, **kwargs)
        return self._run(unpadding, src, padding)

    def closed_layers(self) -> Iterator[tuple[int, str]]:
        """Yield the indices of layers that run their own forward, each with the reason."""
        for index, layer in enumerate(self._layers()):
            if self._layer_modules(index, layer) is None:
                yield index, "it has hooks or is not as the library wrote it"

    def _layers(self) -> Any:
        return self.module.layers

    def _unsupported(self, src: Any, padding: Tensor | None, arguments: dict[str, Any]) -> str | None:
        """Return why a call must fall back to the original forward, empty to do so without a warning, or None."""
        if not isinstance(src, Tensor) or torch.jit.is_tracing() or is_exporting():
            return ""
        weightless = any(parameter.is_meta for parameter in self.module.parameters())
        if buffers.is_transformed() or src.numel() == 0 or src.is_meta or weightless:
            return ""
        if src.dtype == torch.float64 and torch.is_autocast_enabled(src.device.type):
            return ""
        if src.is_nested or src.dim() != 3:
            return "nested tensors, or an input of other than three dimensions"
        if arguments.get("mask") is not None or arguments.get("is_causal"):
            return "an attention mask"
        if padding is not None and padding.dtype != torch.bool:
            return "a padding mask that is not bool"
        if padding is not None and padding.shape != src.shape[:2]:
            return ""
        return "hooks on all modules, or torch.nn changed" if _has_any_global_hook() or torch_is_patched() else None

    def _run(self, unpadding: Unpadding, src: Tensor, padding: Tensor | None) -> Tensor:
        layers, batch, x = self._layers(), unpadding.batch, unpadding.pack(src)
        modules = [self._layer_modules(index, layer) for index, layer in enumerate(layers)]
        if library_multiplies_bf16(modules, len(x), x, self.int8):
            batch = batch.filled(ROWS_MULTIPLE)
            x = F.pad(x, (0, 0, 0, batch.num_tokens - len(x)))
        layers_batch = layer_batch(batch, *largest_dropout(modules), training=True)
        tokens = unpadding.batch.num_tokens
        for index, (layer, leaves) in enumerate(zip(layers, modules, strict=True)):
            if leaves is not None:
                x = run_layer(leaves, x, layers_batch, index, self.int8)
            else:
                packed = unpadding.pack(self._original_layer(layer, unpadding.restore(x[:tokens]), padding))
                x = torch.cat((packed, x[tokens:].to(packed.dtype)))
        x = x[:tokens]
        norm: Any = self.module.norm
        if norm is not None and is_tokenwise_norm(norm) and not has_hooks_inside(norm):
            x = norm(x)
        elif norm is not None:
            x = unpadding.pack(norm(unpadding.restore(x)))
        # Under autocast a LayerNorm's output has its input's dtype in torch.nn.
        return unpadding.restore(x.to(src.dtype) if torch.is_autocast_enabled(src.device.type) else x)

    def _original_layer(self, layer: Any, padded: Tensor, padding: Tensor | None) -> Tensor:
        """Call a layer as torch.nn's encoder does."""
        mask = None
        if padding is not None:
            mask = torch.zeros_like(padding, dtype=padded.dtype).masked_fill_(padding, float("-inf"))
        result: Tensor = layer(padded, src_mask=None, is_causal=False, src_key_padding_mask=mask)
        return result

    def _layer_modules(self, index: int, layer: Any) -> LayerModules | None:
        """Return the leaves of a layer; None where the layer must run as a whole, for its hooks for example."""
        if (
            type(layer) is not nn.TransformerEncoderLayer
            or not is_library_module(layer, HOME)
            or has_hooks_inside(layer)
        ):
            return None
        attention = layer.self_attn
        first_p, last_p, inner_p = (
            dropout_probability(layer.dropout1),
            dropout_probability(layer.dropout2),
            dropout_probability(layer.dropout),
        )
        if first_p is None or last_p is None or inner_p is None or not _is_standard(attention):
            return None
        query, key, value, out = self._projections(index, attention)
        leaves = LayerModules(
            query=query,
            key=key,
            value=value,
            attention_output=out,
            attention_norm=layer.norm1,
            intermediate=layer.linear1,
            activation=layer.activation,
            output=layer.linear2,
            output_norm=layer.norm2,
            heads=attention.num_heads,
            head_dim=attention.head_dim,
            attention_p=float(attention.dropout) if attention.training else 0.0,
            attention_output_p=first_p,
            output_p=last_p,
            inner_p=inner_p,
        )
        return leaves if leaves.is_tokenwise() else None

    def _projections(self, index: int, attention: nn.MultiheadAttention) -> tuple[nn.Linear, ...]:
        """Return query, key, value and output as linear layers over the parameters of the attention."""
        weight: Tensor = attention.in_proj_weight
        bias: Tensor | None = attention.in_proj_bias
        out = (attention.out_proj.weight, attention.out_proj.bias)
        trained = torch.is_grad_enabled() and (weight.requires_grad or (bias is not None and bias.requires_grad))
        # The views are cached, so that their prepacked copies stay valid from call to call.
        tensors = (weight, *out) if bias is None else (weight, bias, *out)
        state = tuple((id(tensor), tensor.data_ptr(), tensor.dtype) for tensor in tensors if tensor is not None)
        if not trained and index in self._views and self._views[index][0] == state:
            return self._views[index][1]
        biases = (None, None, None) if bias is None else (bias if trained else bias.detach()).chunk(3)
        weights = (weight if trained else weight.detach()).chunk(3)
        linears = tuple(_linear(*pair) for pair in (*zip(weights, biases, strict=True), out))
        if not trained:
            self._views[index] = (state, linears)
        return linears


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer over tensors that another module owns."""
    linear = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(linear)
    linear.out_features, linear.in_features = weight.shape
    parameters: Any = linear._parameters
    parameters["weight"], parameters["bias"] = weight, bias
    return linear


def _is_standard(attention: Any) -> bool:
    """Return whether attention is torch's own, with one input projection, no extra keys and a plain output."""
    if type(attention) is not nn.MultiheadAttention or not is_library_module(attention, ATTENTION_HOME):
        return False
    if attention.bias_k is not None or attention.add_zero_attn or attention._parameters.get("in_proj_weight") is None:
        return False
    return type(attention.out_proj).__module__ == nn.Linear.__module__ and "forward" not in attention.out_proj.__dict__
