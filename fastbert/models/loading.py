"""Load a checkpoint into a model: compare names and shapes, then allocate memory, then read tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fastbert.checkpoints.file_tensors import FileTensor, equal, fill, map_tensors
from fastbert.checkpoints.weights import Weights, open_weights
from fastbert.config import BertConfig
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import shown
from fastbert.models.bert import tensorflow
from fastbert.models.initialisation import draw
from fastbert.models.key_map import BERT_NAMES, DECODER, KeyMap, is_encoder_weight

logger: logging.Logger = logging.getLogger("fastbert")
# A new head may have as many elements as the whole file, or this many.
MAX_NEW_ELEMENTS = 1 << 24
BILSTM = "bilstm."  # the names of the weights of a BiLSTM between encoder and head
# The config's fields that weights show, by the names of the weights.
_SIZES = {
    "embeddings.word_embeddings.weight": "vocab_size",
    "embeddings.position_embeddings.weight": "max_position_embeddings",
    "embeddings.token_type_embeddings.weight": "type_vocab_size",
    "encoder.layer.0.intermediate.dense.weight": "intermediate_size",
}


class _Uninitialised(TorchFunctionMode):
    """Skip functions that draw or set values: the meta device has none, and its first draw takes a second."""

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


class LoadableModel(nn.Module):
    """The interface that loading requires of a model, implemented by `fastbert.models.base.PreTrainedModel`."""

    base_model_prefix: ClassVar[str]
    """The prefix of the encoder's weights in a checkpoint of a model with a head."""
    key_map: KeyMap = BERT_NAMES
    """The names of the model's weights in files."""
    tied_keys: tuple[str, ...]
    """Names of weights that repeat others and are not stored."""
    config: BertConfig
    new_weights: tuple[str, ...]
    """Names of the weights that the files lacked, which were initialised."""

    def tie_weights(self) -> None:
        """Make tied parameters one and the same; a no-op for models without any."""

    def named_weights(self, weights: Weights) -> Weights:
        """Return a checkpoint's weights as those of this model, by default unchanged."""
        return weights

    def match(self, weights: Weights) -> dict[str, str]:
        """Map the names of the model's weights to those of a checkpoint, by `KeyMap.match`.

        Raises `CheckpointError` where two of a checkpoint's names are the same weight.
        """
        return self.key_map.match(weights.tensors, self.state_dict(), self.base_model_prefix, weights.path)


Model = TypeVar("Model", bound=LoadableModel)


def outline(kind: Callable[[BertConfig], Model], config: BertConfig) -> Model:
    """Return a model on the meta device: names and shapes without memory or values."""
    with torch.device("meta"), _Uninitialised():
        model = kind(config)
    model.tie_weights()
    return model


def find_weights(source: Path, pickles: bool = False, *, verify: bool = True) -> Weights:
    """Return the weights at a path from `find_source`, TensorFlow's by our names of BERT's weights, the only
    architecture with checkpoints in that format. Arguments and errors are those of `open_weights`."""
    weights = open_weights(source, pickles, verify=verify)
    return tensorflow.rename_weights(weights) if weights.kind == "tensorflow" else weights


def check_config(kind: type[LoadableModel], config: BertConfig, weights: Weights) -> None:
    """Compare config.json with the shapes in the files, before memory of that size is allocated.

    Raises `CheckpointError`, which names the first difference or what the checkpoint lacks.
    """
    path, tensors, key_map = weights.path, weights.tensors, kind.key_map
    for name, field in _SIZES.items():
        key = key_map.file_name(name)
        stored = next((tensors[k] for k in (key, f"{kind.base_model_prefix}.{key}") if k in tensors), None)
        width = config.token_embedding_size if name.startswith("embeddings.") else config.hidden_size
        rows = config.intermediate_outputs if field == "intermediate_size" else getattr(config, field)
        shape = (rows, width)
        if stored is not None and stored.shape != shape:
            raise CheckpointError(f"{path}: {key} has shape {stored.shape}, but config.json says {shown(shape)}")
    layers = key_map.count_layers(tensors)
    if 0 < layers < config.distinct_layers:
        name = "num_hidden_layers" if config.distinct_layers == config.num_hidden_layers else "num_hidden_groups"
        raise CheckpointError(
            f"{path}: holds {layers} encoder layers, but config.json says {name}={shown(config.distinct_layers)}"
        )
    check_size(config, weights)


def check_size(config: BertConfig, weights: Weights) -> None:
    """Raise `CheckpointError` for a config.json that needs far more weights than the files hold."""
    total = sum(stored.numel for stored in weights.tensors.values())
    if config.num_parameters() > 4 * total + MAX_NEW_ELEMENTS or config.distinct_layers > len(weights.tensors):
        raise CheckpointError(
            f"{weights.path}: config.json needs {shown(config.num_parameters())} weights in"
            f" {shown(config.num_hidden_layers)} layers, but the files hold {total:,}; they belong to different models"
        )
    if config.num_labels * config.hidden_size > max(total, MAX_NEW_ELEMENTS):
        raise CheckpointError(
            f"{weights.path}: config.json says num_labels={config.num_labels:,}, a head larger than all weights in"
            " the files"
        )


def load(
    model: LoadableModel, weights: Weights, dtype: torch.dtype | None, *, mapped: bool = True, warn: bool = True
) -> None:
    """Load weights into a model from `outline`; with `mapped`, tensors that can be mapped stay in their files.

    Heads (and the pooler) that the checkpoint lacks are initialised; with `warn` a warning names them. Tensors that the
    model does not have are logged. Raises `CheckpointError` for missing weights of the embeddings or layers, wrong
    shapes, weights that are not floating-point numbers, and a decoder that is not tied.
    """
    weights, shapes = model.named_weights(weights), model_shapes(model)
    matched = model.match(weights)
    tensors = {name: weights.tensors[matched[name]] for name in shapes if name in matched}
    _check(model, weights.path, shapes, tensors)
    check_tied(model, weights, matched)
    missing = sorted(shapes.keys() - tensors.keys())
    dtypes = {tensor.dtype for tensor in tensors.values()}
    dtype = dtype or (dtypes.pop() if len(dtypes) == 1 else torch.float32)
    # A tensor that initialises two weights is mapped for one of them only: they change independently.
    first_name = {id(tensor): name for name, tensor in reversed(tensors.items())}
    views = map_tensors(
        {
            name: tensor
            for name, tensor in tensors.items()
            if mapped and tensor.dtype == dtype and first_name[id(tensor)] == name
        }
    )
    materialise(model, dtype, views)
    parameters = model.state_dict(keep_vars=True)
    fill((tensor, parameters[name]) for name, tensor in tensors.items() if name not in views)
    model.new_weights = tuple(missing)
    if missing:
        initialise(model, missing, model.config.initializer_range)
        if warn:
            logger.warning("%s: new weights for %s", weights.path, ", ".join(missing))
    _report(model, weights.path, sorted(matched.keys() - shapes.keys() - set(model.tied_keys)))


def model_shapes(model: LoadableModel) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a model's weights, tied weights once."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in model.tied_keys}


def _check(
    model: LoadableModel, path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, FileTensor]
) -> None:
    """Compare names, shapes and dtypes."""
    if not tensors:
        raise CheckpointError(f"{path}: no weight in it belongs to {type(model).__name__}")
    for name, tensor in tensors.items():
        if tensor.shape != shapes[name]:
            raise CheckpointError(f"{path}: {name} has shape {tensor.shape}, but config.json says {shapes[name]}")
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            raise CheckpointError(f"{path}: {name} holds {tensor.dtype}; quantised checkpoints are not supported")
    missing = sorted(name for name in shapes if name not in tensors and is_encoder_weight(name))
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise CheckpointError(
            f"{path}: lacks weights of the encoder: {', '.join(missing[:8])}{more}; fetch the whole checkpoint"
        )


def check_tied(model: LoadableModel, weights: Weights, matched: Mapping[str, str]) -> None:
    """Raise `CheckpointError` for a decoder that differs from the token embedding, if the model ties them."""
    table = next(iter(name for name in matched if name.endswith("embeddings.word_embeddings.weight")), None)
    if DECODER not in model.tied_keys or DECODER not in matched or table is None:
        return
    if not equal(weights.tensors[matched[DECODER]], weights.tensors[matched[table]]):
        raise CheckpointError(
            f"{weights.path}: {DECODER} is not the token embedding, but this model ties them; use it without its head"
        )


def _report(model: LoadableModel, path: Path, unused: list[str]) -> None:
    """Log the tensors that the model does not have, those of an encoder as a warning."""
    for level, names in (
        (logging.WARNING, [name for name in unused if is_encoder_weight(name)]),
        (logging.INFO, [name for name in unused if not is_encoder_weight(name)]),
    ):
        if names:
            logger.log(level, "%s: not used by %s: %s", path, type(model).__name__, ", ".join(names))


def materialise(model: nn.Module, dtype: torch.dtype, tensors: Mapping[str, Tensor]) -> None:
    """Replace the parameters of a model on the meta device by `tensors`, by name, or else by uninitialised CPU memory.

    A tensor that is a parameter is used as it is. Tied parameters stay tied.
    """
    state = model.state_dict(keep_vars=True)
    parameters = {
        id(state[name]): tensor
        if isinstance(tensor, nn.Parameter)
        else nn.Parameter(tensor, requires_grad=state[name].requires_grad)
        for name, tensor in tensors.items()
    }
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in parameters:
                memory = torch.empty(parameter.shape, dtype=dtype, device="cpu")
                parameters[id(parameter)] = nn.Parameter(memory, requires_grad=parameter.requires_grad)
            module._parameters[name] = parameters[id(parameter)]


def initialise(model: nn.Module, names: Iterable[str], std: float, generator: torch.Generator | None = None) -> None:
    """Initialise the named weights, of a head that the checkpoint lacks, as in a new model with this standard
    deviation; from torch's global generator, unless one is given."""
    selected = set(names)
    for name, parameter in model.named_parameters():
        if name not in selected:
            continue
        if name.startswith(BILSTM):
            bound = (parameter.shape[0] // 4) ** -0.5  # four gates per unit
            draw(nn.init.uniform_, parameter, -bound, bound, generator=generator)
        elif name.endswith(("LayerNorm.weight", "mix.gamma")):
            nn.init.ones_(parameter)
        elif name.endswith(("bias", "mix.weights")):
            nn.init.zeros_(parameter)
        else:
            draw(nn.init.trunc_normal_, parameter, std=std, a=-2 * std, b=2 * std, generator=generator)
