"""The fields that configs of encoders with one kind of rotary embeddings share."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Self

from fastbert.config import BertConfig, check_size, config_class
from fastbert.errors import UserError
from fastbert.models.activations import ACTIVATIONS
from fastbert.models.rotary import rotary_parameters, rotary_spec
from fastbert.ops.encoder_layer.spec import RotarySpec


@config_class
class RotaryConfig(BertConfig):
    """An encoder whose layers all turn queries and keys by their positions, and that has no table of them.

    `head_dim` of config.json, the width of a head, need not be `hidden_size / num_attention_heads`. Raises `UserError`
    for invalid values.
    """

    theta: ClassVar[float] = 10_000.0
    """The base of rotary embeddings, where config.json names none."""
    attribute_map: ClassVar[dict[str, str]] = {"attention_head_dim": "head_dim"}
    activations: ClassVar[tuple[str, ...]] = tuple(ACTIVATIONS)

    attention_head_dim: int | None = None
    rope_parameters: dict[str, Any] = field(default_factory=dict)
    """`rope_type`, `rope_theta` and how frequencies are stretched."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(
            self, "rope_parameters", rotary_parameters({"rope_parameters": self.rope_parameters}, self.theta)
        )
        if self.attention_head_dim is not None:
            check_size("head_dim", self.attention_head_dim)
        self.rotary()

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head."""
        width = self.attention_head_dim
        return self.hidden_size // self.num_attention_heads if width is None else width

    def rotary(self) -> RotarySpec:
        """Return the rotary embeddings of all layers."""
        return rotary_spec(self.rope_parameters, self.head_dim, self.max_position_embeddings)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, as `BertConfig.from_dict` does."""
        try:
            ropes = rotary_parameters(values, cls.theta)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None
        rest = {name: value for name, value in values.items() if name not in ("rope_theta", "rope_scaling")}
        return super().from_dict({**rest, "rope_parameters": ropes}, source)

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """Return a dictionary that `from_dict`, and that of transformers, reads back as the same model."""
        values = super().to_dict(architecture)
        if values["head_dim"] is None:
            del values["head_dim"]
        return values

    @property
    def prediction_activation(self) -> str:
        """Return the activation in the masked-LM head."""
        return ACTIVATIONS[self.hidden_act]
