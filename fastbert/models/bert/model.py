"""The BERT encoder (Devlin et al. 2019, section 3): post-LN, learned positions, packed from the first token on.

The module tree gives the state dict the names of Hugging Face's `BertModel`, so weights travel both ways unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeGuard, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fastbert import ops
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.base import Checkpointing, PreTrainedModel, Quantization
from fastbert.models.fusibility import (
    has_hooks,
    holds_both,
    is_plain,
    is_plain_table,
    project,
    project_apart,
    runs_as_written,
)
from fastbert.models.layers import (
    ModuleLayer,
    fused_layer,
    is_native,
    layer_batch,
    layer_parameters,
    saving_matmuls,
)
from fastbert.models.outputs import EncoderOutput
from fastbert.models.packed import Packed
from fastbert.models.padded import PaddedBatch, is_readable
from fastbert.models.unsupported_arguments import TransformersArguments, refuse_arguments
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.encoder_layer.arguments import LayerBatch, LayerParameters
from fastbert.ops.encoder_layer.composition import compose_layer
from fastbert.ops.encoder_layer.spec import LayerSpec, bert_layer
from fastbert.packing import PackedBatch

# oneDNN, which multiplies bf16 on CPUs, compiles and keeps a kernel for each number of rows it meets. Batches of packed
# tokens all differ, so without rounding every step would compile anew and memory would grow by megabytes a step.
ROWS_MULTIPLE = 64


def multiplies_in_bf16(weight: Tensor) -> bool:
    """Whether products with this weight run in bf16 on a CPU now, by autocast or by the weight's own dtype."""
    if weight.device.type != "cpu":
        return False
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return autocast or weight.dtype == torch.bfloat16


class EmbeddingSettings(Protocol):
    """What `BertModel` requires of its settings for embeddings, which it saves with its weights."""

    def check_width(self, width: int, place: str) -> None:
        """Raise UserError if the settings do not fit a model of this width."""

    def check_folder(self, folder: Path) -> None:
        """Raise UserError if a folder is not free for `save`."""

    def save(self, folder: Path, width: int) -> None:
        """Write the settings next to the model."""


def _unbound_embed(model: BertModel, texts: Iterable[str], tokenizer: Any, **options: Any) -> Tensor:
    raise RuntimeError("BertModel.embed needs fastbert.embeddings: use `from fastbert import BertModel`")


class Norm(nn.Module):
    """A LayerNorm, which is fused with what comes before it; its own forward runs where hooks, adapters or another
    module in its place want to see it."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x (rows, width) -> the same shape."""
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps}"


def is_plain_norm(module: nn.Module) -> TypeGuard[Norm]:
    """Whether a LayerNorm is nothing but its weight, bias and epsilon."""
    return runs_as_written(module, Norm) and holds_both(module)


class Embeddings(nn.Module):
    """Token, position and segment embeddings, summed and normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = Norm(config.hidden_size, config.layer_norm_eps)

    def forward(self, batch: PackedBatch, dropout: TokenDropout | None, inputs_embeds: Tensor | None = None) -> Tensor:
        """(tokens, hidden_size); `inputs_embeds` of that shape stands in for the rows of the token table."""
        if inputs_embeds is not None:
            places = self.position_embeddings(batch.position_ids) + self.token_type_embeddings(batch.token_type_ids)
            return ops.dropout(self.LayerNorm(inputs_embeds + places), dropout)
        ids = (batch.input_ids, batch.position_ids, batch.token_type_ids)
        tables = (self.word_embeddings, self.position_embeddings, self.token_type_embeddings)
        norm = self.LayerNorm
        if all(is_plain_table(table) for table in tables) and is_plain_norm(norm):
            weights = tuple(table.weight for table in tables)
            return ops.embedding_layer_norm(ids, weights, norm.weight, norm.bias, norm.eps, dropout)
        words, positions, segments = (table(one) for table, one in zip(tables, ids, strict=True))
        return ops.dropout(norm(words + positions + segments), dropout)


class SelfAttention(nn.Module):
    """The three projections of self-attention."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)


class Output(nn.Module):
    """A projection back to the model's width, with the LayerNorm behind its residual connection."""

    def __init__(self, inner: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, config.hidden_size)
        self.LayerNorm = Norm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x: Tensor, residual: Tensor, dropout: TokenDropout | None) -> Tensor:
        product, bias = project_apart(self.dense, x)
        norm = self.LayerNorm
        if is_plain_norm(norm):
            return ops.dropout_add_layer_norm(product, residual, norm.weight, norm.bias, norm.eps, dropout, x_bias=bias)
        product = product if bias is None else product + bias.to(product.dtype)
        normed: Tensor = norm(ops.dropout(product, dropout) + residual)
        return normed


class Attention(nn.Module):
    """Self-attention and its output projection, under the names `self` and `output`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = Output(config.hidden_size, config)


class Intermediate(nn.Module):
    """The widening half of the feed-forward network."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)


class Layer(nn.Module):
    """One encoder layer: self-attention, then the feed-forward network, each with dropout, residual and LayerNorm."""

    def __init__(self, config: BertConfig, index: int) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = Output(config.intermediate_size, config)
        self.index = index
        self.spec = layer_spec(config)
        self.drops = bool(config.hidden_dropout_prob or config.attention_probs_dropout_prob)
        self.quantization: Quantization | None = None

    def forward(self, x: Tensor, batch: LayerBatch, spec: LayerSpec | None = None, recompute: bool = False) -> Tensor:
        """Compute the layer: x (tokens, hidden_size) -> the same shape, or (rows, hidden_size) of the tokens
        `batch.token_indices` alone.

        `spec` replaces the layer's own, for example by a causal one. `recompute` keeps less for backward.
        """
        spec = self.spec if spec is None else spec
        parameters = self.fusible_parameters()
        if parameters is None and batch.token_indices is not None:
            # Adapters, hooks and replaced modules receive every token.
            whole = replace(batch, token_indices=None)
            return batch.gather(self.forward(x, whole, spec, recompute))
        if parameters is not None:
            int8 = self.quantization == "int8"
            fused = fused_layer(x, parameters, spec, batch, self.index, int8=int8, recompute=recompute)
            if fused is not None:
                return fused
        layer = ComposedLayer(self, spec, batch)
        if recompute:
            return checkpoint(
                compose_layer, x, layer, batch, self.index, use_reentrant=False, preserve_rng_state=False,
                context_fn=saving_matmuls,
            )  # fmt: skip
        return compose_layer(x, layer, batch, self.index)

    def is_native(self, tokens: int, dtype: torch.dtype) -> bool:
        """Return whether the CPU's kernels compute this layer of so many tokens, in matmuls of `dtype`."""
        parameters = self.fusible_parameters()
        if parameters is None:
            return False
        trains = torch.is_grad_enabled() or (self.training and self.drops)
        return is_native(parameters, self.spec, tokens, dtype, int8=self.quantization == "int8", trains=trains)

    def fusible_parameters(self) -> LayerParameters | None:
        """Return the layer's parameters if they alone decide what it computes: no hooks, adapters, replaced modules."""
        modules: Any = self._modules  # read where modules keep them, as in `is_plain`
        attention, intermediate, last = modules["attention"], modules["intermediate"], modules["output"]
        projections, first = attention._modules["self"], attention._modules["output"]
        linears = (
            projections._modules["query"], projections._modules["key"], projections._modules["value"],
            first._modules["dense"], intermediate._modules["dense"], last._modules["dense"],
        )  # fmt: skip
        norms = (first._modules["LayerNorm"], last._modules["LayerNorm"])
        if not all(is_plain(linear) for linear in linears):
            return None
        if any(has_hooks(module) for module in (attention, projections, intermediate)):
            return None
        if not all(is_plain_norm(norm) for norm in norms):
            return None
        assert self.spec.output_norm is not None
        eps = self.spec.output_norm.eps
        if not (runs_as_written(first, Output) and runs_as_written(last, Output)):
            return None
        return layer_parameters(linears, norms) if norms[0].eps == norms[1].eps == eps else None


class ComposedLayer(ModuleLayer):
    """A layer of BERT's modules; the blocks behind attention and behind the layer run as modules, for their hooks."""

    def __init__(self, layer: Any, spec: LayerSpec, batch: LayerBatch) -> None:
        projections = layer.attention.self
        modules = {"query": projections.query, "key": projections.key, "value": projections.value}
        modules["intermediate"] = layer.intermediate.dense
        super().__init__(spec, modules, batch, layer.index, is_plain_norm=is_plain_norm)
        self.blocks = {"attention_output": layer.attention.output, "output": layer.output}

    def add_norm(
        self, linear: str, norm: str | None, x: Tensor, residual: Tensor, token_dropout: TokenDropout | None
    ) -> Tensor:
        """Return the output block of x: norm(residual + dropout(linear(x)))."""
        output: Tensor = self.blocks[linear](x, residual, token_dropout)
        return output


class Encoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.checkpointing: Checkpointing = "none"
        self.causal_spec = layer_spec(config, causal=True)

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
        gathers = token_indices is not None and len(self.layer) > 0 and not output_hidden_states
        last = self.layer[-1] if gathers and runs_as_written(self.layer[-1], Layer) else None
        spec = self.causal_spec if causal else None
        for layer in self.layer:
            layer_batch = replace(batch, token_indices=token_indices) if layer is last else batch
            if mode == "layer":
                # Dropout is replayed from its keys, so the generator's state need not be saved.
                x = checkpoint(layer, x, layer_batch, spec, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, layer_batch, spec, mode == "selective")
            if output_hidden_states:
                states.append(x)
        return x if token_indices is None or last is not None else x.index_select(0, token_indices), states


def layer_spec(config: BertConfig, *, causal: bool = False) -> LayerSpec:
    """Return the spec of a config's layers; `causal`: tokens attend to themselves and to those before them."""
    return bert_layer(
        config.hidden_size, config.num_attention_heads, config.intermediate_size,
        "gelu_tanh" if config.gelu_approximation == "tanh" else "gelu", config.layer_norm_eps, causal=causal,
    )  # fmt: skip


class Pooler(nn.Module):
    """tanh(W h + b) of each sequence's first token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, firsts: Tensor) -> Tensor:
        """First tokens (sequences, hidden_size) -> the same shape."""
        return torch.tanh(project(self.dense, firsts))


def first_indices(batch: PackedBatch) -> Tensor:
    """Where each sequence's first token is, int64 (sequences,), in a batch that has tokens."""
    if isinstance(batch, PaddedBatch):
        return batch.first_positions
    # An empty sequence has no first token: the clamp keeps its index legal, its row means nothing.
    return batch.cu_seqlens[:-1].long().clamp(max=batch.num_tokens - 1)


def first_tokens(x: Tensor, batch: PackedBatch) -> Tensor:
    """Of hidden states (tokens, hidden_size) those that the pooler takes, (sequences, hidden_size)."""
    if isinstance(batch, PaddedBatch):
        return x.index_select(0, batch.first_positions)
    return x[first_indices(batch)] if len(x) else x.new_zeros(len(batch), x.shape[1])


class BertModel(PreTrainedModel):
    """The encoder with its pooler: padded in, padded out, or packed in, packed out.

    `model(input_ids=(B, S) int64, attention_mask=(B, S), token_type_ids=(B, S))` returns `last_hidden_state` (B, S,
    hidden_size) with zeros at padding; `model(batch)` of a `PackedBatch` returns (tokens, hidden_size).
    `inputs_embeds` (B, S, hidden_size) may stand in for `input_ids`. Raises `UserError` for ids outside the vocabulary,
    sequences longer than the position table, and arguments of transformers' that are set and not supported.
    """

    base_model_prefix = "bert"

    embed_texts: ClassVar[Callable[..., Tensor]] = staticmethod(_unbound_embed)
    """What `embed` calls: `fastbert.embeddings.embed.embed`, set by that module, which builds on this one."""

    def __init__(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.embed_settings: EmbeddingSettings | None = None
        """Defaults of `embed`: a `fastbert.embeddings.settings.EmbedSettings`, saved for sentence-transformers."""
        self.init_weights()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def save_pretrained(self, folder: str | Path, *, max_shard_size: int | str | None = None) -> None:
        settings = self.embed_settings
        if settings is not None:  # looked at before anything is written
            settings.check_width(self.config.hidden_size, "embed_settings")
            settings.check_folder(Path(folder))
        super().save_pretrained(folder, max_shard_size=max_shard_size)
        if settings is not None:
            settings.save(Path(folder), self.config.hidden_size)

    def encode(
        self,
        batch: PackedBatch,
        causal: bool = False,
        output_hidden_states: bool = False,
        token_indices: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return packed hidden states of the last layer (tokens, hidden_size), and with `output_hidden_states` also
        those before it.

        With `token_indices`, int64 (rows,), the last layer's are (rows, hidden_size), of these tokens alone, and what
        nothing reads is not computed: a loss that reads one token in six saves half of the last layer. `causal`: tokens
        attend to themselves and to those before them. `inputs_embeds` (tokens, hidden_size) replaces the rows of the
        token table. Raises UserError for ids outside the model's tables, and for models and batches without values.
        """
        for name, tensor in (("the model", self.embeddings.word_embeddings.weight), ("the batch", batch.input_ids)):
            if tensor.is_meta:
                raise UserError(
                    f"{name} is on the meta device, which holds no values: load weights with from_pretrained, or give"
                    ' them memory with model.to_empty(device="cpu") and model.load_state_dict'
                )
        # On a GPU this would be a host-device sync, and a compiled graph cannot read values.
        if is_readable(batch.input_ids):
            self.check_ranges(batch)
        tokens = batch.num_tokens
        if inputs_embeds is not None and inputs_embeds.shape[-1] != self.config.hidden_size:
            raise UserError(
                f"inputs_embeds are {inputs_embeds.shape[-1]} wide, but the model's hidden_size="
                f"{self.config.hidden_size}"
            )
        if isinstance(batch, PaddedBatch):  # without a branch on the number of tokens, which a recorded call lacks
            x, states = self._run(batch, causal, output_hidden_states, None, inputs_embeds)
            return x if token_indices is None else x.index_select(0, token_indices), states
        indices = token_indices
        if self._library_multiplies_bf16(tokens):
            batch = batch.filled(ROWS_MULTIPLE)
            if inputs_embeds is not None:
                inputs_embeds = F.pad(inputs_embeds, (0, 0, 0, batch.num_tokens - tokens))
            if indices is not None:  # padded with the first token, whose copies are cut off below
                indices = F.pad(indices, (0, -len(indices) % ROWS_MULTIPLE))
        x, states = self._run(batch, causal, output_hidden_states, indices, inputs_embeds)
        if batch.num_tokens != tokens:
            states = [state[:tokens] for state in states]
        rows = tokens if token_indices is None else len(token_indices)
        return x if len(x) == rows else x[:rows], states

    def _run(
        self,
        batch: PackedBatch,
        causal: bool,
        output_hidden_states: bool,
        token_indices: Tensor | None,
        inputs_embeds: Tensor | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the encoder's output and hidden states."""
        config = self.config
        p = (config.hidden_dropout_prob, config.attention_probs_dropout_prob)
        layers = layer_batch(batch, *p, self.training)
        embeds = () if inputs_embeds is None else (inputs_embeds,)
        x: Tensor = self.embeddings(batch, layers.token_dropout(Site.EMBEDDING), *embeds)
        if token_indices is not None and runs_as_written(self.encoder, Encoder):
            x, states = self.encoder(x, layers, causal, output_hidden_states, token_indices)
            return x, states
        # Hooks and replaced encoders receive every token.
        x, states = self.encoder(x, layers, causal, output_hidden_states)
        return x if token_indices is None else x.index_select(0, token_indices), states

    def _library_multiplies_bf16(self, tokens: int) -> bool:
        """Return whether torch's library will multiply bf16 on the CPU, not our kernels, which are compiled for every
        number of rows."""
        weight = self.embeddings.word_embeddings.weight
        if torch.compiler.is_compiling() or not multiplies_in_bf16(weight) or not self.encoder.layer:
            return False
        # In training some layers may be frozen; in inference one layer stands for all.
        layers = list(self.encoder.layer) if torch.is_grad_enabled() else [self.encoder.layer[0]]
        return any(not isinstance(layer, Layer) or not layer.is_native(tokens, torch.bfloat16) for layer in layers)

    def check_ranges(self, batch: PackedBatch) -> None:
        """Raise UserError for ids that are no rows of the model's tables. Reads the batch, so a GPU waits."""
        config = self.config
        for name, values, size, cure in (
            ("input_ids", batch.input_ids, config.vocab_size, "use the vocabulary the model was trained with"),
            ("position_ids", batch.position_ids, config.max_position_embeddings, "truncate to max_position_embeddings"),
            ("token_type_ids", batch.token_type_ids, config.type_vocab_size, "use types below type_vocab_size"),
        ):
            if values.numel():
                low, high = (int(value) for value in values.aminmax())
                if low < 0 or high >= size:
                    raise UserError(
                        f"{name} holds {low if low < 0 else high}, outside the model's table of {size} rows: {cure}"
                    )

    def forward(
        self,
        batch: PackedBatch | Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: None = None,
        **unsupported: Unpack[TransformersArguments],
    ) -> EncoderOutput:
        refuse_arguments(self, {"past_key_values": past_key_values, **unsupported})
        packed = Packed(batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        x, states = self.encode(
            packed.batch, output_hidden_states=bool(output_hidden_states), inputs_embeds=packed.embeds
        )
        return EncoderOutput(
            last_hidden_state=packed.restore(x),
            pooler_output=None if self.pooler is None else self.pooler(first_tokens(x, packed.batch)),
            hidden_states=tuple(packed.restore(state) for state in states) if output_hidden_states else None,
        )

    def embed(self, texts: Iterable[str], tokenizer: Any, **options: Any) -> Tensor:
        """Return one vector per text, fp32 (texts, hidden_size) on the CPU, in the order of the texts.

        Options: `pooling` "mean", "max" or "cls", `normalize`, `max_length` in tokens, `long` "truncate", "windows" or
        "error", `batch_tokens`, `prompt`, `progress`; `fastbert.embeddings.embed.EmbedOptions` documents them. On CPUs
        a text's vector has the same bits in every batch.
        """
        return type(self).embed_texts(self, texts, tokenizer, **options)
