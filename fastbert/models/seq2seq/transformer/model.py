"""The original Transformer (Vaswani et al. 2017): post-LN layers, sinusoidal positions, one table of embeddings for
sources, targets and predictions."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from fastbert.checkpoints.weights import Weights
from fastbert.errors import CheckpointError, UserError
from fastbert.models.architecture import Architecture, ArchitectureSpec, EmbeddingsSpec
from fastbert.models.bert.architecture import TANH_GELUS
from fastbert.models.heads.prediction import TiedHead, VocabularyHead
from fastbert.models.initialisation import draw
from fastbert.models.layers import layer_batch
from fastbert.models.modules import Encoder
from fastbert.models.seq2seq.base import CrossAttentionModel
from fastbert.models.seq2seq.decoder import DecoderParts, DecoderStack
from fastbert.models.seq2seq.transformer.config import TransformerConfig
from fastbert.models.seq2seq.transformer.embeddings import SinusoidalEmbeddings
from fastbert.models.similarity import PerceptronSimilarity
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.encoder_layer.spec import Activation, AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec
from fastbert.packing import PackedBatch

MOST_NAMES = 8  # of lacking weights in a message


def transformer_spec(config: TransformerConfig) -> ArchitectureSpec:
    """Return what the encoder of a config is made of; the decoder's layers are the same with cross-attention."""
    activation: Activation = "gelu_tanh" if config.hidden_act in TANH_GELUS else cast("Activation", config.hidden_act)
    attention = AttentionSpec(config.num_attention_heads, config.head_dim, similarity=config.similarity)
    norm = NormSpec(config.layer_norm_eps)
    network = FeedForwardSpec(config.intermediate_size, activation)
    layer = LayerSpec(config.hidden_size, attention, network, norm, norm)
    embeddings = EmbeddingsSpec(vocab_size=config.vocab_size, embedding_size=config.hidden_size, positions=0)
    return ArchitectureSpec(embeddings, (layer,) * config.num_hidden_layers, pooler=False)


TRANSFORMER = Architecture(
    name="transformer",
    title="Transformer (Vaswani et al. 2017)",
    spec=transformer_spec,
    config=TransformerConfig,
    class_prefix="Transformer",
    base_model_prefix="transformer",
    tied_head=True,
    layouts=(),
)


class TransformerForSequenceToSequence(CrossAttentionModel):
    """The original Transformer, an encoder and a decoder (Vaswani et al. 2017), which generates targets of sources.

    New weights: embeddings from a normal distribution of variance 1 / hidden_size, linear layers from Glorot's uniform
    one, biases 0.
    """

    architecture = TRANSFORMER
    base_model_prefix: ClassVar[str] = TRANSFORMER.base_model_prefix
    config: TransformerConfig
    config_type: ClassVar[type[TransformerConfig]] = TransformerConfig
    tied_keys: tuple[str, ...] = ("lm_head.decoder.weight",)
    traceable = "use it as it is"

    def __init__(self, config: TransformerConfig) -> None:
        if not isinstance(config, TransformerConfig):
            raise UserError(f"{type(self).__name__} takes a TransformerConfig, not a {type(config).__name__}")
        super().__init__(config)
        spec = transformer_spec(config)
        drops = bool(config.hidden_dropout_prob or config.attention_probs_dropout_prob)
        self.embeddings: SinusoidalEmbeddings = SinusoidalEmbeddings(config.vocab_size, config.hidden_size)
        self.encoder: Encoder = Encoder(spec.layers, drops=drops)
        self.decoder: DecoderStack = DecoderStack(
            (spec.layers[0],) * config.layers_of_decoder, config.num_hidden_layers
        )
        self.lm_head: TiedHead = TiedHead(config)
        self.init_weights()

    @property
    def head(self) -> VocabularyHead:
        """The matmul with the token embedding, which predicts tokens from hidden states."""
        return self.lm_head

    @property
    def decoder_parts(self) -> DecoderParts:
        """The modules of the decoder."""
        return DecoderParts(self.embeddings, self.decoder, self.lm_head)

    def init_weights(self, seed: int | None = None) -> None:
        """Draw new weights; with `seed` they are reproducible, else they come from torch's global generator."""
        self.tie_weights()
        if self.embeddings.word_embeddings.weight.is_meta:
            return
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.lm_head.decoder:
                draw(nn.init.xavier_uniform_, module.weight, generator=generator)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                draw(nn.init.normal_, module.weight, std=self.config.hidden_size**-0.5, generator=generator)
            elif isinstance(module, PerceptronSimilarity):
                module.init_weights(generator)

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token embedding, whose weight is (vocab_size, hidden_size)."""
        return self.embeddings.word_embeddings

    def tie_weights(self) -> None:
        """Share the token embedding's weight with the matmul of the head."""
        self.lm_head.tie(self.embeddings.word_embeddings.weight)

    def _resize_output(self, rows: int) -> None:
        self.lm_head.resize(rows)
        self.tie_weights()

    def check_ranges(self, batch: PackedBatch) -> None:
        """Check that all ids of a batch are in range; a host-device sync on a GPU. Raises `UserError`."""
        size = self.config.max_position_embeddings
        for name, values, limit, cure in (
            ("input_ids", batch.input_ids, self.config.vocab_size, "use the vocabulary the model was trained with"),
            ("position_ids", batch.position_ids, size, f"truncate to {size} tokens, or raise max_position_embeddings"),
        ):
            if not values.numel():
                continue
            low, high = (int(value) for value in values.aminmax())
            if low < 0 or high >= limit:
                raise UserError(f"{name} holds {low if low < 0 else high}, outside the model's {limit:,}: {cure}")

    def source_states(self, source: PackedBatch) -> Tensor:
        """Return the encoder's hidden states (source tokens, hidden_size)."""
        if source.device.type == "cpu" and not torch.compiler.is_compiling():
            self.check_ranges(source)
        config = self.config
        batch = layer_batch(source, config.hidden_dropout_prob, config.attention_probs_dropout_prob, self.training)
        states: Tensor = self.encoder(
            self.embeddings(source, batch.token_dropout(Site.EMBEDDING)), batch, False, False
        )[0]
        return states

    def named_weights(self, weights: Weights) -> Weights:
        """Return a checkpoint's weights. Raises `CheckpointError` for one that lacks some: no part can be new."""
        lacking = sorted(self.state_dict().keys() - set(self.tied_keys) - self.match(weights).keys())
        if lacking:
            more = f" and {len(lacking) - MOST_NAMES} more" if len(lacking) > MOST_NAMES else ""
            raise CheckpointError(
                f"{weights.path}: lacks {', '.join(lacking[:MOST_NAMES])}{more}; fetch the whole model"
            )
        return weights
