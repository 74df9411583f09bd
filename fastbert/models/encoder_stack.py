"""The layers of a model as one call into C++ for a batch.

A layer finds out in every call whether its parameters alone decide what it computes, and whether the copies of its
weights are fresh: for one short text that takes as long as the kernels. And between two layers another thread of the
interpreter may have its turn. A server's models are its own, so that this is done once, when they are loaded;
`fastbert.models.current_stack` does it once per call for all layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert import _C, cpu_capability
from fastbert.errors import UserError
from fastbert.models import attention_maps
from fastbert.models.fusibility import runs_as_written
from fastbert.models.layers import CPU, KeyedLayerBatch, PaddedLayerBatch
from fastbert.models.modules import Encoder, Layer
from fastbert.models.plain_embeddings import PlainEmbeddings, plain_embeddings
from fastbert.models.plain_layers import PlainLayer, native_layer, plain_layer
from fastbert.ops.attention.native import MAX_HEAD_DIM
from fastbert.ops.autocast import matmul_dtype
from fastbert.ops.dispatch import preferred_backend
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.encoder_layer.spec import LayerSpec
from fastbert.ops.native import buffers, matmul_table, prepacked_weights
from fastbert.ops.native.caching_allocator import empty
from fastbert.packing import PackedBatch


def freeze_layers(model: Any) -> bool:
    """Let a model in evaluation mode compute its layers as one call of the CPU's kernels, with the same bits; return
    False, with nothing changed, for layers that these do not compute so: others than BERT's, with hooks or adapters.

    Afterwards neither the layers' weights nor its modules may change: changes would have no effect. Calls with
    gradients, under `use_backend("eager")`, of padded batches and those that return the states of all layers still run
    layer by layer.
    """
    if prepacked_weights.CHECK_ALL or model.encoder.stack is not None:
        return False
    model.encoder.stack = stack_of(model)
    return model.encoder.stack is not None


def stack_of(model: Any) -> EncoderStack | None:
    """Return the stack that computes the layers of a model in evaluation mode; None for others than BERT's, and for
    layers with hooks or adapters."""
    encoder = model.encoder
    if not runs_as_written(encoder, Encoder) or encoder.convolution is not None or encoder.last_layer_repeats:
        return None
    modules = encoder.applications()
    if not modules or not all(isinstance(module, Layer) and not module.training for module in modules):
        return None
    layers = [layer for module in modules if (layer := plain_layer(module)) is not None]
    if len(layers) < len(modules) or len({(*_kind(module.spec), module.quantization) for module in modules}) > 1:
        return None
    tensors = [tensor for layer in layers for tensor in layer.parameters]
    if buffers.unsupported(*tensors) is not None or any(tensor.is_neg() for tensor in tensors):
        return None
    if modules[0].spec.self_attention.head_dim > MAX_HEAD_DIM:
        return None
    embeddings = None if model.embeddings_project is not None else plain_embeddings(model.embeddings)
    return EncoderStack(layers, modules[0].spec, embeddings, int8=modules[0].quantization == "int8")


def _kind(spec: LayerSpec) -> tuple[object, ...]:
    """Return what the layers of a stack have in common."""
    attention, network = spec.self_attention, spec.feed_forward
    return spec.hidden_size, attention.heads, attention.causal, network.activation, network.intermediate_size


class EncoderStack:
    """Layers of plain modules, whose parameters do not change while it is used."""

    def __init__(
        self, layers: list[PlainLayer], spec: LayerSpec, embeddings: PlainEmbeddings | None, *, int8: bool
    ) -> None:
        """`spec` is that of every layer; `int8` quantises weights and tokens as `fastbert.ops.encoder_layer` does."""
        self.spec = spec
        self.int8 = int8
        self._embeddings = embeddings
        self._layers = layers
        self._native: dict[str, _C.EncoderStack] = {}

    def encode(self, batch: PackedBatch, token_indices: Tensor | None) -> Tensor | None:
        """Return the last layer's output of a batch of ids, as `run` does; None for a call that the model's modules
        must compute one by one."""
        if self._embeddings is None or type(batch) is not PackedBatch or torch.is_grad_enabled():
            return None
        x = self._embeddings.rows(batch)
        return None if x is None else self._run(x, batch.cu_seqlens, token_indices)

    def run(self, x: Tensor, batch: LayerBatch, token_indices: Tensor | None) -> Tensor | None:
        """Return the last layer's output of x (tokens, hidden_size): (tokens, hidden_size), or (rows, hidden_size) of
        `token_indices`, in the dtype of matmuls; None for a call that the layers must compute one by one.

        Raises `UserError` for offsets and indices outside of the tokens.
        """
        if torch.is_grad_enabled() or isinstance(batch, PaddedLayerBatch | KeyedLayerBatch) or batch.drops:
            return None
        return self._run(x, batch.cu_seqlens, token_indices)

    def _run(self, x: Tensor, offsets: Tensor, token_indices: Tensor | None) -> Tensor | None:
        dtype = matmul_dtype(x)
        if not self._supports(x, offsets, dtype):
            return None
        rows = None if token_indices is None else token_indices.contiguous()
        x = x if x.stride(1) == 1 else x.contiguous()
        tokens, width = x.shape
        y = empty((tokens if rows is None else len(rows), width), dtype)
        states = empty((min(2, len(self._layers) - 1), tokens, width), dtype)
        try:
            self._stack("int8" if self.int8 else buffers.DTYPES[dtype]).run(
                (buffers.address("x", x), buffers.DTYPES[x.dtype], x.stride(0)),
                tokens,
                cu_seqlens=offsets.data_ptr(),
                sequences=len(offsets) - 1,
                rows=None if rows is None else (rows.data_ptr(), len(rows)),
                states=states.data_ptr(),
                y=y.data_ptr(),
                y_dtype=buffers.DTYPES[dtype],
            )
        except ValueError as error:
            raise UserError(str(error)) from None
        return y

    def _supports(self, x: Tensor, offsets: Tensor, dtype: torch.dtype) -> bool:
        if attention_maps.current() is not None or not buffers.direct(x, offsets):
            return False
        if x.dim() != 2 or buffers.unsupported(x) is not None or dtype not in buffers.DTYPES:
            return False
        if offsets.dtype != torch.int32 or not offsets.is_contiguous():
            return False  # refused by the layers
        return self.is_native(len(x), dtype)

    def is_current(self) -> bool:
        """Return whether samples of the weights, and all of the vectors, are what they were when they were copied;
        their memory must be theirs."""
        return all(stack.is_current() for stack in self._native.values())

    def is_native(self, tokens: int, dtype: torch.dtype) -> bool:
        """Return whether our matmuls are preferred for so many tokens in `dtype`."""
        if dtype not in buffers.DTYPES or preferred_backend("encoder_layer", CPU) != "native":
            return False
        inner, width = self.spec.feed_forward.intermediate_size, self.spec.hidden_size
        return self.int8 or matmul_table.prefers_native_layer(buffers.DTYPES[dtype], tokens, width, inner)

    def _stack(self, element: str) -> _C.EncoderStack:
        """Return the layers with weights prepacked for an element, which is done on first use."""
        stack = self._native.get(element)
        if stack is None:
            cpu_capability.apply()
            stack = self._native[element] = _C.EncoderStack(
                layers=[native_layer(layer, element) for layer in self._layers],
                heads=self.spec.self_attention.heads,
                tanh=self.spec.feed_forward.activation == "gelu_tanh",
                causal=self.spec.self_attention.causal,
                spans=[span for layer in self._layers for span in prepacked_weights.spans(layer.parameters.matrices)],
            )
        return stack
