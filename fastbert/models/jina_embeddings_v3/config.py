"""The configuration of jina-embeddings v3."""

from __future__ import annotations

from typing import ClassVar

from fastbert.config import config_class
from fastbert.models.rotary_config import RotaryConfig


@config_class
class JinaEmbeddingsV3Config(RotaryConfig):
    """The encoder of jina-embeddings v3 (Sturua et al. 2024): XLM-RoBERTa with rotary positions.

    The fields and defaults are those of `transformers.JinaEmbeddingsV3Config`. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "jina_embeddings_v3"
    theta: ClassVar[float] = 20_000.0
    constants: ClassVar[frozenset[str]] = frozenset({"is_decoder"})

    vocab_size: int = 250002
    hidden_size: int = 1024
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    intermediate_size: int = 4096
    max_position_embeddings: int = 8194
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1

    @property
    def prediction_activation(self) -> str:
        """Return "gelu": the masked-LM head has GELU by the error function, whatever `hidden_act` is."""
        return "gelu"

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters of the encoder with its pooler, or with `heads` with the masked-LM head."""
        width, inner = self.hidden_size, self.num_attention_heads * self.head_dim
        layer = 4 * width * inner + 3 * inner + width + 2 * width * self.intermediate_size
        layer += self.intermediate_size + width + 4 * width
        total = (self.vocab_size + self.type_vocab_size + 2) * width + self.num_hidden_layers * layer
        return total + width * width + width + (width * width + 3 * width + self.vocab_size if heads else 0)
