"""An architecture as one record: what its encoder is made of, and where another library keeps the same parts.

`from_pretrained`, `convert`, `accelerate` and `embed` look architectures up in `fastbert.models.registry`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fastbert.ops.encoder_layer.spec import LayerSpec, NormSpec


@dataclass(frozen=True)
class EmbeddingsSpec:
    """The sum of token, position and segment embeddings, normalised."""

    vocab_size: int
    embedding_size: int
    """Width of the tables; where it differs from the layers' width, a projection follows (factorised embeddings)."""
    positions: int
    """Rows of the position table, 0 if positions enter elsewhere."""
    position_offset: int = 0
    """The position of the first token: RoBERTa's positions begin behind that of its padding."""
    token_types: int = 0
    norm: NormSpec | None = None


@dataclass(frozen=True)
class ArchitectureSpec:
    """An encoder: embeddings, then one `LayerSpec` per layer."""

    embeddings: EmbeddingsSpec
    layers: tuple[LayerSpec, ...]
    shares_layers: bool = False
    """Whether all layers have the same parameters (ALBERT)."""
    relative_tables: tuple[str, ...] = ()
    """Names of position tables that the encoder owns and its layers read (MPNet, DeBERTa)."""
    final_norm: NormSpec | None = None
    pooler: bool = True


@dataclass(frozen=True, kw_only=True)
class TransformersLayout:
    """Where an encoder of transformers keeps its parts: paths of modules, so that nothing here imports the library.

    Paths of a layer's parts start at the layer, the others at the encoder.
    """

    model: str
    """Name of the encoder's class."""
    module: str
    """The module of transformers that defines it."""
    output: str = "BaseModelOutputWithPoolingAndCrossAttentions"
    """Class of the encoder's output."""
    positional: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
    """The arguments of forward that may be given by position."""
    ignored: tuple[str, ...] = ()
    """Arguments that forward accepts and does not read."""
    stack: str = "encoder"
    layers: str = "encoder.layer"
    containers: tuple[str, ...] = ("attention", "attention.self", "attention.output", "intermediate", "output")
    """The modules between a layer and its leaves."""
    attention: str = "attention.self"
    heads: str = "num_attention_heads"
    """The attribute of the attention that holds the number of heads."""
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_output_dropout: str | None = "attention.output.dropout"
    attention_norm: str = "attention.output.LayerNorm"
    intermediate: str = "intermediate.dense"
    activation: str = "intermediate.intermediate_act_fn"
    feed_forward_output: str = "output.dense"
    output_dropout: str = "output.dropout"
    output_norm: str = "output.LayerNorm"
    tables: tuple[str, ...] = (
        "embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.token_type_embeddings",
    )  # fmt: skip
    """Tables of token, position and, if present, segment embeddings."""
    positions: Literal["columns", "after_padding"] = "columns"
    """Position ids: the columns, or counted over the tokens that are not padding, from the padding's own position."""
    pooler: str | None = "pooler"
    projection: str | None = None
    """What stands between embeddings and layers."""
    layer_call: Literal["bert", "distilbert"] = "bert"
    """How the library's encoder calls a layer."""
    prediction_head: PredictionHeadLayout | None = None


@dataclass(frozen=True, kw_only=True)
class PredictionHeadLayout:
    """Where a masked-LM head of transformers keeps its parts: activation and LayerNorm behind a linear layer, then the
    matmul with the vocabulary."""

    name: str
    """Name of the head's class, in the module of its encoder."""
    transform: str | None = None
    """The module that holds the first three parts, None for the head itself."""
    dense: str = "dense"
    activation: str | None = None
    """None: GELU by erf, as a function."""
    norm: str = "layer_norm"
    decoder: str = "decoder"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One architecture: how its config becomes a spec, and the layouts of transformers that compute it."""

    name: str
    """Its `model_type` in transformers."""
    spec: Callable[[Any], ArchitectureSpec]
    """From a config, with transformers' field names, to what the encoder is made of."""
    layouts: tuple[TransformersLayout, ...]
    config: type | None = None
    """Our config class where fastbert has models of its own, else None: the architecture is accelerated only."""
    base_model: str | None = None
    """Name of our encoder class, which the names of its heads begin with."""
