"""The modules of encoders, built from an `ArchitectureSpec`: post-LN layers as BERT's, or those of
`fastbert.models.pre_norm`; learned positions, packed tokens.

The module tree gives the state dict the names of Hugging Face's `BertModel`; an architecture's files may have other
names (`fastbert.models.key_map`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastbert.models.architecture import ConvolutionSpec, EmbeddingsSpec
from fastbert.models.base import Checkpointing, Quantization
from fastbert.models.convolution import Convolution
from fastbert.models.fusibility import (
    has_hooks,
    is_plain,
    is_plain_table,
    is_plain_without_bias,
    project,
    project_without_bias,
    runs_as_written,
)
from fastbert.models.layers import (
    ModuleLayer,
    fused_layer,
    is_native,
    is_native_spec,
    layer_parameters,
    native_layer,
    saving_matmuls,
)
from fastbert.models.norm import Norm, is_plain_norm, norm_of
from fastbert.models.pre_norm import PreNormLayer
from fastbert.models.self_attention import SelfAttention
from fastbert.models.similarity import similarity_of
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.dropout.op import dropout as apply_dropout
from fastbert.ops.embedding.op import embedding_layer_norm
from fastbert.ops.encoder_layer.arguments import LayerBatch, LayerParameters
from fastbert.ops.encoder_layer.composition import compose_layer
from fastbert.ops.encoder_layer.spec import AttentionSpec, LayerSpec, NormSpec
from fastbert.ops.norm.op import dropout_add_layer_norm
from fastbert.packing import PackedBatch


class Embeddings(nn.Module):
    """The sum of token, position and segment embeddings, as far as there are such, with LayerNorm, if there is one, and
    dropout. Some models project the sum to the width of the layers, `hidden_size`, in front of the norm."""

    def __init__(self, spec: EmbeddingsSpec, hidden_size: int | None = None) -> None:
        super().__init__()
        width = spec.embedding_size
        hidden_size = width if hidden_size is None else hidden_size
        projects = spec.projects_before_norm and width != hidden_size
        self.word_embeddings: nn.Embedding = nn.Embedding(spec.vocab_size, width)
        self.position_embeddings: nn.Embedding | None = nn.Embedding(spec.positions, width) if spec.positions else None
        self.token_type_embeddings: nn.Embedding | None = (
            nn.Embedding(spec.token_types, width) if spec.token_types else None
        )
        self.projection: nn.Linear | None = nn.Linear(width, hidden_size, bias=False) if projects else None
        self.LayerNorm: Norm | None = (
            None if spec.norm is None else norm_of(spec.norm, hidden_size if projects else width)
        )
        self.position_offset: int = spec.position_offset

    def forward(self, batch: PackedBatch, dropout: TokenDropout | None, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return embeddings (tokens, hidden_size); `inputs_embeds` of that shape replaces rows of the token table."""
        offset = self.position_offset
        ids, tables = [batch.input_ids], [self.word_embeddings]
        if self.position_embeddings is not None:
            ids.append(batch.position_ids + offset if offset else batch.position_ids)
            tables.append(self.position_embeddings)
        if self.token_type_embeddings is not None:
            types, is_single = batch.token_type_ids, self.token_type_embeddings.num_embeddings == 1
            ids.append(torch.zeros_like(types) if is_single else types)
            tables.append(self.token_type_embeddings)
        norm = self.LayerNorm
        plain = inputs_embeds is None and self.projection is None and all(is_plain_table(table) for table in tables)
        if plain and norm is not None and is_plain_norm(norm):
            weights = tuple(table.weight for table in tables)
            return embedding_layer_norm(tuple(ids), weights, norm.weight, norm.bias, norm.eps, dropout)
        rows = [table(indices) for table, indices in zip(tables[1:], ids[1:], strict=True)]
        if inputs_embeds is not None:
            total = inputs_embeds + sum(rows[1:], rows[0]) if rows else inputs_embeds
        else:
            total = sum(rows, self.word_embeddings(batch.input_ids))
        if self.projection is not None:
            total = project(self.projection, total)
        return apply_dropout(total if norm is None else norm(total), dropout)


class Output(nn.Module):
    """A projection back to the model's width, with the LayerNorm behind its residual connection."""

    def __init__(self, inner: int, hidden_size: int, norm: NormSpec, *, bias: bool = True) -> None:
        super().__init__()
        self.dense: nn.Linear = nn.Linear(inner, hidden_size, bias=bias)
        self.LayerNorm: Norm = norm_of(norm, hidden_size)

    def forward(self, x: Tensor, residual: Tensor, dropout: TokenDropout | None) -> Tensor:
        """Return LayerNorm(residual + dropout(dense(x))), (tokens, hidden_size), of x (tokens, inner)."""
        product, bias = project_without_bias(self.dense, x)
        norm = self.LayerNorm
        if is_plain_norm(norm):
            return dropout_add_layer_norm(product, residual, norm.weight, norm.bias, norm.eps, dropout, x_bias=bias)
        product = product if bias is None else product + bias.to(product.dtype)
        normed: Tensor = norm(apply_dropout(product, dropout) + residual)
        return normed


class Attention(nn.Module):
    """Self-attention and its output projection, under the names `self` and `output`."""

    def __init__(self, hidden_size: int, norm: NormSpec, spec: AttentionSpec | None = None) -> None:
        super().__init__()
        self.self: SelfAttention = SelfAttention(hidden_size, spec)
        inner, bias = (hidden_size, True) if spec is None else (spec.heads * spec.head_dim, spec.output_bias)
        self.output: Output = Output(inner, hidden_size, norm, bias=bias)


class Intermediate(nn.Module):
    """The widening half of the feed-forward network; of a gated one the activated half, then that it is multiplied
    by."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        network = spec.feed_forward
        self.dense: nn.Linear = nn.Linear(spec.hidden_size, network.first_width, bias=network.first_bias)


class Layer(nn.Module):
    """One encoder layer: self-attention, then the feed-forward network, each with dropout, residual and LayerNorm.

    `index` counts the layer's dropout sites; `drops` tells whether its config has dropout.
    """

    def __init__(self, spec: LayerSpec, index: int, *, drops: bool = False) -> None:
        super().__init__()
        attention_norm, output_norm = post_norms(spec)
        self.attention: Attention = Attention(spec.hidden_size, attention_norm, spec.self_attention)
        self.intermediate: Intermediate = Intermediate(spec)
        network = spec.feed_forward
        self.output: Output = Output(network.intermediate_size, spec.hidden_size, output_norm, bias=network.bias)
        self.index = index
        self.spec = spec
        self.causal_spec: LayerSpec = causal_spec(spec)
        self.drops = drops
        self.quantization: Quantization | None = None

    def forward(
        self,
        x: Tensor,
        batch: LayerBatch,
        spec: LayerSpec | None = None,
        recompute: bool = False,
        index: int | None = None,
        memory: Tensor | None = None,
    ) -> Tensor:
        """Compute the layer: x (tokens, hidden_size) -> the same shape, or (rows, hidden_size) of the tokens
        `batch.token_indices` alone.

        `spec` replaces the layer's own, for example by a causal one. `recompute` keeps less for backward. `index`
        replaces the layer's own, where it is applied repeatedly; `memory` (tokens, hidden_size) has the keys and
        values, None: x.
        """
        spec, index = self.spec if spec is None else spec, self.index if index is None else index
        modules = self.plain_modules()
        if modules is None and batch.token_indices is not None:
            # Adapters, hooks and replaced modules receive every token.
            whole = replace(batch, token_indices=None)
            return batch.gather(self.forward(x, whole, spec, recompute, index, memory))
        parameters = self.fusible_parameters() if modules is not None and spec.unfused is None else None
        if parameters is not None and memory is None:
            int8 = self.quantization == "int8"
            fused = fused_layer(x, parameters, spec, batch, index, int8=int8, recompute=recompute)
            if fused is not None:
                return fused
        layer = ComposedLayer(self, spec, batch, index, memory)
        if modules is not None and memory is None and parameters is None:
            int8 = self.quantization == "int8"
            parts = self.named_parts(modules)
            native = native_layer(parts, x, spec, batch, int8=int8, tables=layer.position_tables)
            if native is not None:
                return native
        if recompute:
            return checkpoint(
                compose_layer, x, layer, batch, index, use_reentrant=False, preserve_rng_state=False,
                context_fn=saving_matmuls,
            )  # fmt: skip
        return compose_layer(x, layer, batch, index)

    def is_native(self, tokens: int, dtype: torch.dtype) -> bool:
        """Return whether the CPU's kernels compute this layer of so many tokens, in matmuls of `dtype`."""
        parameters = self.fusible_parameters() if self.spec.unfused is None else None
        if parameters is None:
            plain = self.spec.unfused is not None and self.plain_modules() is not None
            return plain and not torch.is_grad_enabled() and is_native_spec(self.spec, tokens, dtype)
        trains = torch.is_grad_enabled() or (self.training and self.drops)
        return is_native(parameters, self.spec, tokens, dtype, int8=self.quantization == "int8", trains=trains)

    @staticmethod
    def named_parts(modules: tuple[tuple[nn.Module, ...], tuple[Any, Any]]) -> dict[str, nn.Module]:
        """Return what `plain_modules` returns by the names of `LayerParameters`."""
        names = ("query", "key", "value", "attention_output", "intermediate", "output")
        norms = zip(("attention_norm", "output_norm"), modules[1], strict=True)
        return dict(zip(names, modules[0], strict=True)) | dict(norms)

    def fusible_parameters(self) -> LayerParameters | None:
        """Return the layer's parameters if they alone decide what it computes, and no bias is absent: no hooks,
        adapters, replaced modules."""
        modules = self.plain_modules()
        if modules is None:
            return None
        linears, norms = modules
        if not all(is_plain(linear) for linear in linears) or not all(is_plain_norm(norm) for norm in norms):
            return None
        assert self.spec.output_norm is not None
        eps = self.spec.output_norm.eps
        return layer_parameters(linears, norms) if norms[0].eps == norms[1].eps == eps else None

    def plain_modules(self) -> tuple[tuple[nn.Module, ...], tuple[Any, Any]] | None:
        """Return the layer's linear layers and norms if their parameters alone decide what it computes; else None."""
        modules: Any = self._modules  # read where modules keep them, as in `is_plain`
        attention, intermediate, last = modules["attention"], modules["intermediate"], modules["output"]
        projections, first = attention._modules["self"], attention._modules["output"]
        linears = (
            projections._modules["query"], projections._modules["key"], projections._modules["value"],
            first._modules["dense"], intermediate._modules["dense"], last._modules["dense"],
        )  # fmt: skip
        norms = (first._modules["LayerNorm"], last._modules["LayerNorm"])
        if not all(is_plain(linear) or is_plain_without_bias(linear) for linear in linears):
            return None
        if any(has_hooks(module) for module in (attention, projections, intermediate)):
            return None
        if not all(runs_as_written(norm, Norm) for norm in norms):
            return None
        return (linears, norms) if runs_as_written(first, Output) and runs_as_written(last, Output) else None


class ComposedLayer(ModuleLayer):
    """A layer of BERT's modules; the blocks behind attention and behind the layer run as modules, for their hooks."""

    def __init__(
        self, layer: Any, spec: LayerSpec, batch: LayerBatch, index: int | None = None, memory: Tensor | None = None
    ) -> None:
        index = layer.index if index is None else index
        projections = layer.attention.self
        modules = {**projections.named_projections(), "intermediate": layer.intermediate.dense}
        super().__init__(
            spec, modules, batch, index, is_plain_norm=is_plain_norm, similarity=similarity_of(projections),
            memory=memory,
        )  # fmt: skip
        self.blocks: dict[str, Any] = {"attention_output": layer.attention.output, "output": layer.output}

    def add_norm(
        self, linear: str, norm: str | None, x: Tensor, residual: Tensor, token_dropout: TokenDropout | None
    ) -> Tensor:
        """Return the output block of x: norm(residual + dropout(linear(x)))."""
        output: Tensor = self.blocks[linear](x, residual, token_dropout)
        return output


LAYERS = (Layer, PreNormLayer)


def layer_class(spec: LayerSpec) -> type[Layer] | type[PreNormLayer]:
    """Return the module of layers of a spec."""
    pre = spec.output_norm is not None and spec.output_norm.place == "pre"
    return PreNormLayer if pre else Layer


class Encoder(nn.Module):
    """The stack of layers, and the norm behind the last, if there is one.

    `shared`, `convolution` and `last_layer_repeats` are those of `ArchitectureSpec`.
    """

    def __init__(
        self,
        specs: tuple[LayerSpec, ...],
        *,
        drops: bool = False,
        final_norm: NormSpec | None = None,
        shared: tuple[int, ...] | None = None,
        convolution: ConvolutionSpec | None = None,
        last_layer_repeats: int = 0,
    ) -> None:
        super().__init__()
        self.layer: nn.ModuleList = nn.ModuleList(
            layer_class(spec)(spec, index, drops=drops) for index, spec in enumerate(specs)
        )
        self.LayerNorm: Norm | None = None if final_norm is None else norm_of(final_norm, specs[-1].hidden_size)
        self.convolution: Convolution | None = (
            None if convolution is None else Convolution(convolution, specs[0].hidden_size)
        )
        self.shared = shared
        self.last_layer_repeats = last_layer_repeats
        self.checkpointing: Checkpointing = "none"
        self.stack: Any = None
        """Computes the layers of a model that does not change any more: see `fastbert.models.encoder_stack`."""

    def forward(
        self,
        x: Tensor,
        batch: LayerBatch,
        causal: bool,
        output_hidden_states: bool,
        token_indices: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the last layer's tokens, of `token_indices` alone if given, and with `output_hidden_states` all tokens
        before and after each layer."""
        states = [x] if output_hidden_states else []
        mode = self.checkpointing if self.training and torch.is_grad_enabled() else "none"
        layers = self.applications()
        gathers = token_indices is not None and len(layers) > 0 and not output_hidden_states
        if self.convolution is not None and len(layers) == 1:
            gathers = False
        gathers = gathers and any(runs_as_written(layers[-1], kind) for kind in LAYERS)
        embedded, memory = x, x
        for number, layer in enumerate(layers):
            repeats = number >= len(layers) - self.last_layer_repeats
            if not repeats:
                memory = x
            is_last = gathers and number == len(layers) - 1
            layer_batch = replace(batch, token_indices=token_indices) if is_last else batch
            arguments: tuple[Any, ...] = (x, layer_batch, layer.causal_spec if causal else None)
            # Layers of models without shared parameters are called as they always were, for those that replace them.
            more = () if self.shared is None and not repeats else (number, memory if repeats else None)
            if mode == "layer":
                # Dropout is replayed from its keys, so the generator's state need not be saved.
                x = checkpoint(
                    layer, *arguments, *((False, *more) if more else ()), use_reentrant=False, preserve_rng_state=False
                )
            else:
                x = layer(*arguments, mode == "selective", *more)
            if number == 0 and self.convolution is not None:
                x = self.convolution(embedded, x, batch)
            if output_hidden_states:
                states.append(x)
        if token_indices is not None and not gathers:
            x = x.index_select(0, token_indices)
        if self.LayerNorm is None:
            return x, states
        if not output_hidden_states:
            return self.LayerNorm(x), states
        # As transformers' models: the last state is normalised.
        states[-1] = self.LayerNorm(states[-1])
        return states[-1] if token_indices is None else states[-1].index_select(0, token_indices), states

    def applications(self) -> list[Any]:
        """Return the layers in the order in which they are applied."""
        layers: list[Any] = list(self.layer)
        if self.shared is not None:
            layers = [layers[number] for number in self.shared]
        return layers + layers[-1:] * self.last_layer_repeats


def causal_spec(spec: LayerSpec) -> LayerSpec:
    """Return the spec of a layer whose tokens attend to themselves and to those before them."""
    return replace(spec, self_attention=replace(spec.self_attention, causal=True))


def post_norms(spec: LayerSpec) -> tuple[NormSpec, NormSpec]:
    """Return the norms behind attention and behind the layer of a spec that `Layer` has modules for."""
    assert spec.attention_norm is not None
    assert spec.output_norm is not None
    assert spec.attention_norm.place == spec.output_norm.place == "post"
    return spec.attention_norm, spec.output_norm


class Pooler(nn.Module):
    """The pooled output: tanh(W h + b) of each sequence's first token."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense: nn.Linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, firsts: Tensor) -> Tensor:
        """Pool first tokens (sequences, hidden_size) -> the same shape."""
        return torch.tanh(project(self.dense, firsts))
