"""Several tasks on one encoder in memory, which share the weights that they did not change.

A task is loaded from a delta file, adapters, or a folder with a fine-tuned model. Each becomes a model of its own whose
unchanged parameters are the base's own objects, so switching between tasks costs nothing, and shared weights are
prepacked once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from fastbert.checkpoints import convert, manifest
from fastbert.checkpoints.delta.files import open_delta
from fastbert.checkpoints.delta.tensors import find_base, fingerprint, tensors_of
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.checkpoints.tokenizer_files import holds_tokenizer
from fastbert.errors import CheckpointError, UserError
from fastbert.models import loading, registry
from fastbert.models.base import PreTrainedModel
from fastbert.models.key_map import is_encoder_weight
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

ADAPTERS = "adapter_config.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedTask:
    """A task's model, in eval mode, and its tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: Tokenizer
    own_bytes: int
    """Memory of the weights that are not shared with the base."""


class ServedTasks:
    """One base and the tasks on it, by name.

    `tasks = ServedTasks("base"); tasks.add("sentiment", "sentiment.delta"); tasks.use("sentiment").model(batch)`.
    `dtype` is that of all weights (None: as in the files). Parameters have no gradients.
    """

    def __init__(self, base: str | Path, *, dtype: torch.dtype | None = None) -> None:
        self.folder: Path = config_folder(find_source(base))
        self.dtype = dtype
        self._tensors = tensors_of(loading.find_weights(find_source(base)))
        self._sha256 = fingerprint(self._tensors)
        self._shared: dict[str, nn.Parameter] = {}
        self._tasks: dict[str, ServedTask] = {}
        self._current: str | None = None

    def add(self, name: str, source: str | Path) -> ServedTask:
        """Load a task under a name: a delta file, a folder of adapters with the config.json that `save_adapter` wrote,
        or a model's folder. Raises `UserError` for a name in use, and for a source that does not fit the base."""
        if name in self._tasks:
            raise UserError(f"task {name!r} exists already; give another name, or remove it first")
        path = Path(source)
        if path.is_file():
            task = self._of_delta(name, path)
        elif (path / ADAPTERS).is_file():
            task = self._of_adapters(name, path)
        else:
            task = self._of_folder(name, config_folder(find_source(source)))
        self._tasks[name] = task
        return task

    def use(self, name: str) -> ServedTask:
        """Make a task the current one, and return it."""
        if name not in self._tasks:
            raise UserError(f"no task {name!r}; there are {', '.join(map(repr, self._tasks)) or 'none'}")
        self._current = name
        return self._tasks[name]

    @property
    def current(self) -> ServedTask:
        """The task that was selected by the last `use`."""
        if self._current is None:
            raise UserError("no task is in use; choose one with use(name)")
        return self._tasks[self._current]

    def remove(self, name: str) -> None:
        """Remove a task and the weights that only it has."""
        if self._tasks.pop(name, None) is None:
            raise UserError(f"no task {name!r}; there are {', '.join(map(repr, self._tasks)) or 'none'}")
        if self._current == name:
            self._current = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    @property
    def shared_bytes(self) -> int:
        """Memory of the weights that tasks share."""
        return sum(parameter.nbytes for parameter in self._shared.values())

    def _of_delta(self, name: str, path: Path) -> ServedTask:
        delta = open_delta(path)
        tensors = delta.tensors(self._tensors, self._sha256)
        shared = {
            entry.name: entry.base for entry in delta.entries if entry.coding == "same" and entry.base is not None
        }
        # Configurations and tokenizers are read from files.
        with TemporaryDirectory() as folder:
            for file in delta.files:
                (Path(folder) / file.name).write_bytes(delta.content(file, self.folder))
            return self._task(name, self._model(Path(folder), tensors, shared, path), Path(folder))

    def _of_folder(self, name: str, folder: Path) -> ServedTask:
        tensors, shared = tensors_of(loading.find_weights(folder)), {}
        for key, tensor in tensors.items():
            base_key = find_base(key, tensor, self._tensors)
            if base_key is not None and torch.equal(tensor, self._tensors[base_key]):
                shared[key] = base_key
        return self._task(name, self._model(folder, tensors, shared, folder), folder)

    def _of_adapters(self, name: str, folder: Path) -> ServedTask:
        from fastbert.finetuning.adapters import load_adapter, merge

        if not (folder / "config.json").is_file():
            raise UserError(f"{folder}: does not describe the head; put the config.json of the fine-tuned model there")
        shared = {key: key for key in self._tensors}
        model = self._model(folder, self._tensors, shared, folder, new_head=True)
        adapted = load_adapter(model, folder)
        for module in model.modules():
            # Merging writes to these weights, which other tasks share.
            base_layer = getattr(module, "base_layer", None)
            if isinstance(base_layer, nn.Module):
                for key, parameter in base_layer.named_parameters():
                    base_layer.register_parameter(key, nn.Parameter(parameter.detach().clone()))
        return self._task(name, merge(adapted).eval(), folder)

    def _model(
        self,
        folder: Path,
        tensors: Mapping[str, Tensor],
        shared: Mapping[str, str],
        source: Path,
        new_head: bool = False,
    ) -> PreTrainedModel:
        """Return the model that a folder's config.json describes, made of these tensors, some of which are the
        base's."""
        config = registry.read_config(folder)
        kinds = registry.model_classes(registry.architecture_of(config))
        listed = [kind for kind in convert.listed_classes(folder) if kind in kinds]
        kind = listed[0] if new_head and listed else convert.choose_class(config, tensors, listed)
        model = loading.outline(kinds[kind], config)
        shapes = loading.model_shapes(model)
        matched = model.key_map.match(tensors, shapes, model.base_model_prefix, source)
        parameters: dict[str, Tensor] = {}
        for key, shape in shapes.items():
            if key in matched and tuple(tensors[matched[key]].shape) == shape:
                parameters[key] = self._parameter(tensors[matched[key]], shared.get(matched[key]))
            elif not new_head or is_encoder_weight(key):
                raise CheckpointError(f"{source}: lacks {key} in the shape {shape} that {kind} needs")
        loading.materialise(model, next(iter(parameters.values())).dtype, parameters)
        loading.initialise(model, [key for key in shapes if key not in parameters], config.initializer_range)
        return model.eval()

    def _parameter(self, tensor: Tensor, base: str | None) -> nn.Parameter:
        """Return a parameter, the shared one if it is the base's."""
        if base is not None and base in self._shared:
            return self._shared[base]
        values = tensor if self.dtype is None or not tensor.is_floating_point() else tensor.to(self.dtype)
        parameter = nn.Parameter(values, requires_grad=False)
        if base is not None:
            self._shared[base] = parameter
        return parameter

    def _task(self, name: str, model: PreTrainedModel, folder: Path) -> ServedTask:
        shared = {id(parameter) for parameter in self._shared.values()}
        own_bytes = sum(parameter.nbytes for parameter in model.parameters() if id(parameter) not in shared)
        model.requires_grad_(False)
        has_tokenizer = holds_tokenizer(folder)
        tokenizer = load_tokenizer(folder if has_tokenizer else self.folder)
        check_tokenizer(tokenizer, model.config.vocab_size, str(folder))
        manifest.check_fingerprint(folder, tokenizer.fingerprint, str(folder if has_tokenizer else self.folder))
        return ServedTask(name=name, model=model, tokenizer=tokenizer, own_bytes=own_bytes)
