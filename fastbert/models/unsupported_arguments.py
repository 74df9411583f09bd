"""Keyword arguments of transformers' BERT that our models do not compute: their idle values pass, others are refused.

peft, pipelines and training loops written for transformers pass all of them, mostly as None.
"""

from __future__ import annotations

from typing import Any, TypedDict

from torch import nn

from fastbert.errors import UserError


class TransformersArguments(TypedDict, total=False):
    """Arguments of transformers' forwards that change nothing while they have their default values."""

    head_mask: Any
    encoder_hidden_states: Any
    encoder_attention_mask: Any
    cache_position: Any
    use_cache: bool | None
    output_attentions: bool | None
    return_dict: bool | None


# For each argument, the value beside None that changes nothing, and what to do instead of setting it.
_ARGUMENTS: dict[str, tuple[bool | None, str]] = {
    "head_mask": (None, "heads cannot be masked; leave it out"),
    "encoder_hidden_states": (None, "an encoder has no cross-attention; use BertForSequenceToSequence"),
    "encoder_attention_mask": (None, "an encoder has no cross-attention; use BertForSequenceToSequence"),
    "past_key_values": (
        None,
        "an encoder keeps no keys and values, so prefix tuning does not work; use LoRA, IA3, prompt tuning or p-tuning",
    ),
    "cache_position": (None, "an encoder keeps no keys and values; leave it out"),
    "use_cache": (False, "an encoder keeps no keys and values; leave it out"),
    "output_attentions": (False, "attention probabilities are never written to memory; use transformers' model"),
    "return_dict": (True, "outputs are also read by index; output.to_tuple() makes a tuple"),
}


def refuse_arguments(model: nn.Module, arguments: dict[str, Any]) -> None:
    """Raise UserError for an argument of transformers that is set, and TypeError for an unknown one."""
    for name, value in arguments.items():
        if name not in _ARGUMENTS:
            raise TypeError(f"{type(model).__name__}.forward() got an unexpected keyword argument {name!r}")
        idle, cure = _ARGUMENTS[name]
        if value is not None and value is not idle:
            shown = f"{name}={value}" if isinstance(value, bool) else f"{name} (a {type(value).__name__})"
            raise UserError(f"{type(model).__name__} does not support {shown}: {cure}")
