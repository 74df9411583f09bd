"""The configuration of GPT, the model of 2018."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fastbert.config import config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.models.gpt2.config import _FIELDS, DecoderConfig


@config_class
class OpenAIGPTConfig(DecoderConfig):
    """A GPT language model (Radford et al. 2018): post-LN layers that read left to right.

    `fastbert.models.gpt2.config.DecoderConfig` describes the fields; the feed-forward network is four times as wide as
    the layers. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "openai-gpt"
    attribute_map: ClassVar[dict[str, str]] = {**_FIELDS, "hidden_act": "afn"}

    vocab_size: int = 40478

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.intermediate_size != 4 * self.hidden_size:
            raise UserError(
                f"intermediate_size={self.intermediate_size} must be four times hidden_size={self.hidden_size}, as in"
                " all models of GPT"
            )

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters; unlike GPT-2's, the layers are followed by no norm."""
        return super().num_parameters(heads) - 2 * self.hidden_size

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, as `BertConfig.from_dict` does."""
        # Called gelu there, it is the approximation by tanh.
        activation = values.get("afn", values.get("hidden_act", "gelu"))
        if activation not in ("gelu", "gelu_new"):
            raise UserError(f"{source}: afn={shown(activation)} is not supported, only gelu")
        values = {name: value for name, value in values.items() if name not in ("afn", "hidden_act")}
        width = values.get("n_embd", values.get("hidden_size", cls.hidden_size))
        if "intermediate_size" not in values and isinstance(width, int):
            values["intermediate_size"] = 4 * width
        return super().from_dict(values, source)

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """Return a dictionary that `from_dict`, and that of transformers, reads back as the same model."""
        values = super().to_dict(architecture)
        del values["intermediate_size"]
        return {**values, "afn": "gelu"}
