"""The stacks of layers of a model, with its tables and heads, as numbers. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Head = Literal["masked", "tied", "detection"]
ALPHABET = 261  # characters of ELMo
PAIRED = ("mlm+nsp", "mlm+sop")
"""Objectives that train a pooler."""


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
    pre_norm: bool = False
    """True if norms are in front of attention and of the feed-forward network."""
    fp32_stream: bool = False
    """True if hidden states between layers are in fp32 where matmuls are in bf16: embeddings are not the result of a
    matmul, nor of the operation that normalises them."""
    rms_norm: bool = False
    """True if norms save one number per row instead of two."""
    distinct: int | None = None
    """Layers with parameters of their own, each applied several times; None: all `layers`."""
    gated: bool = False
    """True if the first linear layer of feed-forward networks has twice `inner` outputs."""
    query_width: int | None = None
    """Width of all queries of a token; None: `width`."""
    key_width: int | None = None
    """Width of all keys of a token, and of all values; None: `width`."""
    projection_bias: bool = True
    """True if the projections of queries, keys and values have biases."""
    output_bias: bool = True
    first_bias: bool = True
    """True if the first linear layer of feed-forward networks has a bias."""
    second_bias: bool = True
    norm_vectors: int = 2
    """Vectors of a norm: 2 of a LayerNorm, 1 of one without a bias and of an RMSNorm."""
    absent_norms: int = 0
    """Norms that layers lack, of two in each."""
    windows: tuple[int | None, ...] = ()
    """Tokens on each side that a query attends to, layer by layer, None for all; empty: all everywhere."""
    relative_rows: int = 0
    """Rows of a table of relative positions that all queries, and all keys, are multiplied by: the sum of both."""
    relative_parameters: int = 0
    """Parameters of the table of relative positions, and of its norm."""
    relative_projections: int = 0
    """Projections of relative positions of each layer, where they are not those of queries and keys."""
    rotary_elements: int = 0
    """Elements of the tables of rotary positions, which are no parameters."""
    convolution: tuple[int, int] | None = None
    """Kernel size and groups of a convolution of the embeddings behind the first layer."""
    projection: Literal["linear", "matrix"] | None = None
    """What follows the embeddings: a linear layer, or one without a bias, in front of their norm; None: a linear layer
    where `embedding` is not `width`."""
    decoder_width: int | None = None
    """Inputs of the matmul with the vocabulary; None: `embedding`."""
    transform_vectors: int = 3
    """Vectors of the linear layer and norm in front of that matmul, for `head` "masked"."""
    decoder_bias: bool = True
    """True if that matmul has a bias."""
    tied: bool = True
    """True if its weight is the token embedding's."""

    @property
    def distinct_layers(self) -> int:
        """Return the number of layers with parameters of their own."""
        return self.layers if self.distinct is None else self.distinct

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
    def decoder_inputs(self) -> int:
        """Return the inputs of the matmul with the vocabulary."""
        return self.embedding if self.decoder_width is None else self.decoder_width

    @property
    def embedding_projection(self) -> Literal["linear", "matrix"] | None:
        """Return what follows the embeddings, None for nothing."""
        return "linear" if self.projection is None and self.embedding != self.width else self.projection

    @property
    def layer_matrices(self) -> tuple[tuple[int, int], ...]:
        """Return the shapes of the weights of a layer's linear layers."""
        width, relative = self.width, ((self.queries, self.width),) * self.relative_projections
        attention = ((self.queries, width), (self.keys, width), (self.keys, width), (width, self.queries), *relative)
        return (*attention, (self.network_outputs, width), (width, self.inner))


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
