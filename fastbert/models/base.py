"""The base of all models: configuration, initialisation, loading and saving."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.checkpoints.formats.names import WEIGHTS_PATTERNS
from fastbert.checkpoints.formats.safetensors import in_bytes, write_safetensors
from fastbert.checkpoints.hub import MAIN
from fastbert.checkpoints.manifest import MODEL, update_manifest, verifying
from fastbert.checkpoints.source import config_folder, find_source
from fastbert.checkpoints.weights import Weights
from fastbert.config import BertConfig
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import make_folder, write_json_atomic
from fastbert.models import loading
from fastbert.models.architecture import Architecture
from fastbert.models.compatibility import Compatibility
from fastbert.models.initialisation import draw
from fastbert.models.key_map import DECODER_BIAS, OUTPUT_BIAS, KeyMap
from fastbert.ops.compiling import outside_old_graphs
from fastbert.ops.dispatch import fastest_dtype
from fastbert.ops.native import prepacked_weights

Checkpointing = Literal["none", "layer", "selective"]
Quantization = Literal["int8"]


class PreTrainedModel(Compatibility, loading.LoadableModel):
    """The base of all models: their config, initial weights, `from_pretrained` and `save_pretrained`."""

    architecture: ClassVar[Architecture]
    base_model_prefix: ClassVar[str] = "bert"
    config_type: ClassVar[type[BertConfig]] = BertConfig
    tied_keys: tuple[str, ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name = "forward"  # an assignment would make it an attribute of this class for type checkers
        if name in cls.__dict__:
            setattr(cls, name, outside_old_graphs(cls.__dict__[name]))

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.position_offset = 0
        """The position of a sequence's first token in the table, which a `PackedBatch` counts as 0."""
        self.new_weights: tuple[str, ...] = ()
        """Names of the weights that `from_pretrained` initialised, since the files lack them."""
        renames = self.architecture.renames_of(config)
        if renames:
            self.key_map: KeyMap = self.key_map.then(*renames)
        # Before loading, since torch may swap parameters; after it, since torch may write to them without counting.
        self.register_load_state_dict_pre_hook(_forget_prepacked)
        if self.key_map.renames:
            self.register_load_state_dict_pre_hook(_rename_keys)
        self.register_load_state_dict_post_hook(_forget_prepacked)

    @property
    def base_model(self) -> Any:
        """Return the encoder: the model itself, or the module under its head."""
        return getattr(self, self.base_model_prefix, self)

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the parameters."""
        return next(self.parameters()).dtype

    def init_weights(self, seed: int | None = None) -> None:
        """Initialise all weights as in the released models: from a normal distribution with standard deviation
        `initializer_range`, truncated at two standard deviations; biases 0, LayerNorm weights 1.

        With `seed` the weights are reproducible, else they are drawn from torch's global generator.
        """
        self.tie_weights()
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        std = self.config.initializer_range
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)) and not module.weight.is_meta:
                draw(nn.init.trunc_normal_, module.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, PreTrainedModel):
                module.rescale_initial_weights()

    def rescale_initial_weights(self) -> None:
        """Scale new weights as the architecture does; a no-op by default."""

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token embedding."""
        raise NotImplementedError(f"{type(self).__name__} has no token embedding")

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None
    ) -> nn.Embedding:
        """Resize the token embedding to `new_num_tokens` rows (None: the current number), rounded up to a multiple.

        Existing rows keep their values; new rows are drawn from torch's global generator as in `init_weights`
        (`fastbert.models.vocabulary_extension` initialises them better). A tied masked-LM decoder and its bias follow,
        and `config.vocab_size`. The parameters are replaced, so make the optimizer afterwards.

        Returns the embedding. Raises `UserError` for fewer than one row, and for a table without the padding token.
        """
        embedding = self.get_input_embeddings()
        rows = embedding.num_embeddings if new_num_tokens is None else new_num_tokens
        if pad_to_multiple_of is not None:
            if pad_to_multiple_of < 1:
                raise UserError(f"pad_to_multiple_of={pad_to_multiple_of} must be at least 1")
            rows = -(-rows // pad_to_multiple_of) * pad_to_multiple_of
        config = replace(self.config, vocab_size=rows)
        std = config.initializer_range
        weight = embedding.weight
        added = weight.detach().new_empty(max(rows - len(weight), 0), weight.shape[1])
        nn.init.trunc_normal_(added, std=std, a=-2 * std, b=2 * std)
        embedding.weight = resized(weight, rows, added)
        embedding.num_embeddings = rows
        self._resize_output(rows)
        for module in self.modules():
            if isinstance(module, PreTrainedModel):
                module.config = config
        return embedding

    def _resize_output(self, rows: int) -> None:
        """Resize the layers that predict tokens to `rows`; a no-op for models without any."""

    def checkpoint_activations(self, mode: Checkpointing | bool = "layer") -> None:
        """Recompute activations in the backward pass to save memory.

        `"layer"` (or True) saves each layer's input alone, for a third more time; `"selective"` saves matmuls and
        attention and recomputes the rest; `"none"` (or False) saves everything. Raises `UserError` for another mode.
        """
        if isinstance(mode, bool):
            mode = "layer" if mode else "none"
        if mode not in ("none", "layer", "selective"):
            raise UserError(f"checkpointing {mode!r} is unknown: choose none, layer or selective")
        for module in self.modules():
            if hasattr(module, "checkpointing"):
                module.checkpointing = mode  # type: ignore[assignment]

    def quantize(self, kind: Quantization | None = "int8") -> Self:
        """Compute the matmuls of the encoder's layers in int8, for inference on CPUs; return the model.

        Weights are quantised with one fp32 scale per output, activations with one per token, sums are int32; None
        undoes it. It applies under `torch.no_grad()`, or where no weight requires a gradient. The parameters stay as
        they are, for `save_pretrained`, for training, and for layers with hooks or adapters, which compute with them;
        embeddings, attention, LayerNorms, pooler and heads are not quantised.

        Raises `UserError` for another kind, and for a model that is not on the CPU.
        """
        if kind not in (None, "int8"):
            raise UserError(f'quantize({kind!r}): choose "int8", or None to undo it')
        if kind and self.device.type != "cpu":
            raise UserError(f'the model is on {self.device}: int8 is for CPUs; move it there with model.to("cpu")')
        for module in self.modules():
            if hasattr(module, "quantization"):
                module.quantization = kind  # type: ignore[assignment]
        return self

    def train(self, mode: bool = True) -> Self:
        """Switch to training or, with False, to inference, for which weights are prepacked again. Return the model."""
        if not mode:
            prepacked_weights.forget(self.parameters())
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move or cast the model; prepacked copies of its parameters become invalid."""
        prepacked_weights.forget(self.parameters())
        return super()._apply(fn, recurse)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        dtype: torch.dtype | Literal["fastest"] | None = None,
        pickles: bool = False,
        revision: str = MAIN,
        mapped: bool = True,
        verify: bool = True,
        **overrides: Any,
    ) -> Self:
        """Load a model in eval mode from a folder, or from the local cache of the Hugging Face Hub.

        Args:
            source: a folder, or `org/name` in the cache; nothing is downloaded. A folder holds `config.json` with
                `model.safetensors` or its shards, or a TensorFlow checkpoint with `bert_config.json`, of which `source`
                may also be the prefix, `folder/bert_model.ckpt`.
            dtype: of the weights; None keeps the checkpoint's. `"fastest"` is bf16 if this machine's GPU, or else its
                CPU, multiplies bf16 in hardware; `fastbert doctor` reports the choice and the reason.
            pickles: also read `pytorch_model.bin`, whose pickle is parsed, not executed.
            revision: of a model on the Hub.
            mapped: map weights that are safetensors of the right dtype into memory. Pages are read on first use, and
                changes stay in memory; the file must not be written to in place meanwhile. False reads all at once.
            verify: compare the files with `fastbert_manifest.json`, if there is one, which reads the weights once;
                FASTBERT_VERIFY=0 in the environment skips it too.
            **overrides: config fields to replace.

        Weights of a head or the pooler that the checkpoint lacks are initialised, with a warning that names them. For
        what is read and refused, see docs/checkpoints.md.

        Raises:
            UserError: the source does not exist, or describes a model that is not supported.
            CheckpointError: files are missing or damaged, or weights of the encoder are missing or of another shape.
        """
        if isinstance(dtype, str):
            if dtype != "fastest":
                raise UserError(f'dtype={dtype!r} must be a torch dtype, "fastest", or None for the checkpoint\'s own')
            dtype = fastest_dtype(torch.device("cuda" if torch.cuda.is_available() else "cpu"))[0]
        path = find_source(source, revision)
        with verifying(config_folder(path), MODEL, verify=verify):
            config = cls.config_type.from_pretrained(config_folder(path))
            if overrides:
                config = cls.config_type.from_dict({**config.to_dict(), **overrides}, source=str(path))
            weights = cls.architecture.from_file(loading.find_weights(path, pickles, verify=False))  # done here
            loading.check_config(cls, config, weights)
            model = loading.outline(cls, config)
            loading.load(model, weights, dtype, mapped=mapped)
        return model.eval()

    def save_pretrained(self, folder: str | Path, *, max_shard_size: int | str | None = None) -> None:
        """Write `config.json` and `model.safetensors`, which `transformers.AutoModel` loads unchanged.

        `max_shard_size`, in bytes or as "2GB", splits larger weights into several files with an index.
        `fastbert_manifest.json` lists checksums. The files appear all at once (`atomic_folder`), and other files in the
        folder stay. Raises `CheckpointError` for disk errors, with the folder as it was.
        """
        out, max_bytes = Path(folder), None if max_shard_size is None else in_bytes(max_shard_size)
        tensors = self._tensors_of_files()
        try:
            make_folder(out.parent)
            with atomic_folder(out, superseded=WEIGHTS_PATTERNS) as partial:
                self._write_files(partial, tensors, max_bytes)
        except OSError as error:
            raise CheckpointError(f"{out}: could not be written ({error}); free some disk space") from error

    def _write_files(self, folder: Path, tensors: dict[str, Tensor], max_bytes: int | None) -> None:
        """Write what `save_pretrained` does to an empty folder."""
        names = write_safetensors(folder, tensors, max_bytes)
        write_json_atomic(folder / "config.json", self.config.to_dict(architecture=type(self).__name__))
        update_manifest(folder, [*names, "config.json"])

    def _tensors_of_files(self) -> dict[str, Tensor]:
        """Return the weights by their names in files, on the CPU; tensors under two names in the files are copied."""
        ignored, written, tensors = self._keys_to_ignore_on_save or (), set(), {}
        for name, tensor in self.state_dict(keep_vars=True).items():
            if name not in ignored:
                values = tensor.detach().contiguous().cpu()
                tensors[self.key_map.file_name(name)] = values.clone() if id(tensor) in written else values
                written.add(id(tensor))
        return self.architecture.to_file(tensors)


def _forget_prepacked(module: nn.Module, *_: Any) -> None:
    """Drop the prepacked copies of a module's weights."""
    prepacked_weights.forget(module.parameters())


def _rename_keys(module: Any, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Replace the names that files, and transformers' models, have for a module's weights by those of the module, whose
    decoder has its bias under two names."""
    for name in module.state_dict():
        file_name = prefix + module.key_map.file_name(name)
        if file_name != prefix + name and file_name in state_dict:
            state_dict[prefix + name] = state_dict.pop(file_name)
    tied = prefix + DECODER_BIAS
    if DECODER_BIAS in module.tied_keys and tied not in state_dict and prefix + OUTPUT_BIAS in state_dict:
        state_dict[tied] = state_dict[prefix + OUTPUT_BIAS]


def match_weights(
    weights: Weights, config: BertConfig, kinds: Iterable[type[PreTrainedModel]]
) -> tuple[dict[type[PreTrainedModel], list[str]], dict[type[PreTrainedModel], list[str]]]:
    """Return, per kind of model, the names of its weights that a checkpoint lacks, and of the checkpoint's weights that
    it does not have. Raises CheckpointError for a config that does not fit the weights."""
    missing, unused = {}, {}
    for kind in kinds:
        loading.check_config(kind, config, weights)
        model = loading.outline(kind, config)
        shapes, names = loading.model_shapes(model), model.match(weights).keys()
        missing[kind] = sorted(shapes.keys() - names)
        unused[kind] = sorted(names - shapes.keys() - set(model.tied_keys))
    return missing, unused


def resized(parameter: Tensor, rows: int, added: Tensor) -> nn.Parameter:
    """Return a parameter of the first `rows` rows, followed by the rows `added`."""
    present = parameter.detach()[:rows]
    return nn.Parameter(torch.cat((present, added)), requires_grad=parameter.requires_grad)
