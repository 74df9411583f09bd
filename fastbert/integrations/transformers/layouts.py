"""An encoder of transformers, read by its layout (`fastbert.models.architecture.TransformersLayout`): its layers,
tables, pooler and masked-LM head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.integrations.layer_modules import LayerModules
from fastbert.integrations.module_checks import dropout_probability, forward_module, is_library_module
from fastbert.integrations.transformers.embeddings import position_columns
from fastbert.models.architecture import PredictionHeadLayout, TransformersLayout
from fastbert.models.registry import layouts

# The modules that transformers makes of a folder's own code.
REMOTE = "transformers_modules"
# A path of modules as a function, compiled once.
_getter = cache(attrgetter)
# The methods of its own class that an encoder's forward calls.
_CALLED = ("forward", "_create_attention_masks")


def layout_of(module: nn.Module) -> TransformersLayout | None:
    """Return the layout of an encoder, or of a subclass that computes as its parent does; None for other modules."""
    kind: Any = type(module)
    if kind.__module__.startswith(REMOTE):
        return None
    for parent in kind.__mro__:
        for layout in layouts():
            if parent.__name__ == layout.model and parent.__module__ == layout.module:
                same = all(getattr(kind, name, None) is getattr(parent, name, None) for name in _CALLED)
                return layout if same and forward_module(parent) == layout.module else None
    return None


def part(module: Any, path: str | None) -> Any:
    """Return the module at a path; None where the layout has none, or the module does not."""
    return None if path is None or not hasattr(module, path.partition(".")[0]) else _getter(path)(module)


def module_at(module: Any, path: str) -> Any:
    """Return the module at a path. Raises AttributeError where there is none."""
    return _getter(path)(module)


def stack(layout: TransformersLayout, model: Any) -> tuple[nn.Module, nn.ModuleList]:
    """Return the module that runs the layers, and the layers."""
    return model if layout.stack is None else _getter(layout.stack)(model), _getter(layout.layers)(model)


def is_as_written(layout: TransformersLayout, layer: nn.Module) -> bool:
    """Return whether a layer consists of the library's own modules, none of them with a forward of its own."""
    if not is_library_module(layer, layout.module):
        return False
    return all(is_library_module(_getter(path)(layer), layout.module) for path in layout.containers)


def layer_modules(layout: TransformersLayout, layer: nn.Module) -> LayerModules | None:
    """Return the leaves of a layer; None where it computes something else with them."""
    attention, query = _getter(layout.attention)(layer), _getter(layout.query)(layer)
    first, last = layout.attention_output_dropout, layout.output_dropout
    first_p = 0.0 if first is None else dropout_probability(_getter(first)(layer))
    last_p = 0.0 if last is None else dropout_probability(_getter(last)(layer))
    heads: int = getattr(attention, layout.heads)
    if first_p is None or last_p is None or not _is_standard(attention, heads, query):
        return None
    return LayerModules(
        query=query,
        key=_getter(layout.key)(layer),
        value=_getter(layout.value)(layer),
        attention_output=_getter(layout.attention_output)(layer),
        attention_norm=_getter(layout.attention_norm)(layer),
        intermediate=_getter(layout.intermediate)(layer),
        activation=_getter(layout.activation)(layer),
        output=_getter(layout.feed_forward_output)(layer),
        output_norm=_getter(layout.output_norm)(layer),
        heads=heads,
        head_dim=attention.attention_head_size,
        # The library asks the attention whether it trains, not its dropout.
        attention_p=float(attention.dropout.p) if attention.training else 0.0,
        attention_output_p=first_p,
        output_p=last_p,
    )


def decodes(model: Any) -> bool:
    """Return whether a model attends to the left only, or to another sequence."""
    config = model.config
    return bool(getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False))


def tables(layout: TransformersLayout, model: Any) -> dict[str, nn.Module]:
    """Return the tables of token embeddings and, if present, of positions and segments, by the names of their ids."""
    named = zip(layout.table_ids, layout.tables, strict=False)
    return {ids: table for ids, path in named if (table := _getter(path)(model)) is not None}


def positions(layout: TransformersLayout, embeddings: Any, input_ids: Tensor) -> Tensor | None:
    """Return position ids (sequences, length), or (1, length) where they are the columns."""
    if layout.positions == "columns":
        return position_columns(embeddings, input_ids.shape[1])
    if not hasattr(embeddings, "create_position_ids_from_input_ids"):  # MPNet's is a function of its module
        is_token = input_ids.ne(embeddings.padding_idx).long()
        return is_token.cumsum(1) * is_token + int(embeddings.padding_idx)
    counted: Tensor = embeddings.create_position_ids_from_input_ids(input_ids, embeddings.padding_idx)
    return counted


def _is_standard(attention: Any, heads: int, query: Any) -> bool:
    """Return whether attention is scaled and split into heads as published, and bidirectional."""
    size = attention.attention_head_size
    width = getattr(query, "out_features", heads * size)
    return attention.scaling == size**-0.5 and heads * size == width and not attention.is_causal


@dataclass(frozen=True)
class PredictionHead:
    """A masked-LM head: activation and LayerNorm behind a linear layer, then the matmul with the vocabulary, if it is
    the head that computes it."""

    dense: nn.Module
    activation: Any
    norm: nn.Module
    decoder: nn.Module | None


def head_layout(module: nn.Module) -> PredictionHeadLayout | None:
    """Return the layout of a masked-LM head; None for other modules."""
    name, home = type(module).__name__, type(module).__module__
    heads = (head for layout in layouts() if layout.module == home for head in layout.prediction_heads)
    return next((head for head in heads if head.name == name), None)


def prediction_head(module: Any) -> PredictionHead | None:
    """Return the parts of a masked-LM head; None where a module among them is not the library's own."""
    layout = head_layout(module)
    home = type(module).__module__
    if layout is None or not is_library_module(module, home):
        return None
    transform = part(module, layout.transform) if layout.transform else module
    if transform is not module and not is_library_module(transform, home):
        return None
    activation = F.gelu if layout.activation is None else _getter(layout.activation)(transform)
    decoder = None if layout.decoder is None else _getter(layout.decoder)(module)
    return PredictionHead(_getter(layout.dense)(transform), activation, _getter(layout.norm)(transform), decoder)


def decoder_path(module: nn.Module) -> str | None:
    """Return the path, from a model with a masked-LM head, of the linear layer that multiplies with the vocabulary
    outside of a `PredictionHead`; None for other modules."""
    key = (type(module).__name__, type(module).__module__)
    return next(
        (layout.decoder[1] for layout in layouts() if layout.decoder and (layout.decoder[0], layout.module) == key),
        None,
    )
