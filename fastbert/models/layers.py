"""Encoder layers over modules, whoever owns them: our models, or a model of another library.

A layer whose modules are nothing but their parameters is one operation where a backend fuses it; every other layer is
composed of single operations, and modules that are not plain run their own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from fastbert.errors import UserError
from fastbert.models import attention_maps
from fastbert.models.fusibility import (
    is_plain,
    is_plain_without_bias,
    project,
    project_without_bias,
    runs_as_written,
)
from fastbert.models.keyed import KeyedBatch, KeyedLayerBatch
from fastbert.models.norm import Norm
from fastbert.models.padded import PaddedBatch, padded_attention
from fastbert.models.position_tables import project_table
from fastbert.models.similarity import PackedAttention
from fastbert.ops.attention.op import attention
from fastbert.ops.autocast import is_autocast_enabled, matmul_dtype
from fastbert.ops.dispatch import needs_backward, preferred_backend
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.dropout.op import dropout
from fastbert.ops.encoder_layer import native_general
from fastbert.ops.encoder_layer import op as encoder_layer
from fastbert.ops.encoder_layer.arguments import (
    EncoderLayerArguments,
    LayerBatch,
    LayerParameters,
    LayerPositions,
)
from fastbert.ops.encoder_layer.composition import activate
from fastbert.ops.encoder_layer.native import unsupported_layer
from fastbert.ops.encoder_layer.spec import LayerSpec
from fastbert.ops.kernel_failures import retried
from fastbert.ops.native import buffers
from fastbert.ops.norm.op import dropout_add_layer_norm
from fastbert.packing import PackedBatch

CPU = torch.device("cpu")
# oneDNN, which multiplies bf16 on CPUs, compiles and keeps a kernel for each number of rows it meets. Batches of packed
# tokens all differ, so without rounding every step would compile anew and memory would grow by megabytes a step.
ROWS_MULTIPLE = 64


def multiplies_in_bf16(weight: Tensor) -> bool:
    """Return whether matmuls with this weight run in bf16 on a CPU, by autocast or by the weight's dtype."""
    if weight.device.type != "cpu":
        return False
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return autocast or weight.dtype == torch.bfloat16


@dataclass(frozen=True, kw_only=True, eq=False)
class PaddedLayerBatch(LayerBatch):
    """The tensors of a recorded call, which stays padded: its layers are composed, with attention under a mask."""

    padded: PaddedBatch


def layer_batch(
    batch: PackedBatch,
    hidden_p: float,
    attention_p: float,
    training: bool,
    *,
    attention_output_p: float | None = None,
    inner_p: float = 0.0,
    other_p: float = 0.0,
    positions: LayerPositions | None = None,
) -> LayerBatch:
    """Return the layers' view of a batch. Where something is dropped and the batch has no keys, they are drawn.

    `attention_output_p` is the probability behind attention, `hidden_p` if None; `inner_p` that inside of feed-forward
    networks; `other_p` that of dropout outside of the layers.
    """
    tensors: dict[str, Any] = {"cu_seqlens": batch.cu_seqlens, "max_seqlen": batch.max_seqlen, "positions": positions}
    behind_attention = hidden_p if attention_output_p is None else attention_output_p
    if training and (hidden_p or attention_p or behind_attention or inner_p or other_p):
        key = batch.dropout_key if batch.dropout_key is not None else draw_keys(len(batch), batch.device)
        tensors |= {"attention_p": attention_p, "attention_output_p": behind_attention, "output_p": hidden_p}
        tensors["inner_p"] = inner_p
        tensors |= {"dropout_key": key, "sequence_ids": batch.sequence_ids, "offsets": batch.offsets_in_sequence}
    if isinstance(batch, KeyedBatch):
        return KeyedLayerBatch(**tensors, keyed=batch)
    return PaddedLayerBatch(**tensors, padded=batch) if isinstance(batch, PaddedBatch) else LayerBatch(**tensors)


def layer_parameters(linears: tuple[nn.Module, ...], norms: tuple[nn.Module, nn.Module]) -> LayerParameters:
    """Return the parameters of plain modules: the linear layers of queries, keys, values, attention's output and both
    of the feed-forward network; the LayerNorms behind attention and behind the layer."""
    tensors: list[Any] = [linear._parameters for linear in linears]
    query, key, value, attention_output, intermediate, output = tensors
    norm_tensors: list[Any] = [norm._parameters for norm in norms]
    attention_norm, output_norm = norm_tensors
    return LayerParameters(
        query["weight"], key["weight"], value["weight"], query["bias"], key["bias"], value["bias"],
        attention_output["weight"], attention_output["bias"], attention_norm["weight"], attention_norm["bias"],
        intermediate["weight"], intermediate["bias"], output["weight"], output["bias"], output_norm["weight"],
        output_norm["bias"],
    )  # fmt: skip


@retried
def fused_layer(
    x: Tensor,
    parameters: LayerParameters,
    spec: LayerSpec,
    batch: LayerBatch,
    index: int,
    *,
    int8: bool = False,
    recompute: bool = False,
) -> Tensor | None:
    """Compute a layer of x (tokens, hidden_size) as one operation; None where no backend fuses it."""
    if isinstance(batch, PaddedLayerBatch | KeyedLayerBatch) or attention_maps.current() is not None:
        return None
    arguments = EncoderLayerArguments(
        x, parameters, spec, batch, index, matmul_dtype(x), int8=int8, recompute=recompute
    )
    backend = encoder_layer.select(arguments)
    return None if backend.composite else encoder_layer.run(arguments, backend)


def is_native(
    parameters: LayerParameters, spec: LayerSpec, tokens: int, dtype: torch.dtype, *, int8: bool, trains: bool
) -> bool:
    """Return whether the CPU's kernels compute a layer of so many tokens, in matmuls of `dtype`, as one operation."""
    if preferred_backend("encoder_layer", CPU) != "native":
        return False
    return unsupported_layer(parameters, spec, tokens, dtype, int8=int8 and not trains) is None


def is_plain_part(module: nn.Module) -> bool:
    """Return whether a linear layer or a norm is nothing but its parameters, of which the bias may be absent."""
    return is_plain(module) or is_plain_without_bias(module) or runs_as_written(module, Norm)


def is_native_spec(spec: LayerSpec, tokens: int, dtype: torch.dtype) -> bool:
    """Return whether `native_layer` computes a plain layer of a spec, of so many tokens in matmuls of `dtype`."""
    if preferred_backend("encoder_layer", CPU) != "native" or native_general.unsupported_spec(spec) is not None:
        return False
    return native_general.prefers_kernels(spec, tokens, dtype)


def native_layer(
    parts: Mapping[str, nn.Module],
    x: Tensor,
    spec: LayerSpec,
    batch: LayerBatch,
    *,
    int8: bool = False,
    tables: Callable[[], tuple[Tensor | None, Tensor | None]],
) -> Tensor | None:
    """Compute a layer of x (tokens, hidden_size) as one call of the CPU's kernels, for inference; None where they do
    not: in training, with dropout, while a compiler traces, or for a spec that they lack.

    `parts` are plain modules by the names of `fastbert.ops.encoder_layer.native_general`; `tables` returns keys and
    queries of relative positions.
    """
    if isinstance(batch, PaddedLayerBatch | KeyedLayerBatch) or batch.drops or batch.inner_p or x.device != CPU:
        return None
    if attention_maps.current() is not None:  # which composed layers report to
        return None
    for name, norm in (("attention_norm", spec.attention_norm), ("output_norm", spec.output_norm)):
        if (
            norm is not None and name in parts and getattr(parts[name], "eps", norm.eps) != norm.eps
        ):  # the kernels read it from the spec
            return None
    parameters: dict[str, Tensor] = {}
    for name, part in parts.items():
        for kind, parameter in part._parameters.items():
            if parameter is not None:
                parameters[name if kind == "weight" else f"{name}_bias"] = parameter
    tensors = (x, *parameters.values())
    sources = () if batch.positions is None else (*batch.positions.sources, batch.positions.distance_bias)
    if not buffers.direct(*tensors, batch.cu_seqlens, batch.token_indices) or needs_backward(*tensors, *sources):
        return None
    if preferred_backend("encoder_layer", CPU) != "native":
        return None
    dtype = matmul_dtype(x)
    if native_general.unsupported(parameters, spec, x, dtype, int8=int8) is not None:
        return None
    positions = native_general.PositionTables(*(None if table is None else table.to(dtype) for table in tables()))
    y = native_general.infer(x, parameters, spec, batch, dtype, int8=int8, tables=positions)
    # Behind norms in front of sub-layers the residual stream keeps its dtype under autocast, as where layers are
    # composed and in transformers.
    return y.to(x.dtype) if spec.output_norm is not None and spec.output_norm.place == "pre" else y


class ModuleLayer:
    """A `ComposableLayer` over modules, by the names of `LayerParameters`.

    Plain linear layers and norms run as operations of ours; others run their own forward.
    """

    def __init__(
        self,
        spec: LayerSpec,
        modules: dict[str, nn.Module],
        batch: LayerBatch,
        index: int,
        *,
        is_plain_norm: Callable[[nn.Module], bool],
        activation: Callable[[Tensor], Tensor] | None = None,
        inner_p: float = 0.0,
        similarity: PackedAttention | None = None,
        memory: Tensor | None = None,
    ) -> None:
        """`activation` replaces the spec's; `inner_p` is the probability of torch.nn's dropout behind it; `memory`
        (tokens, width) has the keys and values, None: what the layer normalises or reads."""
        self.spec = spec
        self.modules = modules
        self.batch = batch
        self.index = index
        # Without the projections of relative positions.
        self.layer_parts: dict[str, nn.Module] = {k: v for k, v in modules.items() if not k.startswith("position_")}
        self.is_plain_norm = is_plain_norm
        self.activation = activation
        self.inner_p = inner_p
        self.similarity = similarity
        self.memory = memory

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return the linear layer of x (tokens, in), with its bias."""
        source = x if self.memory is None or name not in ("key", "value") else self.memory
        self.check_dtype(name, source)
        return project(self.modules[name], source)

    def check_dtype(self, name: str, x: Tensor) -> None:
        """Raise UserError for a plain linear layer in another dtype than its input, unless autocast casts both."""
        module = self.modules[name]
        if type(module) is not nn.Linear or is_autocast_enabled(x.device):
            return
        weight = module._parameters.get("weight")
        if weight is not None and weight.dtype != x.dtype:
            raise UserError(
                f"layer {self.index}: the weight of {name!r} has dtype {weight.dtype}, but its input {x.dtype}: convert"
                " all layers to one dtype, or use torch.autocast"
            )

    def expand(self, x: Tensor) -> Tensor:
        """Return the activation of the intermediate linear layer."""
        product, bias = project_without_bias(self.modules["intermediate"], x)
        if self.activation is None:
            network = self.spec.feed_forward
            inner = activate(product, bias, network.activation, gated=network.gated)
        else:
            inner = self.activation(product if bias is None else product + bias.to(product.dtype))
        if self.inner_p:
            return F.dropout(inner, self.inner_p)
        return dropout(inner, self.batch.row_dropout(Site.INTERMEDIATE, self.index, self.batch.inner_p))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return self-attention of (tokens, heads, head_dim) each."""
        tables = self.position_tables()
        return self_attention(q, k, v, self.spec, self.batch, self.index, self.similarity, *tables)

    def position_tables(self) -> tuple[Tensor | None, Tensor | None]:
        """Return keys and queries of relative positions, (rows, heads, head_dim) each, None where the layer has none.

        The layer projects the encoder's embeddings of positions, which pass dropout first.
        """
        attention, positions = self.spec.self_attention, self.batch.positions
        if attention.position != "disentangled" or positions is None or positions.embeddings is None:
            return None, None
        embeddings = positions.embeddings
        token_dropout = self._position_dropout(len(embeddings))
        embeddings = dropout(embeddings, token_dropout)
        prefix = "" if attention.shares_position_projections else "position_"
        wanted = {"key": attention.position_keys, "query": attention.position_queries}
        sources = positions.sources if token_dropout is None else ()
        for name, want in wanted.items():
            if want:
                self.check_dtype(prefix + name, embeddings)
        keys, queries = (
            project_table(self.modules[prefix + name], embeddings, sources).unflatten(-1, (-1, attention.head_dim))
            if want
            else None
            for name, want in wanted.items()
        )
        return keys, queries

    def _position_dropout(self, rows: int) -> TokenDropout | None:
        """Return the dropout of embeddings of positions, which counts as that of the first sequence's tokens."""
        batch = self.batch
        if batch.dropout_key is None or not batch.output_p or not len(batch.dropout_key):
            return None
        offsets = torch.arange(rows, device=batch.dropout_key.device)
        site = Site.POSITIONS.of_layer(self.index)
        return TokenDropout(batch.output_p, batch.dropout_key, torch.zeros_like(offsets), offsets, site)

    def cross_attend(self, q: Tensor) -> Tensor:
        """Refuse: an encoder's layer has no cross-attention."""
        raise AssertionError("an encoder layer has no cross-attention")

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Return the norm of x (tokens, width)."""
        normed: Tensor = self.modules[name](x)
        return normed

    def add_norm(
        self, linear: str, norm: str | None, x: Tensor, residual: Tensor, token_dropout: TokenDropout | None
    ) -> Tensor:
        """Return norm(residual + dropout(linear(x))), without a norm where `norm` is None."""
        product, bias = project_without_bias(self.modules[linear], x)
        module: Any = None if norm is None else self.modules[norm]
        if module is not None and self.is_plain_norm(module):
            return dropout_add_layer_norm(
                product, residual, module.weight, module.bias, module.eps, token_dropout, x_bias=bias
            )
        product = product if bias is None else product + bias.to(product.dtype)
        total = dropout(product, token_dropout) + residual
        return total if module is None else module(total)


def self_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spec: LayerSpec,
    batch: LayerBatch,
    index: int,
    similarity: PackedAttention | None = None,
    position_keys: Tensor | None = None,
    position_queries: Tensor | None = None,
) -> Tensor:
    """Return self-attention of a layer, (tokens, heads, head_dim) each; `index` counts its dropout site. `similarity`
    replaces attention by the dot product; `position_keys` and `position_queries` are of relative positions."""
    recorder = attention_maps.current()
    if recorder is not None and recorder.layer == index and recorder.probabilities is None:
        recorder.probabilities = v.new_empty(0)  # the calls below are not recorded
        recorder.record(
            lambda basis: self_attention(q, k, basis, spec, batch, index, similarity, position_keys, position_queries),
            v,
        )
    causal, site = spec.self_attention.causal, Site.ATTENTION.of_layer(index)
    attention_spec, positions = spec.self_attention, batch.positions
    relative: dict[str, Any] = {"window": attention_spec.window, **batch.rotary_arguments(attention_spec)}
    if attention_spec.position in ("alibi", "relative", "disentangled") and positions is None:
        raise UserError(f"position={attention_spec.position!r}: the batch has no positions of this layer")
    if positions is not None and attention_spec.position in ("alibi", "relative"):
        relative["distance_bias"] = positions.distance_bias
    if positions is not None and attention_spec.position == "disentangled":
        relative |= {"position_keys": position_keys, "position_queries": position_queries}
        relative["buckets"] = positions.buckets
    if similarity is not None:
        return similarity(
            q, k, v, batch.cu_seqlens, batch.cu_seqlens, batch.max_seqlen, batch.max_seqlen, causal=causal,
            dropout_p=batch.attention_p, dropout_key=batch.dropout_key, dropout_site=site,
        )  # fmt: skip
    if isinstance(batch, PaddedLayerBatch):
        return padded_attention(
            q, k, v, batch.padded, causal=causal, dropout_p=batch.attention_p, dropout_key=batch.dropout_key,
            dropout_site=site, scale=attention_spec.scale, **relative,
        )  # fmt: skip
    cu_seqlens_k = batch.cu_seqlens
    if isinstance(batch, KeyedLayerBatch):
        keyed = batch.keyed
        q, k, relative = keyed.without_positions(q, k, relative)
        k, v = k.index_select(0, keyed.key_indices), v.index_select(0, keyed.key_indices)
        cu_seqlens_k = keyed.cu_seqlens_k
    return attention(
        q, k, v, batch.cu_seqlens, cu_seqlens_k, batch.max_seqlen, batch.max_seqlen, causal=causal,
        dropout_p=batch.attention_p, dropout_key=batch.dropout_key, dropout_site=site, scale=attention_spec.scale,
        **relative,
    )  # fmt: skip


def saving_matmuls() -> Any:
    """Return the contexts of selective checkpointing: matmuls and attention are saved, the rest is computed again."""

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saved = operation in _MATMULS or (operation.namespace == "fastbert" and "attention" in operation.name())
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


_MATMULS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.linear.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
}
