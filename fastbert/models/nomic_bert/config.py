"""The configuration of NomicBERT."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fastbert.config import config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.models.rotary_config import RotaryConfig

# The names in the released folders, which ask for remote code, by those of transformers.
_RELEASED = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions", "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop", "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}  # fmt: skip
_GATES = {"swiglu": "silu", "geglu": "gelu"}
# What the released code could do otherwise, by its value in the released models.
_FIXED: dict[str, Any] = {
    "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "causal": False,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "parallel_block": False, "use_rms_norm": False,
    "rotary_scaling_factor": None, "rotary_emb_scale_base": None,
}  # fmt: skip


@config_class
class NomicBertConfig(RotaryConfig):
    """A NomicBERT encoder (Nussbaum et al. 2024): post-LN layers without biases, SwiGLU networks, rotary positions.

    The fields and defaults are those of `transformers.NomicBertConfig`; the released folders' names (`n_embd`,
    `rotary_emb_base`, ...) are read too. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "nomic_bert"
    theta: ClassVar[float] = 1000.0
    constants: ClassVar[frozenset[str]] = frozenset({"is_decoder"})

    vocab_size: int = 30528
    max_position_embeddings: int = 2048
    hidden_act: str = "silu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, or in that of the released folders."""
        if "n_embd" in values:
            values = _translated(values, source)
        return super().from_dict(values, source)

    @property
    def intermediate_outputs(self) -> int:
        """Return the outputs of the first linear layer of feed-forward networks: both halves."""
        return 2 * self.intermediate_size

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters of the encoder, or with `heads` with the masked-LM head."""
        width, inner = self.hidden_size, self.num_attention_heads * self.head_dim
        layer = 4 * width * inner + 3 * width * self.intermediate_size + 4 * width
        total = (self.vocab_size + self.type_vocab_size + 2) * width + self.num_hidden_layers * layer
        return total + (width * width + 3 * width + self.vocab_size if heads else 0)


def _translated(values: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the values of a released folder under transformers' names."""
    for name, usual in _FIXED.items():
        if values.get(name, usual) not in (usual, None):
            raise UserError(f"{source}: {name}={shown(values[name])} is not supported: it must be {usual}")
    gate = values.get("activation_function")
    if gate not in _GATES:
        raise UserError(f"{source}: activation_function={shown(gate)} is not one of {', '.join(_GATES)}")
    if values.get("embd_pdrop", 0.0) != values.get("resid_pdrop", 0.0):
        raise UserError(f"{source}: embd_pdrop must be resid_pdrop: there is one dropout of token vectors")
    known = {*_RELEASED.values(), *_FIXED, "activation_function", "embd_pdrop"}
    named = {name: values[key] for name, key in _RELEASED.items() if values.get(key) is not None}
    rest = {name: value for name, value in values.items() if name not in known}
    return {**rest, **named, "hidden_act": _GATES[gate]}
