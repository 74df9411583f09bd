"""The encoder with its pooler, of which every architecture makes its own class: `BertModel`, `RobertaModel`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.models.current_stack import current_stack
from fastbert.models.encoder_stack import EncoderStack
from fastbert.models.fusibility import project, runs_as_written
from fastbert.models.layers import ROWS_MULTIPLE, layer_batch, multiplies_in_bf16
from fastbert.models.modules import LAYERS, Embeddings, Encoder, Pooler
from fastbert.models.outputs import EncoderOutput
from fastbert.models.packed import read_inputs
from fastbert.models.padded import PaddedBatch, is_readable
from fastbert.models.positions import Positions
from fastbert.models.unsupported_arguments import TransformersArguments
from fastbert.ops.dropout.arguments import Site
from fastbert.packing import PackedBatch


class EmbeddingSettings(Protocol):
    """The interface of the settings for embeddings that an encoder saves with its weights."""

    def check_width(self, width: int, source: str) -> None:
        """Raise UserError if the settings do not fit a model of this width."""

    def check_folder(self, folder: Path) -> None:
        """Raise UserError if a folder is not free for `save`."""

    def save(self, folder: Path, width: int) -> None:
        """Write the settings next to the model."""


def summary_indices(batch: PackedBatch, causal: bool = False) -> Tensor:
    """Return the index of the token that stands for its sequence, int64 (sequences,), in a batch that has tokens: the
    first, or with causal attention the last."""
    if isinstance(batch, PaddedBatch):
        return batch.last_positions if causal else batch.first_positions
    # An empty sequence has no tokens: the clamp keeps its index legal, its row is meaningless.
    if causal:
        return (batch.cu_seqlens[1:].long() - 1).clamp(min=0)
    return batch.cu_seqlens[:-1].long().clamp(max=batch.num_tokens - 1)


def summary_tokens(x: Tensor, batch: PackedBatch, causal: bool = False) -> Tensor:
    """Select the pooler's inputs (sequences, hidden_size) from hidden states (tokens, hidden_size)."""
    if isinstance(batch, PaddedBatch) or len(x):
        return x.index_select(0, summary_indices(batch, causal))
    return x.new_zeros(len(batch), x.shape[1])


class EncoderModel(PreTrainedModel):
    """An encoder with its pooler, if the architecture has one.

    Padded input gives padded output, a `PackedBatch` packed output. Parameters have the names of transformers'
    `BertModel`; files have the architecture's own names.

    Example:
        >>> import fastbert
        >>> tokenizer = fastbert.load_tokenizer("runs/mine/model")
        >>> model = fastbert.BertModel.from_pretrained("runs/mine/model")
        >>> output = model(**tokenizer(["a short one.", "one"], padding=True, return_tensors="pt"))
        >>> output.last_hidden_state.shape
        torch.Size([2, 6, 16])
        >>> batch = tokenizer.pack(["a short one.", "one"])
        >>> model(batch).last_hidden_state.shape
        torch.Size([9, 16])
        >>> model.embed(["a short one.", "one"], tokenizer, pooling="mean", normalize=True).shape
        torch.Size([2, 16])
    """

    def __init__(self, config: BertConfig, add_pooling_layer: bool | None = None) -> None:
        """Make a model with new weights, from torch's global generator; without a pooler there is no pooled output.

        `add_pooling_layer` None: with a pooler if the architecture's own encoder has one.
        """
        super().__init__(config)
        spec = self.architecture.spec(config)
        assert spec.unsupported is None, f"{self.architecture.name}: no modules for {spec.unsupported}"
        drops = bool(config.hidden_dropout_prob or config.attention_probs_dropout_prob)
        self.causal: bool = spec.causal
        self.position_offset: int = spec.embeddings.position_offset
        self.embeddings: Embeddings = Embeddings(spec.embeddings, config.hidden_size)
        width = spec.embeddings.embedding_size
        projects = spec.embeddings.always_projects or width != config.hidden_size
        projects = projects and not spec.embeddings.projects_before_norm
        self.embeddings_project: nn.Linear | None = nn.Linear(width, config.hidden_size) if projects else None
        self.encoder: Encoder = Encoder(
            spec.layers, drops=drops, final_norm=spec.final_norm, shared=spec.shared, convolution=spec.convolution,
            last_layer_repeats=spec.last_layer_repeats,
        )  # fmt: skip
        self.positions: Positions = Positions(spec, config.max_sequence_length)
        self.scales_residuals: bool = spec.scales_residuals
        pools = spec.bare_pooler if add_pooling_layer is None else add_pooling_layer
        self.pooler: Pooler | None = Pooler(config.hidden_size) if pools and spec.pooler else None
        self.embed_settings: EmbeddingSettings | None = None
        """Defaults of `embed`: a `fastbert.embeddings.settings.EmbedSettings`, saved for sentence-transformers."""
        self.init_weights()

    def rescale_initial_weights(self) -> None:
        """Divide initial weights of projections to the residual stream where the architecture does."""
        if not self.scales_residuals:
            return
        with torch.no_grad():
            for name, weight in self.encoder.named_parameters():
                if name.endswith("output.dense.weight"):
                    weight.mul_((2 * len(self.encoder.layer)) ** -0.5)

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token embedding, whose weight is (vocab_size, hidden_size)."""
        return self.embeddings.word_embeddings

    def save_pretrained(self, folder: str | Path, *, max_shard_size: int | str | None = None) -> None:
        """Write `config.json` and `model.safetensors`, which `transformers.AutoModel` loads unchanged, and
        `embed_settings`, if they are set, for sentence-transformers.

        `max_shard_size`, in bytes or as "2GB", splits larger weights into several files with an index.
        `fastbert_manifest.json` lists checksums. The files appear all at once (`atomic_folder`), and other files in the
        folder stay. Raises `CheckpointError` for disk errors, and `UserError` for settings that do not fit the model,
        with the folder as it was.
        """
        settings = self.embed_settings
        if settings is not None:  # checked before anything is written
            settings.check_width(self.config.hidden_size, "embed_settings")
            settings.check_folder(Path(folder))
        super().save_pretrained(folder, max_shard_size=max_shard_size)

    def _write_files(self, folder: Path, tensors: dict[str, Tensor], max_bytes: int | None) -> None:
        super()._write_files(folder, tensors, max_bytes)
        if self.embed_settings is not None:
            self.embed_settings.save(folder, self.config.hidden_size)

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

        With `token_indices`, int64 (rows,), the last layer's are those of these tokens alone, (rows, hidden_size), and
        the last layer computes nothing else but keys and values, in training and on GPUs also queries and attention:
        reading one token in six saves half of it. `causal`: tokens attend to themselves and to those before them.
        `inputs_embeds` (tokens, hidden_size) replaces the rows of the token table.
        Hidden states have the dtype of the parameters, or of autocast. Raises `UserError` for ids outside the model's
        tables (on the CPU), and for models and batches on the meta device.
        """
        for name, tensor in (("the model", self.embeddings.word_embeddings.weight), ("the batch", batch.input_ids)):
            if tensor.is_meta:
                raise UserError(
                    f"{name} is on the meta device, which holds no values: load weights with from_pretrained, or give"
                    ' them memory with model.to_empty(device="cpu") and model.load_state_dict'
                )
        tokens = batch.num_tokens
        stack = None
        if not (causal or output_hidden_states or isinstance(batch, PaddedBatch)):
            stack = current_stack(self, tokens)
        if stack is not None and inputs_embeds is None and runs_as_written(self.encoder, Encoder):
            whole = stack.encode(batch, token_indices)
            if whole is not None:
                return (whole if self.encoder.LayerNorm is None else self.encoder.LayerNorm(whole)), []
        # On a GPU this would be a host-device sync, and a compiled graph cannot read values.
        if is_readable(batch.input_ids):
            self.check_ranges(batch)
        width = self.config.token_embedding_size
        if inputs_embeds is not None and inputs_embeds.shape[-1] != width:
            name = "hidden_size" if width == self.config.hidden_size else "embedding_size"
            raise UserError(f"inputs_embeds are {inputs_embeds.shape[-1]} wide, but the model's {name}={width}")
        if isinstance(batch, PaddedBatch):  # no branch on the number of tokens: recorded calls have none
            x, states = self._run(batch, causal, output_hidden_states, None, inputs_embeds, None)
            return x if token_indices is None else x.index_select(0, token_indices), states
        indices = token_indices
        if self._library_multiplies_bf16(tokens, stack):
            batch = batch.filled(ROWS_MULTIPLE)
            if inputs_embeds is not None:
                inputs_embeds = F.pad(inputs_embeds, (0, 0, 0, batch.num_tokens - tokens))
            if indices is not None:  # padded with the first token, whose copies are cut off below
                indices = F.pad(indices, (0, -len(indices) % ROWS_MULTIPLE))
        x, states = self._run(batch, causal, output_hidden_states, indices, inputs_embeds, stack)
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
        stack: EncoderStack | None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the encoder's output and hidden states; `stack` computes its layers, where it can."""
        config = self.config
        layers = layer_batch(
            batch, config.feed_forward_dropout_prob, config.attention_probs_dropout_prob, self.training,
            attention_output_p=config.attention_output_dropout_prob, inner_p=config.intermediate_dropout_prob,
            other_p=config.embedding_dropout_prob, positions=self.positions(batch),
        )  # fmt: skip
        embeds = () if inputs_embeds is None else (inputs_embeds,)
        dropout = layers.token_dropout(Site.EMBEDDING, p=config.embedding_dropout_prob if self.training else 0.0)
        x: Tensor = self.embeddings(batch, dropout, *embeds)
        if self.embeddings_project is not None:
            x = project(self.embeddings_project, x)
        whole = None if stack is None else stack.run(x, layers, token_indices)
        if whole is not None:
            return (whole if self.encoder.LayerNorm is None else self.encoder.LayerNorm(whole)), []
        if token_indices is not None and runs_as_written(self.encoder, Encoder):
            x, states = self.encoder(x, layers, causal, output_hidden_states, token_indices)
            return x, states
        # Hooks and replaced encoders receive every token.
        x, states = self.encoder(x, layers, causal, output_hidden_states)
        return x if token_indices is None else x.index_select(0, token_indices), states

    def _library_multiplies_bf16(self, tokens: int, stack: EncoderStack | None) -> bool:
        """Return whether torch's library will multiply bf16 on the CPU, not our kernels, which are compiled for every
        number of rows."""
        weight = self.embeddings.word_embeddings.weight
        if torch.compiler.is_compiling() or not multiplies_in_bf16(weight) or not self.encoder.layer:
            return False
        if stack is not None and not torch.is_grad_enabled():
            return not stack.is_native(tokens, torch.bfloat16)
        # In training some layers may be frozen; in inference one layer stands for all.
        layers = list(self.encoder.layer) if torch.is_grad_enabled() else [self.encoder.layer[0]]
        return any(not isinstance(layer, LAYERS) or not layer.is_native(tokens, torch.bfloat16) for layer in layers)

    def check_ranges(self, batch: PackedBatch) -> None:
        """Check that all ids of a batch are in range; on a GPU this is a host-device sync.

        Raises `UserError` that names the field, the value and the cure.
        """
        config, offset = self.config, self.position_offset
        positions = config.max_position_embeddings if self.positions.has_table else 0
        truncate = f"truncate to {config.max_sequence_length} tokens"
        for name, values, size, cure in (
            ("input_ids", batch.input_ids, config.vocab_size, "use the vocabulary the model was trained with"),
            ("position_ids", batch.position_ids, positions, truncate),
            ("token_type_ids", batch.token_type_ids, config.type_vocab_size, "use types below type_vocab_size"),
        ):
            ignored = name == "token_type_ids" and size < 2  # by models without segments, or with a single one
            if values.numel() and size and not ignored:
                low, high = (int(value) for value in values.aminmax())
                if name == "position_ids":
                    low, high = low + offset, high + offset
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
        """Encode a `PackedBatch`, or B sequences padded to S columns.

        Args:
            batch: a `PackedBatch`, or `input_ids` (B, S) by position.
            attention_mask: (B, S) of any dtype, nonzero at tokens; None: there is no padding.
            token_type_ids: int64 (B, S), the segment of each token; None: 0.
            position_ids: int64 (B, S), or (S,); None: the columns.
            input_ids: int64 (B, S).
            inputs_embeds: floating (B, S, hidden_size), instead of `input_ids`.
            output_hidden_states: also return the output of the embeddings and of each layer.
            past_key_values, **unsupported: other arguments of transformers, which must have their default values.

        Returns:
            `last_hidden_state` (B, S, hidden_size) with zeros at padding, or (tokens, hidden_size) of a `PackedBatch`;
            `pooler_output` (B, hidden_size), None without a pooler; `hidden_states` with shapes as the first. They have
            the dtype of the parameters, or of autocast.

        Raises:
            UserError: ids outside the vocabulary, sequences longer than the position table, tensors of the wrong shape
                or dtype, arguments that are not supported.
        """
        packed = read_inputs(
            self, batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds,
            past_key_values=past_key_values, **unsupported,
        )  # fmt: skip
        x, states = self.encode(
            packed.batch, output_hidden_states=bool(output_hidden_states), inputs_embeds=packed.embeds
        )
        return EncoderOutput(
            last_hidden_state=packed.restore(x),
            pooler_output=None if self.pooler is None else self.pooler(summary_tokens(x, packed.batch, self.causal)),
            hidden_states=tuple(packed.restore(state) for state in states) if output_hidden_states else None,
        )

    def embed(self, texts: Iterable[str], tokenizer: Any, **options: Any) -> Tensor:
        """Return one vector per text, fp32 (texts, hidden_size) on the CPU, in the order of the texts.

        Options: `pooling` "mean", "max" or "cls", `normalize`, `max_length` in tokens, `long` "truncate", "windows" or
        "error", `batch_tokens`, `prompt`, `progress`; `fastbert.embeddings.embed.EmbedOptions` documents them. On CPUs
        a text's vector has the same bits in every batch. Raises `UserError` for options out of range, texts that are
        not strings, and a tokenizer whose vocabulary is not the model's.
        """
        # Embeddings build on models, so the package's root, which is always loaded, calls them.
        vectors: Tensor = sys.modules["fastbert"].embed_texts(self, texts, tokenizer, **options)
        return vectors
