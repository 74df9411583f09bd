"""The forward of an accelerated `torch.nn.TransformerEncoder` (post-LN, batch_first), packed through all layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from fastbert.errors import UserError
from fastbert.integrations.layout import Layout, lay_out
from fastbert.integrations.packed_forward import Replaced
from fastbert.integrations.packed_layers import LayerParts, dropped, is_touched, library_multiplies_bf16, run_layer
from fastbert.models.bert import ROWS_MULTIPLE, multiplies_in_bf16
from fastbert.models.layers import Dropouts

ORDER = ("src", "mask", "src_key_padding_mask", "is_causal")


def is_encoder(module: nn.Module) -> bool:
    """Whether a module is a `torch.nn.TransformerEncoder`, also a subclass that computes as it does."""
    return isinstance(module, nn.TransformerEncoder) and type(module).forward is nn.TransformerEncoder.forward


def check(module: nn.Module, where: str) -> None:
    """Refuse an encoder whose layers are not post-LN ones that take (sequences, length, width)."""
    layers: Any = module.layers
    for index, layer in enumerate(layers):
        place = f"{where}.layers.{index}".removeprefix("TransformerEncoder.")
        if type(layer) is not nn.TransformerEncoderLayer:
            raise UserError(f"{place} is a {type(layer).__name__}, no TransformerEncoderLayer; the model is unchanged")
        if layer.norm_first:
            raise UserError(f"{place} has norm_first=True: only post-LN layers are served; the model is unchanged")
        if not layer.self_attn.batch_first:
            raise UserError(f"{place} has batch_first=False: only batch_first is served; the model is unchanged")


class TorchEncoderForward(Replaced):
    """(sequences, length, width) -> the same; with a `src_key_padding_mask`, True at padding, zeros there."""

    def __init__(self, module: nn.Module, where: str, *, int8: bool) -> None:
        super().__init__(module, where)
        self.int8 = int8
        self._views: dict[int, tuple[tuple[Any, ...], tuple[nn.Linear, ...]]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchEncoderForward:
        from copy import deepcopy

        return TorchEncoderForward(deepcopy(self.module, memo), self.where, int8=self.int8)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": {}}

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(ORDER, args, strict=False)), **kwargs}
        src, padding = given.get("src"), given.get("src_key_padding_mask")
        reason = self._unserved(src, padding, given)
        if reason is not None or src is None:
            if reason:
                self.fall_back(reason)
            return self.original(*args, **kwargs)
        ids = torch.zeros(src.shape[:2], dtype=torch.int64, device=src.device)
        layout = lay_out(ids, None if padding is None else ~padding)
        return self._run(layout, src, padding)

    def closed_layers(self) -> Iterator[tuple[int, str]]:
        """Layers that run their own forward, and why."""
        for index, layer in enumerate(self._layers()):
            if not _is_open(layer):
                yield index, "it has hooks or is of another kind"

    def _layers(self) -> Any:
        return self.module.layers

    def _unserved(self, src: Tensor | None, padding: Tensor | None, given: dict[str, Any]) -> str | None:
        if torch.jit.is_tracing() or torch.compiler.is_exporting() or not isinstance(src, Tensor) or src.numel() == 0:
            return ""
        if src.is_nested or src.dim() != 3:
            return "nested tensors, or an input of other than three dimensions"
        if given.get("mask") is not None or given.get("is_causal"):
            return "an attention mask"
        if padding is not None and padding.dtype != torch.bool:
            return "a padding mask that is not bool"
        return "hooks on all modules" if _has_any_global_hook() else None

    def _run(self, layout: Layout, src: Tensor, padding: Tensor | None) -> Tensor:
        layers, batch, x = self._layers(), layout.batch, layout.pack(src)
        parts = [self._parts(index, layer) if _is_open(layer) else None for index, layer in enumerate(layers)]
        known = [part for part in parts if part is not None]
        if self._library_multiplies_bf16(known, x):
            batch = batch.filled(ROWS_MULTIPLE)
            x = F.pad(x, (0, 0, 0, batch.num_tokens - len(x)))
        hidden = max((max(part.attention_output_p, part.output_p) for part in known), default=0.0)
        dropouts = Dropouts(batch, hidden, max((part.attention_p for part in known), default=0.0), training=True)
        tokens = layout.batch.num_tokens
        for index, (layer, own) in enumerate(zip(layers, parts, strict=True)):
            if own is not None:
                x = run_layer(own, x, batch, dropouts, index, self.int8)
            else:
                packed = layout.pack(layer(layout.restore(x[:tokens]), src_key_padding_mask=padding))
                x = torch.cat((packed, x[tokens:].to(packed.dtype)))
        norm: Any = self.module.norm
        x = x[:tokens] if norm is None else norm(x[:tokens])
        # Under autocast a LayerNorm's output has its input's dtype in torch.nn.
        return layout.restore(x.to(src.dtype) if torch.is_autocast_enabled(src.device.type) else x)

    def _library_multiplies_bf16(self, parts: list[LayerParts], x: Tensor) -> bool:
        if not multiplies_in_bf16(x):
            return False
        return library_multiplies_bf16(parts, len(x), torch.bfloat16, self.int8)

    def _parts(self, index: int, layer: Any) -> LayerParts:
        attention = layer.self_attn
        first_p, last_p, inner_p = dropped(layer.dropout1, layer.dropout2, layer.dropout)
        query, key, value, out = self._projections(index, attention)
        return LayerParts(
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
            attention_p=float(attention.dropout) if attention.training else 0.0,
            attention_output_p=first_p,
            output_p=last_p,
            inner_p=inner_p,
        )

    def _projections(self, index: int, attention: nn.MultiheadAttention) -> tuple[nn.Linear, ...]:
        """Query, key, value and output as linear layers over the parameters of the attention."""
        weight, bias = attention.in_proj_weight, attention.in_proj_bias
        out = (attention.out_proj.weight, attention.out_proj.bias)
        trained = torch.is_grad_enabled() and weight.requires_grad
        # Views of a parameter that are the same objects from call to call, so that packed copies of them last.
        state = (id(weight), weight.data_ptr(), id(bias), *map(id, out), weight.dtype)
        if not trained and index in self._views and self._views[index][0] == state:
            return self._views[index][1]
        biases = (None, None, None) if bias is None else (bias if trained else bias.detach()).chunk(3)
        weights = (weight if trained else weight.detach()).chunk(3)
        linears = tuple(_linear(*pair) for pair in (*zip(weights, biases, strict=True), out))
        if not trained:
            self._views[index] = (state, linears)
        return linears


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer over tensors that another module owns."""
    linear = nn.Linear(1, 1, bias=False, device="meta")
    linear._parameters["weight"], linear._parameters["bias"] = weight, bias  # type: ignore[assignment]
    return linear


def _is_open(layer: Any) -> bool:
    if type(layer) is not nn.TransformerEncoderLayer or "forward" in layer.__dict__ or is_touched(layer):
        return False
    attention = layer.self_attn
    if type(attention) is not nn.MultiheadAttention or "forward" in attention.__dict__:
        return False
    home: Callable[[Any], str] = lambda part: type(part).__module__  # noqa: E731
    own = attention._parameters
    plain = own.get("in_proj_weight") is not None and attention.bias_k is None and not attention.add_zero_attn
    return plain and home(attention.out_proj) == nn.Linear.__module__
