"""What a pre-training step computes, as numbers: the stacks of layers, tables and heads of each architecture.

Read from a config of `fastbert.models` by its field names, so that nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fastbert.errors import UserError

if TYPE_CHECKING:
    from fastbert.config import BertConfig

Head = Literal["masked", "tied", "detection"]
OBJECTIVES = ("mlm+nsp", "mlm", "mlm+sop", "rtd", "ltr", "bilm")
PAIRED = ("mlm+nsp", "mlm+sop")
POOLED = ("bert", "roberta-prelayernorm")
"""Architectures whose model for masked tokens has a pooler and a next-sentence head, whatever the objective."""
PRE_NORM = ("gpt2", "roberta-prelayernorm")
"""Architectures of pre-LN layers, which are composed of single operations, with a norm behind the last."""
COMPOSED = (
    "mpnet", "modernbert", "deberta-v2", "nomic_bert", "eurobert", "albert", "jina_embeddings_v3", "jina_bert",
)  # fmt: skip
"""Architectures whose operations are counted, but not their memory and parameters."""
ALPHABET = 261  # characters of ELMo
GENERATOR_SIZE = 0.25


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """A stack of Transformer layers between embeddings and a head."""

    name: str
    """"" or "generator ", the prefix of its parts."""
    layers: int
    width: int
    heads: int
    inner: int
    vocab: int
    embedding: int
    """Width of the embeddings; where it is not `width`, a projection follows."""
    positions: int
    segments: int
    causal: bool
    head: Head
    pooler: bool
    """True if a pooler and a next-sentence head follow, on the first token of each sequence."""
    pooler_trains: bool
    """True if the loss depends on them."""
    embedding_norm: bool = True
    final_norm: bool = False
    shares_embeddings: bool = False
    """True if the embeddings are another encoder's."""
    fused: bool = True
    """True if a layer is one operation of the kernels: those of BERT, not pre-LN ones."""
    gated: bool = False
    """True if the first linear layer of feed-forward networks has twice `inner` outputs."""
    query_width: int | None = None
    """Width of all queries of a token; None: `width`."""
    key_width: int | None = None
    """Width of all keys of a token, and of all values; None: `width`."""
    relative_rows: int = 0
    """Rows of a table of relative positions that all queries, and all keys, are multiplied by: the sum of both."""

    @property
    def queries(self) -> int:
        """Return the width of all queries of a token."""
        return self.width if self.query_width is None else self.query_width

    @property
    def keys(self) -> int:
        """Return the width of all keys of a token, and of all values."""
        return self.width if self.key_width is None else self.key_width

    @property
    def network_outputs(self) -> int:
        """Return the outputs of the first linear layer of feed-forward networks."""
        return self.inner * (2 if self.gated else 1)

    @property
    def layer_matrices(self) -> int:
        """Return the weights of a layer's linear layers, without biases."""
        projections = self.width * (2 * self.queries + 2 * self.keys)
        return projections + self.width * (self.network_outputs + self.inner)

    @property
    def layer_vectors(self) -> int:
        """Return the biases and norms of a layer."""
        return 9 * self.width + self.inner


@dataclass(frozen=True, kw_only=True)
class ElmoShape:
    """ELMo: a character convolution, layers of LSTMs in both directions, a softmax over words."""

    name: str = ""
    layers: int
    projection: int
    units: int
    characters: int
    """Width of a character's embedding."""
    filters: tuple[int, ...]
    highways: int
    vocab: int
    """Words that the softmax predicts."""


ModelShape = tuple[EncoderShape | ElmoShape, ...]


def model_shape(config: BertConfig | Any, objective: str, generator_size: float | None = None) -> ModelShape:
    """Return the stacks that pre-training a model of `config` computes: with `rtd` the generator's, then the
    discriminator's.

    `generator_size` is the width of the generator of `rtd` as a fraction of the discriminator's (default: 0.25).
    Raises `UserError` for an unknown objective.
    """
    if objective not in OBJECTIVES:
        raise UserError(f"objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
    if config.model_type == "elmo":
        return (_elmo(config),)
    if objective != "rtd":
        return (_encoder(config, objective),)
    fraction = GENERATOR_SIZE if generator_size is None else generator_size
    from fastbert.models.electra.config import generator_config

    narrow: Any = config
    generator = _encoder(generator_config(narrow, fraction), "mlm", name="generator ", shares_embeddings=True)
    return generator, _encoder(config, "rtd")


def _encoder(config: Any, objective: str, *, name: str = "", shares_embeddings: bool = False) -> EncoderShape:
    kind = config.model_type
    causal = bool(config.is_decoder) or objective == "ltr"
    pooler = kind in POOLED and not causal
    decoder = kind in ("gpt2", "openai-gpt")
    head: Head = "detection" if objective == "rtd" else "tied" if decoder or kind == "eurobert" else "masked"
    groups = getattr(config, "key_value_heads", config.num_attention_heads)
    kinds = len(set(config.pos_att_type)) if getattr(config, "relative_attention", False) else 0
    return EncoderShape(
        name=name,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        vocab=config.vocab_size,
        embedding=config.token_embedding_size,
        positions=config.max_position_embeddings,
        segments=config.type_vocab_size,
        causal=causal,
        head=head,
        pooler=pooler,
        pooler_trains=pooler and objective in PAIRED,
        embedding_norm=not decoder,
        final_norm=kind in PRE_NORM,
        shares_embeddings=shares_embeddings,
        fused=kind not in PRE_NORM and kind not in COMPOSED,
        gated=config.intermediate_outputs == 2 * config.intermediate_size,
        query_width=config.num_attention_heads * config.head_dim,
        key_width=groups * config.head_dim,
        relative_rows=2 * kinds * config.relative_span if kinds else 0,
    )


def _elmo(config: Any) -> ElmoShape:
    return ElmoShape(
        layers=config.num_hidden_layers,
        projection=config.projection_size,
        units=config.intermediate_size,
        characters=config.character_embedding_size,
        filters=tuple(config.filters),
        highways=config.num_highways,
        vocab=config.output_size,
    )
