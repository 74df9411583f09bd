"""Load a checkpoint into a model: compare names and shapes, allocate memory, then read the tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fastbert.checkpoints import key_mapping as checkpoint_names
from fastbert.checkpoints.file_tensors import FileTensor, equal, fill, map_tensors
from fastbert.checkpoints.key_mapping import DECODER, is_encoders, match
from fastbert.checkpoints.source import Weights
from fastbert.config import BertConfig
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import shown

if TYPE_CHECKING:
    from fastbert.models.base import PreTrainedModel

logger = logging.getLogger("fastbert")
Model = TypeVar("Model", bound="PreTrainedModel")
# The largest new head: as large as the files, or this many numbers.
MOST_NEW = 1 << 24
_TABLES = {
    "embeddings.word_embeddings.weight": "vocab_size",
    "embeddings.position_embeddings.weight": "max_position_embeddings",
    "embeddings.token_type_embeddings.weight": "type_vocab_size",
    "encoder.layer.0.intermediate.dense.weight": "intermediate_size",
}


class _Uninitialised(TorchFunctionMode):
    """Skips functions that initialise values: the meta device has none, and its first random draw takes a second."""

    SKIPPED = frozenset(
        {Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_, nn.init.normal_, nn.init.uniform_}
        | {nn.init.kaiming_uniform_, nn.init.trunc_normal_, nn.init.zeros_, nn.init.ones_}
    )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self.SKIPPED:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def outline(kind: Callable[[BertConfig], Model], config: BertConfig) -> Model:
    """Make a model on the meta device: names and shapes without memory or values."""
    with torch.device("meta"), _Uninitialised():
        model = kind(config)
    model.tie_weights()
    return model


def check_config(config: BertConfig, weights: Weights) -> None:
    """Compare config.json with the shapes in the files, before anything of that size is allocated.

    Raises `CheckpointError` that names the first difference, or what is missing.
    """
    place, tensors = weights.place, weights.tensors
    for name, field in _TABLES.items():
        stored = next((tensors[key] for key in (name, f"bert.{name}") if key in tensors), None)
        expected = (getattr(config, field), config.hidden_size)
        if stored is not None and stored.shape != expected:
            raise CheckpointError(f"{place}: {name} has shape {stored.shape}, but config.json says {shown(expected)}")
    layers = checkpoint_names.layers(tensors)
    if 0 < layers < config.num_hidden_layers:
        raise CheckpointError(
            f"{place}: holds {layers} encoder layers, but config.json says"
            f" num_hidden_layers={shown(config.num_hidden_layers)}"
        )
    check_size(config, weights)


def check_size(config: BertConfig, weights: Weights) -> None:
    """Raise `CheckpointError` for a config.json of a much larger model than the files hold."""
    total = sum(stored.numel for stored in weights.tensors.values())
    if config.num_parameters() > 4 * total + MOST_NEW or config.num_hidden_layers > len(weights.tensors):
        raise CheckpointError(
            f"{weights.place}: config.json asks for {shown(config.num_parameters())} weights in"
            f" {shown(config.num_hidden_layers)} layers, but the files hold {total:,}; they belong to different models"
        )
    if config.num_labels * config.hidden_size > max(total, MOST_NEW):
        raise CheckpointError(
            f"{weights.place}: config.json says num_labels={config.num_labels:,}, a head larger than all that the files"
            " hold"
        )


def load(
    model: PreTrainedModel, weights: Weights, dtype: torch.dtype | None, *, mapped: bool = True, warn: bool = True
) -> None:
    """Load weights into a model that `outline` made; `mapped`: map them into memory where their dtype allows.

    Weights of a head or the pooler that the checkpoint lacks are initialised; with `warn` a warning names them. Unused
    weights are logged. Raises `CheckpointError` for missing weights of the embeddings or layers, different shapes,
    weights that are not floating-point, and a decoder that is not tied.
    """
    weights, own = model.named_weights(weights), own_shapes(model)
    matched = match(weights.tensors, own, model.base_model_prefix, weights.place)
    found = {name: weights.tensors[matched[name]] for name in own if name in matched}
    _check(model, weights.place, own, found)
    check_tied(model, weights, matched)
    missing = sorted(own.keys() - found.keys())
    dtypes = {stored.dtype for stored in found.values()}
    chosen = dtype or (dtypes.pop() if len(dtypes) == 1 else torch.float32)
    # A tensor that two weights start from is mapped for one of them: each changes independently.
    once = {id(stored): name for name, stored in reversed(found.items())}
    views = map_tensors(
        {
            name: stored
            for name, stored in found.items()
            if mapped and stored.dtype == chosen and once[id(stored)] == name
        }
    )
    materialise(model, chosen, views)
    parameters = model.state_dict(keep_vars=True)
    fill((stored, parameters[name]) for name, stored in found.items() if name not in views)
    model.new_weights = tuple(missing)
    if missing:
        initialise(model, missing)
        if warn:
            logger.warning("%s: new weights for %s", weights.place, ", ".join(missing))
    _report(model, weights.place, sorted(matched.keys() - own.keys() - set(model.tied_keys)))


def own_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a model's weights, tied ones once."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in model.tied_keys}


def _check(
    model: PreTrainedModel, place: Path, own: Mapping[str, tuple[int, ...]], found: Mapping[str, FileTensor]
) -> None:
    """Compare names, shapes and dtypes. Raises CheckpointError."""
    if not found:
        raise CheckpointError(f"{place}: no weight in it belongs to {type(model).__name__}")
    for name, stored in found.items():
        if stored.shape != own[name]:
            raise CheckpointError(f"{place}: {name} has shape {stored.shape}, but config.json says {own[name]}")
        if not stored.dtype.is_floating_point or stored.dtype.itemsize < 2:
            raise CheckpointError(
                f"{place}: {name} holds {stored.dtype}; only checkpoints that are not quantised are read"
            )
    lacking = sorted(name for name in own if name not in found and is_encoders(name))
    if lacking:
        more = f" and {len(lacking) - 8} more" if len(lacking) > 8 else ""
        raise CheckpointError(
            f"{place}: lacks weights of the encoder: {', '.join(lacking[:8])}{more}; fetch the whole checkpoint"
        )


def check_tied(model: PreTrainedModel, weights: Weights, matched: Mapping[str, str]) -> None:
    """Raise CheckpointError for a decoder in the checkpoint that differs from the token embedding it is tied to."""
    table = next(iter(name for name in matched if name.endswith("embeddings.word_embeddings.weight")), None)
    if DECODER not in model.tied_keys or DECODER not in matched or table is None:
        return
    if not equal(weights.tensors[matched[DECODER]], weights.tensors[matched[table]]):
        raise CheckpointError(
            f"{weights.place}: {DECODER} is not the token embedding, but this model ties them; use it without its head"
        )


def _report(model: PreTrainedModel, place: Path, left_out: list[str]) -> None:
    """Log unused weights: as a warning if they are the encoder's."""
    for level, names in (
        (logging.WARNING, [name for name in left_out if is_encoders(name)]),
        (logging.INFO, [name for name in left_out if not is_encoders(name)]),
    ):
        if names:
            logger.log(level, "%s: not used by %s: %s", place, type(model).__name__, ", ".join(names))


def materialise(model: nn.Module, dtype: torch.dtype, values: Mapping[str, Tensor]) -> None:
    """Allocate the parameters of a model on the meta device on the CPU: the tensors `values` by name, uninitialised
    memory for the others; tied parameters share theirs."""
    named = model.state_dict(keep_vars=True)
    made = {
        id(named[name]): one
        if isinstance(one, nn.Parameter)
        else nn.Parameter(one, requires_grad=named[name].requires_grad)
        for name, one in values.items()
    }
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                memory = torch.empty(parameter.shape, dtype=dtype, device="cpu")
                made[id(parameter)] = nn.Parameter(memory, requires_grad=parameter.requires_grad)
            module._parameters[name] = made[id(parameter)]


def initialise(model: PreTrainedModel, names: list[str]) -> None:
    """Initialise the named weights, those of a head that a checkpoint lacks, as in a new model."""
    std = model.config.initializer_range
    for name, parameter in model.named_parameters():
        if name not in names:
            continue
        if name.endswith("LayerNorm.weight"):
            nn.init.ones_(parameter)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
