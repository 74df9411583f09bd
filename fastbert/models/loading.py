"""From a checkpoint into a model: names and shapes are compared first, then memory is taken, then tensors are read."""

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
# A new head may be as large as all that is in the file, or as this many numbers.
MOST_NEW = 1 << 24
_TABLES = {
    "embeddings.word_embeddings.weight": "vocab_size",
    "embeddings.position_embeddings.weight": "max_position_embeddings",
    "embeddings.token_type_embeddings.weight": "type_vocab_size",
    "encoder.layer.0.intermediate.dense.weight": "intermediate_size",
}


class _Uninitialised(TorchFunctionMode):
    """Leaves out what draws or sets values: on the meta device there are none, and its first draw takes a second."""

    LEFT_OUT = frozenset(
        {Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_, nn.init.normal_, nn.init.uniform_}
        | {nn.init.kaiming_uniform_, nn.init.trunc_normal_, nn.init.zeros_, nn.init.ones_}
    )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self.LEFT_OUT:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def outline(kind: Callable[[BertConfig], Model], config: BertConfig) -> Model:
    """A model on the meta device: names and shapes without memory or values."""
    with torch.device("meta"), _Uninitialised():
        model = kind(config)
    model.tie_weights()
    return model


def check_config(config: BertConfig, weights: Weights) -> None:
    """Compare what config.json says with the shapes in the files, before anything of that size is made.

    Raises `CheckpointError` that names the first difference, or what the checkpoint lacks.
    """
    place, tensors = weights.path, weights.tensors
    for name, field in _TABLES.items():
        stored = next((tensors[key] for key in (name, f"bert.{name}") if key in tensors), None)
        said = (getattr(config, field), config.hidden_size)
        if stored is not None and stored.shape != said:
            raise CheckpointError(f"{place}: {name} has shape {stored.shape}, but config.json says {shown(said)}")
    found = checkpoint_names.layers(tensors)
    if 0 < found < config.num_hidden_layers:
        raise CheckpointError(
            f"{place}: holds {found} encoder layers, but config.json says"
            f" num_hidden_layers={shown(config.num_hidden_layers)}"
        )
    check_size(config, weights)


def check_size(config: BertConfig, weights: Weights) -> None:
    """Refuse a config.json that asks for much more than the files hold. Raises `CheckpointError`."""
    total = sum(stored.numel for stored in weights.tensors.values())
    if config.num_parameters() > 4 * total + MOST_NEW or config.num_hidden_layers > len(weights.tensors):
        raise CheckpointError(
            f"{weights.path}: config.json asks for {shown(config.num_parameters())} weights in"
            f" {shown(config.num_hidden_layers)} layers, but the files hold {total:,}; they belong to different models"
        )
    if config.num_labels * config.hidden_size > max(total, MOST_NEW):
        raise CheckpointError(
            f"{weights.path}: config.json says num_labels={config.num_labels:,}, a head larger than all that the files"
            " hold"
        )


def load(
    model: PreTrainedModel, weights: Weights, dtype: torch.dtype | None, *, mapped: bool = True, warn: bool = True
) -> None:
    """Give a model that `outline` made its weights; `mapped`: those that can stay in their files stay there.

    Weights of a task (and the pooler) that the checkpoint lacks are initialised; with `warn` a warning names them. What
    has no place in the model is logged. Raises `CheckpointError` for what belongs to the embeddings or layers and is
    missing, for other shapes, for weights that are no floating-point numbers, and for a decoder that is not tied.
    """
    weights, own = model.named_weights(weights), own_shapes(model)
    matched = match(weights.tensors, own, model.base_model_prefix, weights.path)
    found = {name: weights.tensors[matched[name]] for name in own if name in matched}
    _check(model, weights.path, own, found)
    check_tied(model, weights, matched)
    missing = sorted(own.keys() - found.keys())
    dtypes = {stored.dtype for stored in found.values()}
    chosen = dtype or (dtypes.pop() if len(dtypes) == 1 else torch.float32)
    # What two weights begin with is mapped for one of them alone: each changes by itself.
    once = {id(one): name for name, one in reversed(found.items())}
    views = map_tensors(
        {name: one for name, one in found.items() if mapped and one.dtype == chosen and once[id(one)] == name}
    )
    materialise(model, chosen, views)
    parameters = model.state_dict(keep_vars=True)
    fill((stored, parameters[name]) for name, stored in found.items() if name not in views)
    model.new_weights = tuple(missing)
    if missing:
        initialise(model, missing)
        if warn:
            logger.warning("%s: new weights for %s", weights.path, ", ".join(missing))
    _report(model, weights.path, sorted(matched.keys() - own.keys() - set(model.tied_keys)))


def own_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model's weights, tied ones once."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in model.tied_keys}


def _check(
    model: PreTrainedModel, place: Path, own: Mapping[str, tuple[int, ...]], found: Mapping[str, FileTensor]
) -> None:
    """Compare names, shapes and dtypes."""
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
    """A decoder that a checkpoint holds beside the token embedding must be the same."""
    table = next(iter(name for name in matched if name.endswith("embeddings.word_embeddings.weight")), None)
    if DECODER not in model.tied_keys or DECODER not in matched or table is None:
        return
    if not equal(weights.tensors[matched[DECODER]], weights.tensors[matched[table]]):
        raise CheckpointError(
            f"{weights.path}: {DECODER} is not the token embedding, but this model ties them; use it without its head"
        )


def _report(model: PreTrainedModel, place: Path, left_out: list[str]) -> None:
    """Say what the model has no place for: aloud where it is the encoder's."""
    for level, names in (
        (logging.WARNING, [name for name in left_out if is_encoders(name)]),
        (logging.INFO, [name for name in left_out if not is_encoders(name)]),
    ):
        if names:
            logger.log(level, "%s: not used by %s: %s", place, type(model).__name__, ", ".join(names))


def materialise(model: nn.Module, dtype: torch.dtype, given: Mapping[str, Tensor]) -> None:
    """Give the parameters of a model on the meta device memory on the CPU: what is `given` by name, parameters as they
    are, else memory that is not yet written; tied ones share theirs."""
    named = model.state_dict(keep_vars=True)
    made = {
        id(named[name]): one
        if isinstance(one, nn.Parameter)
        else nn.Parameter(one, requires_grad=named[name].requires_grad)
        for name, one in given.items()
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
    """Draw the named weights as a new model's are: they are a head's, which a checkpoint does not hold."""
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
