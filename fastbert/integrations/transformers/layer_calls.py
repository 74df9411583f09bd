"""Calls of a layer's own forward, with the arguments that the library's encoder gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.integrations.transformers import layouts
from fastbert.models.architecture import LayerCall, TransformersLayout


def call_layer(
    layout: TransformersLayout,
    model: Any,
    layer: nn.Module,
    hidden: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
) -> Tensor:
    """Return a layer's own forward of padded states (rows, columns, hidden_size), the same shape.

    `attention_mask` (rows, columns) and `position_ids` are arguments of the encoder's call.
    """
    result = _CALLS[layout.layer_call](layout, model, layer, hidden, attention_mask, position_ids)
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output


def _mask(model: Any, hidden: Tensor, attention_mask: Tensor | None) -> Any:
    from transformers.masking_utils import create_bidirectional_mask

    return create_bidirectional_mask(config=model.config, inputs_embeds=hidden, attention_mask=attention_mask)


def token_mask(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the mask of a call, of ones where it has none."""
    return torch.ones(hidden.shape[:2], device=hidden.device) if attention_mask is None else attention_mask


def _bert(
    layout: TransformersLayout, model: Any, layer: Any, hidden: Tensor, mask: Tensor | None, positions: Tensor | None
) -> Any:
    return layer(
        hidden, _mask(model, hidden, mask), None, position_ids=positions, encoder_attention_mask=None,
        past_key_values=None,
    )  # fmt: skip


def _distilbert(
    layout: TransformersLayout, model: Any, layer: Any, hidden: Tensor, mask: Tensor | None, positions: Tensor | None
) -> Any:
    return layer(hidden, _mask(model, hidden, mask))


def _albert(
    layout: TransformersLayout, model: Any, layer: Any, hidden: Tensor, mask: Tensor | None, positions: Tensor | None
) -> Any:
    return layer(hidden, _mask(model, hidden, mask), position_ids=positions)


def _mpnet(
    layout: TransformersLayout, model: Any, layer: Any, hidden: Tensor, mask: Tensor | None, positions: Tensor | None
) -> Any:
    bias = model.encoder.compute_position_bias(hidden)
    return layer(hidden, _mask(model, hidden, mask), bias, output_attentions=False)


def _deberta(
    layout: TransformersLayout, model: Any, layer: Any, hidden: Tensor, mask: Tensor | None, positions: Tensor | None
) -> Any:
    encoder = model.encoder
    return layer(
        hidden, encoder.get_attention_mask(token_mask(hidden, mask)), query_states=None,
        relative_pos=encoder.get_rel_pos(hidden), rel_embeddings=encoder.get_rel_embedding(), output_attentions=False,
    )  # fmt: skip


def _rotary(
    layout: TransformersLayout, model: Any, layer: Any, hidden: Tensor, mask: Tensor | None, positions: Tensor | None
) -> Any:
    positions = _columns(hidden, positions)
    embeddings = layouts.part(model, layout.rotary)(hidden, positions)
    return layer(
        hidden, attention_mask=_mask(model, hidden, mask), position_embeddings=embeddings, position_ids=positions
    )


def _modernbert(
    layout: TransformersLayout, model: Any, layer: Any, hidden: Tensor, mask: Tensor | None, positions: Tensor | None
) -> Any:
    from transformers.masking_utils import create_bidirectional_sliding_window_mask

    kind = layer.attention_type
    if kind == "full_attention":
        full = _mask(model, hidden, mask)
    else:
        full = create_bidirectional_sliding_window_mask(config=model.config, inputs_embeds=hidden, attention_mask=mask)
    embeddings = layouts.part(model, layout.rotary)(hidden, _columns(hidden, positions), kind)
    return layer(hidden, attention_mask=full, position_embeddings=embeddings)


def _columns(hidden: Tensor, positions: Tensor | None) -> Tensor:
    return torch.arange(hidden.shape[1], device=hidden.device)[None] if positions is None else positions


_CALLS: dict[LayerCall, Callable[..., Any]] = {
    "bert": _bert,
    "distilbert": _distilbert,
    "albert": _albert,
    "mpnet": _mpnet,
    "deberta": _deberta,
    "rotary": _rotary,
    "modernbert": _modernbert,
}
