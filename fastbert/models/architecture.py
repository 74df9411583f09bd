"""An architecture as one record: what its encoder is made of, and where another library keeps the same parts.

`from_pretrained`, `convert`, `accelerate` and `embed` look architectures up in `fastbert.models.registry`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import Tensor

from fastbert.checkpoints.weights import Weights
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.key_map import BERT_NAMES, KeyMap
from fastbert.ops.encoder_layer.spec import Activation, LayerSpec, NormSpec


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
    always_projects: bool = False
    """True if a projection follows tables of any width (ALBERT)."""
    projects_before_norm: bool = False
    """True if that projection, without a bias, is part of the embeddings: in front of their norm (DeBERTa)."""


@dataclass(frozen=True)
class RelativeBiasSpec:
    """A bias of the scores by bucketed distance, one per head, that all layers share (Raffel et al. 2020; MPNet)."""

    rows: int
    """Rows of the table."""
    buckets: int = 32
    """Buckets of both directions, at most `rows`."""
    longest: int = 128
    """The distance from which on all are in the last bucket."""

    def __post_init__(self) -> None:
        if not 4 <= self.buckets <= self.rows or self.buckets % 4:
            raise UserError(
                f"relative positions have {self.buckets} buckets, which do not fit a table of {self.rows} rows: give it"
                f" {max(self.buckets, 4)} or more"
            )


@dataclass(frozen=True)
class RelativeEmbeddingsSpec:
    """Embeddings of relative positions, which the layers project to keys and queries (He et al. 2021, DeBERTa)."""

    span: int
    """Half the rows of the table: those of one direction."""
    buckets: int | None = None
    """Buckets of both directions together, logarithmic beyond half of them; None: one row per distance."""
    longest: int = 512
    """The distance of the last bucket."""
    norm: NormSpec | None = None

    def __post_init__(self) -> None:
        if self.span < 1 or (self.buckets is not None and (self.buckets < 4 or self.buckets // 2 >= self.longest - 1)):
            raise UserError(
                f"position_buckets={self.buckets}: relative positions up to {self.longest} need 4 buckets or more, and"
                " fewer than twice the longest distance"
            )


@dataclass(frozen=True)
class ConvolutionSpec:
    """A convolution of the embeddings, added behind the first layer and normalised (DeBERTa-v2)."""

    kernel_size: int
    groups: int
    activation: Literal["tanh", "gelu", "relu"]
    norm: NormSpec

    def __post_init__(self) -> None:
        if self.kernel_size < 1 or not self.kernel_size % 2:
            raise UserError(f"conv_kernel_size={self.kernel_size} must be odd: tokens keep their number")


@dataclass(frozen=True)
class ArchitectureSpec:
    """An encoder: embeddings, then one `LayerSpec` per layer."""

    embeddings: EmbeddingsSpec
    layers: tuple[LayerSpec, ...]
    shared: tuple[int, ...] | None = None
    """Where layers share parameters (ALBERT): of each application in turn, the number of the layer; None: each layer of
    `layers` once."""
    relative: RelativeBiasSpec | RelativeEmbeddingsSpec | None = None
    """The table of relative positions that the encoder owns and its layers read (MPNet, DeBERTa)."""
    convolution: ConvolutionSpec | None = None
    last_layer_repeats: int = 0
    """Further applications of the last layer, whose keys and values are of what the last layer reads (DeBERTa's
    z-steps)."""
    final_norm: NormSpec | None = None
    pooler: bool = True
    bare_pooler: bool = True
    """False if only models with a head that reads it have the pooler (NomicBERT)."""
    scales_residuals: bool = False
    """True if the initial weights of the projections to the residual stream are divided by the root of their number
    (GPT-2)."""

    @property
    def causal(self) -> bool:
        """Return whether tokens attend to those before them alone."""
        return any(layer.self_attention.causal for layer in self.layers)

    @property
    def unsupported(self) -> str | None:
        """Return the part that our own encoder has no modules for; None if it has all."""
        return next((part for part in map(_unsupported, self.layers) if part is not None), None)


def _unsupported(layer: LayerSpec) -> str | None:
    """Return the part of a layer that there are no modules for; None if there are for all."""
    if layer.cross_attention is not None:
        return "cross-attention"
    norms = (layer.attention_norm, layer.output_norm)
    places = {norm.place for norm in norms if norm is not None}
    if norms[1] is None or len(places) > 1 or (norms[0] is None and places == {"post"}):
        return "layers without a norm, or with norms in different places"
    return None


LayerCall = Literal["bert", "distilbert", "mpnet", "deberta", "modernbert", "rotary", "albert"]


@dataclass(frozen=True, kw_only=True)
class TransformersLayout:
    """The paths of the modules of an encoder of transformers, as text, so that nothing here imports the library.

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
    stack: str | None = "encoder"
    """The module whose forward runs the layers; None: the encoder itself."""
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
    output_dropout: str | None = "output.dropout"
    output_norm: str = "output.LayerNorm"
    tables: tuple[str, ...] = (
        "embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.token_type_embeddings",
    )  # fmt: skip
    """Tables of token, position and, if present, segment embeddings."""
    positions: Literal["columns", "after_padding"] = "columns"
    """Position ids: the columns, or counted over the tokens that are not padding, from the padding's own position."""
    pooler: str | None = "pooler"
    projection: str | None = None
    """The projection between embeddings and layers, None if there is none."""
    layer_call: LayerCall = "bert"
    """The signature with which the library's encoder calls a layer."""
    prediction_heads: tuple[PredictionHeadLayout, ...] = ()
    decoder: tuple[str, str] | None = None
    """The class whose linear layer multiplies with the vocabulary outside of `prediction_heads`, and the layer's path;
    None if there is none."""
    parts: tuple[tuple[str, str], ...] = ()
    """The paths of a layer's parts by the names of `fastbert.ops.encoder_layer.arguments.LayerParameters`, for layers
    whose spec comes from the architecture's record; those of relative positions are "position_key" and
    "position_query", of joined weights "qkv", of separate halves of a gated network "gate" and "up". The other paths of
    a layer's linear layers and norms are then unused. Empty: BERT's layers."""
    config_limits_layers: bool = False
    """True if the encoder runs as many of its layers as its config says, False if all."""
    groups: str | None = None
    """The list of layers inside each entry of `layers`, which are groups whose parameters are shared; None: none."""
    attention_dropout: str = "dropout"
    """The attribute of the attention that holds its dropout: a module that runs, or a probability."""
    attention_asks_training: bool = False
    """True if the attention reads that module's probability and asks itself whether it trains."""
    inner_dropout: str | None = None
    """The dropout behind the activation of the feed-forward network."""
    position_dropout: str | None = None
    """The dropout of embeddings of relative positions in a layer."""
    embeddings: str | None = "embeddings"
    """The module of embeddings; None where the encoder adds and normalises nothing."""
    embedding_arguments: tuple[str, ...] = ("input_ids", "inputs_embeds", "position_ids", "token_type_ids")
    """The arguments with which the encoder calls it."""
    embedding_norm: str = "LayerNorm"
    embedding_dropout: str = "dropout"
    embedding_projection: str | None = None
    """The projection in front of the embeddings' norm."""
    table_ids: tuple[str, ...] = ("input_ids", "position_ids", "token_type_ids")
    """The ids that `tables` are indexed with."""
    weight: str = "embeddings.LayerNorm"
    """A norm whose weight has the dtype and the device of the encoder."""
    final_norm: str | None = None
    rotary: str | None = None
    """The module that computes rotary embeddings."""
    relative_bias: str | None = None
    """The table of `RelativeBiasSpec`."""
    relative_embeddings: str | None = None
    """The table of `RelativeEmbeddingsSpec`."""
    relative_norm: str | None = None
    convolution: str | None = None
    """The convolution behind the first layer."""
    pooler_activation: str | None = None
    """The activation behind a pooler that is a linear layer of the first token; None: the pooler does all of it."""
    tuple_keeps_pooler: bool = False
    """True if an output that is a tuple has the pooled output, None without a pooler, in the second place."""


@dataclass(frozen=True, kw_only=True)
class PredictionHeadLayout:
    """The paths of the modules of a masked-LM head of transformers: activation and LayerNorm behind a linear layer,
    then, unless another module computes it, the matmul with the vocabulary."""

    name: str
    """Name of the head's class, in the module of its encoder."""
    transform: str | None = None
    """The module that holds the first three parts, None for the head itself."""
    dense: str = "dense"
    activation: str | None = None
    """None: GELU by erf, as a function."""
    norm: str = "layer_norm"
    decoder: str | None = "decoder"
    """The linear layer of that matmul, None if the head has none."""
    reads_table: bool = False
    """True if the head has a `bias`, and multiplies with the weight of the token embedding, forward's second
    argument."""


@dataclass(frozen=True)
class ClassificationHeadSpec:
    """A classifier of sequences that reads the first token without the encoder's pooler: linear layer, activation, norm
    if there is one, linear layer."""

    activation: Literal["tanh", "relu", "gelu", "gelu_tanh", "silu"]
    drops_input: bool = False
    """True if the first token passes dropout too."""
    bias: bool = True
    """True if the first linear layer has a bias."""
    norm: NormSpec | None = None
    pooling: Literal["first", "mean", "logits"] = "first"
    """What is classified: the first token, the mean of all tokens, or each token, of whose logits the mean is taken."""


@dataclass(frozen=True)
class PredictionSpec:
    """A masked-LM head: linear layer, activation and norm, if it has them, then the matmul with the vocabulary."""

    width: int
    """Inputs of that matmul."""
    activation: Activation = "gelu"
    norm: NormSpec | None = None
    """None: hidden states are multiplied with the vocabulary as they are."""
    bias: bool = True
    """True if the first linear layer has a bias."""
    decoder_bias: bool = True
    tied: bool = True
    """True if the decoder's weight is the token embedding's."""


Model = TypeVar("Model")


@dataclass(frozen=True, kw_only=True, eq=False)
class Architecture:
    """One architecture: how its config becomes a spec, the classes of its models, and the layouts of transformers that
    compute it."""

    name: str
    """Its `model_type` in transformers."""
    spec: Callable[[Any], ArchitectureSpec]
    """From a config, with transformers' field names, to what the encoder is made of."""
    layouts: tuple[TransformersLayout, ...]
    title: str = ""
    """The name of the architecture in documentation."""
    config: type[BertConfig] | None = None
    """Our config class where fastbert has models of its own, else None: the architecture is accelerated only."""
    class_prefix: str = ""
    """Prefix of the names of its models: "Bert" of `BertModel` and `BertForMaskedLM`."""
    base_model_prefix: str = ""
    """The attribute of models with a head that holds the encoder, and the prefix of its weights in their files."""
    key_map: KeyMap = BERT_NAMES
    head_key_maps: Mapping[type, KeyMap] = field(default_factory=dict)
    """The maps of heads whose files have names of their own."""
    from_file: Callable[[Weights], Weights] = lambda weights: weights
    """Returns a file's weights as the key map knows them, where files join or transpose them."""
    to_file: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda tensors: tensors
    """The inverse of `from_file`, for tensors by their names in files."""
    replaces_remote_code: bool = False
    """True if folders of this architecture that ask for remote code (`auto_map`) have what the record describes."""
    describes: Callable[[dict[str, Any]], bool] | None = None
    """Tells whether a config.json with the `model_type` of another architecture is of this one."""
    replacements: Mapping[type, type] = field(default_factory=dict)
    """Classes of its own for kinds of models: of `EncoderModel`, where the encoder has no transformer layers."""
    heads: tuple[type, ...] = ()
    """The classes of `fastbert.models.heads` that its models with a head are made of."""
    classification_head: ClassificationHeadSpec | Callable[[Any], ClassificationHeadSpec] | None = None
    """None: a linear layer behind the encoder's pooler, if it has one. A function returns that of a config."""
    transforms_tokens: bool = False
    """True if classifiers of tokens, and of answers, are such heads too."""
    prediction: Callable[[Any], PredictionSpec] | None = None
    """Returns the masked-LM head of a config; None: BERT's."""
    renames_of: Callable[[Any], tuple[tuple[str, str], ...]] = lambda config: ()
    """Returns further changes of names in the files of a config, behind those of the key maps."""
    classifier_bias: bool = True
    """True if that layer has a bias."""
    tied_head: bool = False
    """True if the head of a left-to-right language model is the matmul with the token embedding alone."""
    class_names: Mapping[str, str] = field(default_factory=dict)
    """Names in transformers, by the names of `heads`, that are not the prefix and the name of the head."""

    @functools.cached_property
    def _classes(self) -> dict[type, type]:
        return {}

    def head_spec(self, config: Any) -> ClassificationHeadSpec | None:
        """Return the classifier of sequences of a config."""
        head = self.classification_head
        return head if head is None or isinstance(head, ClassificationHeadSpec) else head(config)

    def model_class(self, kind: type[Model]) -> type[Model]:
        """Return the class of this architecture's models of a kind: `EncoderModel`, or one of its `heads`."""
        if kind not in self._classes:
            name = f"{self.class_prefix}{kind.__name__.removeprefix('Encoder')}"
            name = self.class_names.get(kind.__name__, name)
            base = self.replacements.get(kind, kind)
            attributes = {
                "__module__": "fastbert",  # where pickle looks for it
                "__doc__": (base.__doc__ or "")
                .replace("An encoder", f"The {self.title} encoder", 1)
                .replace(f"fastbert.Bert{kind.__name__.removeprefix('Encoder')}", f"fastbert.{name}"),
                "architecture": self,
                "base_model_prefix": self.base_model_prefix,
                "config_type": self.config,
                "key_map": self.head_key_maps.get(kind, self.key_map),
            }
            self._classes[kind] = type(name, (base,), attributes)
        return self._classes[kind]
