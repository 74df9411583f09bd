"""The configuration of DeBERTa-v2 and DeBERTa-v3."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fastbert.config import BertConfig, check_probability, check_size, config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.models.activations import ACTIVATIONS

CONTENT_TO_POSITION, POSITION_TO_CONTENT = "c2p", "p2c"
_CONVOLUTIONS = ("tanh", "gelu", "relu")


@config_class
class DebertaV2Config(BertConfig):
    """A DeBERTa-v2 or -v3 encoder (He et al. 2021): post-LN layers whose attention is disentangled.

    The fields and defaults are those of `transformers.DebertaV2Config`, and of the older folders: `position_buckets`,
    `share_att_key`, `norm_rel_ebd`, `embedding_size`, `conv_kernel_size`, `conv_groups`, `conv_act`. `max_relative_
    positions` below 1 is `max_position_embeddings`. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "deberta-v2"
    constants: ClassVar[frozenset[str]] = frozenset({"is_decoder", "classifier_dropout"})
    may_be_zero: ClassVar[frozenset[str]] = frozenset({"type_vocab_size"})
    activations: ClassVar[tuple[str, ...]] = tuple(ACTIVATIONS)

    vocab_size: int = 128100
    hidden_size: int = 1536
    num_hidden_layers: int = 24
    num_attention_heads: int = 24
    intermediate_size: int = 6144
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-7
    relative_attention: bool = False
    max_relative_positions: int = -1
    position_buckets: int = -1
    """Buckets of distances, of both directions together; below 1: one row per distance."""
    pos_att_type: tuple[str, ...] = ()
    """ "c2p", "p2c", or both: what of relative positions enters the scores."""
    share_att_key: bool = False
    """True if relative positions pass the projections of keys and queries."""
    norm_rel_ebd: str = "none"
    """ "layer_norm" if the embeddings of relative positions are normalised."""
    position_biased_input: bool = True
    """True if embeddings have absolute positions."""
    embedding_size: int | None = None
    """Width of the embeddings, None: that of the layers."""
    conv_kernel_size: int = 0
    conv_groups: int = 1
    conv_act: str = "tanh"
    pooler_dropout: float = 0.0
    pooler_hidden_act: str = "gelu"
    cls_dropout: float | None = None
    """Dropout probability in front of a classifier of sequences, None: `hidden_dropout_prob`."""
    z_steps: int = 0
    """Passes of the last layer whose queries are of the pass before; 0 and 1: one. transformers ignores it."""
    legacy: bool = True
    """True if the masked-LM head is that of transformers' early versions, False: that of the released models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not set(self.pos_att_type) <= {CONTENT_TO_POSITION, POSITION_TO_CONTENT}:
            raise UserError(f"pos_att_type={shown(list(self.pos_att_type))} must be of c2p and p2c")
        for name in ("relative_attention", "share_att_key", "position_biased_input", "legacy"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name}={shown(getattr(self, name))} must be true or false")
        for name in ("max_relative_positions", "position_buckets", "conv_kernel_size", "conv_groups", "z_steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise UserError(f"{name}={shown(value)} must be an integer")
            check_size(name, max(value, 1))  # values below 1 have meanings of their own
        if not 0 <= self.z_steps <= self.num_hidden_layers:
            raise UserError(f"z_steps={self.z_steps} must be from 0 to num_hidden_layers={self.num_hidden_layers}")
        if self.embedding_size is not None:
            check_size("embedding_size", self.embedding_size)
        if not isinstance(self.norm_rel_ebd, str):
            raise UserError(f'norm_rel_ebd={shown(self.norm_rel_ebd)} must be "layer_norm" or "none"')
        if self.conv_kernel_size > 0 and (self.conv_act not in _CONVOLUTIONS or not self.conv_kernel_size % 2):
            raise UserError(
                f"conv_kernel_size={self.conv_kernel_size} with conv_act={shown(self.conv_act)} is not supported: the"
                f" size must be odd, the activation one of {', '.join(_CONVOLUTIONS)}"
            )
        groups = self.conv_groups
        if self.conv_kernel_size > 0 and (groups < 1 or self.hidden_size % groups):
            raise UserError(f"conv_groups={groups} must divide hidden_size={self.hidden_size}")
        check_probability("pooler_dropout", self.pooler_dropout)
        if self.cls_dropout is not None:
            check_probability("cls_dropout", self.cls_dropout)
        if self.pooler_hidden_act not in ("gelu", "tanh", "relu"):
            raise UserError(f"pooler_hidden_act={shown(self.pooler_hidden_act)} is not one of gelu, tanh, relu")

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, as `BertConfig.from_dict` does."""
        values = dict(values)
        kinds = values.get("pos_att_type")
        if isinstance(kinds, str):
            kinds = [kind.strip() for kind in kinds.lower().split("|")]
        values["pos_att_type"] = tuple(kinds) if isinstance(kinds, list | tuple) else ()
        size = values.get("pooler_hidden_size")
        if size is not None and size != values.get("hidden_size", cls.hidden_size):
            raise UserError(f"{source}: pooler_hidden_size={shown(size)} must be hidden_size, which the pooler reads")
        if values.get("tie_word_embeddings") is False:
            raise UserError(f"{source}: tie_word_embeddings=false, a head with weights of its own, is not supported")
        return super().from_dict(values, source)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Return one of BERT's sizes with DeBERTa-v3's layers: disentangled attention with 256 buckets, projections
        shared with relative positions, which are normalised, and no absolute ones. The masked-LM head is the one
        that transformers loads, `legacy`."""
        shape = {
            "relative_attention": True, "position_buckets": 256, "pos_att_type": ("p2c", "c2p"), "share_att_key": True,
            "norm_rel_ebd": "layer_norm", "position_biased_input": False,
        }  # fmt: skip
        return super().preset(name, **{**shape, **overrides})

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """Return a dictionary that `from_dict`, and that of transformers, reads back as the same model."""
        values = super().to_dict(architecture)
        values["pos_att_type"] = list(self.pos_att_type)
        for name in ("embedding_size", "cls_dropout"):
            if values[name] is None:
                del values[name]
        return values

    @property
    def token_embedding_size(self) -> int:
        """Return the width of the token embedding, and of the masked-LM head whose decoder is tied to it."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def relative_span(self) -> int:
        """Return half the rows of the table of relative positions."""
        return self.position_buckets if self.position_buckets > 0 else self.longest_distance

    @property
    def longest_distance(self) -> int:
        """Return the largest distance that has a row, or a bucket, of its own."""
        longest = self.max_relative_positions
        return longest if longest > 0 else self.max_position_embeddings

    @property
    def normalises_positions(self) -> bool:
        """Return whether the embeddings of relative positions are normalised."""
        return "layer_norm" in [part.strip() for part in self.norm_rel_ebd.lower().split("|")]

    @property
    def prediction_activation(self) -> str:
        """Return the activation in the masked-LM head."""
        return ACTIVATIONS[self.hidden_act]

    @property
    def sequence_classifier_dropout(self) -> float:
        """Return the dropout probability in front of a classifier of sequences."""
        return self.hidden_dropout_prob if self.cls_dropout is None else self.cls_dropout

    @property
    def token_classifier_dropout(self) -> float:
        """Return the dropout probability in front of a classifier of tokens."""
        return self.hidden_dropout_prob

    @property
    def classifier_input_dropout(self) -> float:
        """Return the dropout probability in front of the pooler."""
        return self.pooler_dropout

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters of the encoder, or with `heads` with the masked-LM head."""
        width, inner, narrow = self.hidden_size, self.intermediate_size, self.token_embedding_size
        tables = self.vocab_size + self.type_vocab_size
        tables += self.max_position_embeddings if self.position_biased_input else 0
        layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
        total = tables * narrow + 2 * width + (0 if narrow == width else narrow * width)
        if self.relative_attention:
            total += 2 * self.relative_span * width
            projections = 0 if self.share_att_key else len(set(self.pos_att_type))
            layer += projections * (width * width + width)
        if self.normalises_positions:
            total += 2 * width
        if self.conv_kernel_size > 0:
            total += width * width // self.conv_groups * self.conv_kernel_size + 3 * width
        total += self.num_hidden_layers * layer
        if heads:
            inside = narrow if self.legacy else width
            total += width * inside + 3 * inside + self.vocab_size
        return total
