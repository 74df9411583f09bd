"""Models as files: Hugging Face folders in and out, in safetensors, and nothing that is pickled."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fastbert.config import BertConfig
from fastbert.errors import CheckpointError, UserError
from fastbert.models.compatibility import Compatibility
from fastbert.ops import packed_weights
from fastbert.ops.backend import fastest_dtype

logger = logging.getLogger("fastbert")
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
# Names of old TensorFlow-born checkpoints, and buffers that other libraries save beside the weights.
RENAMED = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
Checkpointing = Literal["none", "layer", "selective"]
Quantization = Literal["int8"]
IGNORED = ("embeddings.position_ids", "embeddings.token_type_ids")


class PreTrainedModel(Compatibility):
    """What all models share: their config, how weights begin, and `from_pretrained` with `save_pretrained`."""

    base_model_prefix: ClassVar[str] = "bert"
    tied_keys: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.new_weights: tuple[str, ...] = ()
        """Names of the weights that `from_pretrained` had to initialise, since the files lack them."""
        # Before, so that torch may swap parameters; behind, since it may write to them without counting.
        self.register_load_state_dict_pre_hook(_forget_copies)
        self.register_load_state_dict_post_hook(_forget_copies)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return next(self.parameters()).dtype

    def init_weights(self, seed: int | None = None) -> None:
        """Draw all weights anew as the released models were initialised: a normal with standard deviation
        `initializer_range` truncated at two standard deviations; biases 0, LayerNorm weights 1.

        With `seed` the draw is the same every time, else it comes from torch's global generator.
        """
        self.tie_weights()
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        std = self.config.initializer_range
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)) and not module.weight.is_meta:
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def tie_weights(self) -> None:
        """Make tied parameters one and the same; models without any have nothing to do."""

    def get_input_embeddings(self) -> nn.Embedding:
        """The token embedding."""
        raise NotImplementedError(f"{type(self).__name__} has no token embedding")

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None
    ) -> nn.Embedding:
        """Give the token embedding `new_num_tokens` rows (None: as many as it has), rounded up to a multiple.

        Rows that stay keep their values; new ones are drawn as a new model's are, from torch's global generator, with
        bias 0 (`fastbert.models.extension` gives them better ones). A masked-LM decoder stays tied and follows with its
        bias; `config.vocab_size` is the new number. Parameters become new ones, so make the optimizer afterwards.

        Returns the embedding. Raises `UserError` for fewer rows than one, and for a table without the padding token.
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
        """Make what predicts tokens as large as the token embedding; models that predict none have nothing to do."""

    def checkpoint_activations(self, mode: Checkpointing | bool = "layer") -> None:
        """Keep less in training and compute it again in the backward pass: `"layer"` (or True) keeps only each layer's
        input, for a third more time; `"selective"` keeps products and attention, and computes again what is cheap;
        `"none"` (or False) keeps everything."""
        if isinstance(mode, bool):
            mode = "layer" if mode else "none"
        if mode not in ("none", "layer", "selective"):
            raise UserError(f"checkpointing {mode!r} is unknown: choose none, layer or selective")
        for module in self.modules():
            if hasattr(module, "checkpointing"):
                module.checkpointing = mode  # type: ignore[assignment]

    def quantize(self, kind: Quantization | None = "int8") -> Self:
        """Multiply integers in the encoder's layers, for inference on CPUs (under `torch.no_grad()`, or with weights
        that want no gradient): weights as int8 with an fp32 scale for each output, tokens as int8 with one for each
        token, sums in 32 bits. `None` undoes it. Returns the model.

        The weights themselves stay as they are, for `save_pretrained`, for training, and for layers with hooks or
        adapters, which compute with them; embeddings, attention, LayerNorms, pooler and heads are not quantised. Raises
        UserError for another kind, and for a model that is not on the CPU.
        """
        if kind not in (None, "int8"):
            raise UserError(f'quantize({kind!r}): choose "int8", or None to undo it')
        if kind and self.device.type != "cpu":
            raise UserError(f'the model is on {self.device}: int8 serves CPUs; move it there with model.to("cpu")')
        for module in self.modules():
            if hasattr(module, "quantization"):
                module.quantization = kind  # type: ignore[assignment]
        return self

    def train(self, mode: bool = True) -> Self:
        """Switch to training or, with False, to inference, which looks at the weights anew."""
        if not mode:
            packed_weights.forget(self.parameters())
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """What moves and casts a module: its parameters may become others."""
        packed_weights.forget(self.parameters())
        return super()._apply(fn, recurse)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, dtype: torch.dtype | Literal["fastest"] | None = None, **overrides: Any
    ) -> Self:
        """Load a Hugging Face model folder: `config.json` with `model.safetensors` (or its shards).

        Weights keep the checkpoint's dtype unless `dtype` is given: `"fastest"` is bf16 where this machine's GPU, or
        else its CPU, multiplies bf16 in hardware, else the best it has; `fastbert doctor` says which and why.
        `overrides` replace config fields. Weights that the checkpoint lacks (a new head) are initialised, and a warning
        names them. The model comes in eval mode. Raises `UserError` or `CheckpointError` for files that are missing,
        damaged or of another shape.
        """
        if isinstance(dtype, str):
            if dtype != "fastest":
                raise UserError(f'dtype={dtype!r} must be a torch dtype, "fastest", or None for the checkpoint\'s own')
            dtype = fastest_dtype(torch.device("cuda" if torch.cuda.is_available() else "cpu"))[0]
        folder = Path(folder)
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; from_pretrained takes a folder with config.json and {WEIGHTS}")
        config = BertConfig.from_pretrained(folder)
        if overrides:
            config = BertConfig.from_dict({**config.to_dict(), **overrides}, source=str(folder))
        with torch.device("meta"):
            model = cls(config)
        model.tie_weights()
        model._load(dict(_rename(_tensors(folder), cls.base_model_prefix, model)), folder, dtype)
        return model.eval()

    def _load(self, found: dict[str, Tensor], folder: Path, dtype: torch.dtype | None) -> None:
        own = {name: tensor for name, tensor in self.state_dict().items() if name not in self.tied_keys}
        for name in self.tied_keys:
            found.pop(name, None)
        missing = sorted(own.keys() - found.keys())
        unexpected = sorted(found.keys() - own.keys())
        if len(missing) == len(own):
            raise CheckpointError(f"{folder}: no weight in it belongs to {type(self).__name__}")
        for name in own.keys() & found.keys():
            if own[name].shape != found[name].shape:
                raise CheckpointError(
                    f"{folder}: {name} has shape {tuple(found[name].shape)}, but config.json says"
                    f" {tuple(own[name].shape)}"
                )
        dtypes = {tensor.dtype for name, tensor in found.items() if name in own}
        chosen = dtype or (dtypes.pop() if len(dtypes) == 1 else torch.float32)
        self.to_empty(device="cpu").to(chosen)
        self.tie_weights()
        self.new_weights = tuple(missing)
        if missing:
            self._reset(missing)
            logger.warning("%s: new weights for %s", folder, ", ".join(missing))
        if unexpected:
            logger.info("%s: not used by %s: %s", folder, type(self).__name__, ", ".join(unexpected))
        with torch.no_grad():
            for name, parameter in self.state_dict(keep_vars=True).items():
                if name in found and name not in self.tied_keys:
                    parameter.copy_(found[name])

    def _reset(self, names: list[str]) -> None:
        """Initialise the named weights, which a checkpoint does not hold."""
        std = self.config.initializer_range
        for name, parameter in self.named_parameters():
            if name not in names:
                continue
            if name.endswith("LayerNorm.weight"):
                nn.init.ones_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors`, which `transformers.AutoModel` loads unchanged."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: tensor.detach().contiguous().cpu()
            for name, tensor in self.state_dict().items()
            if name not in self.tied_keys
        }
        partial = folder / f"{WEIGHTS}.partial"
        try:
            save_file(tensors, partial, metadata={"format": "pt"})
            partial.replace(folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            if partial.is_file():
                partial.unlink()
            raise CheckpointError(
                f"{folder / WEIGHTS}: could not be written ({error}); free some disk space or choose another folder"
            ) from error
        config = json.dumps(self.config.to_dict(architecture=type(self).__name__), indent=2) + "\n"
        (folder / "config.json").write_text(config, encoding="utf-8")


def _forget_copies(module: nn.Module, *_: Any) -> None:
    """Drop what was laid out of a module's weights."""
    packed_weights.forget(module.parameters())


def match_weights(
    folder: Path, config: BertConfig, kinds: Iterable[type[PreTrainedModel]]
) -> tuple[dict[type[PreTrainedModel], list[str]], dict[type[PreTrainedModel], list[str]]]:
    """For each kind of model: which of its weights a folder lacks, and which of the folder's it has no place for."""
    tensors = dict(_tensors(folder))
    missing, left_out = {}, {}
    for kind in kinds:
        with torch.device("meta"):
            model = kind(config)
        own = model.state_dict().keys() - set(kind.tied_keys)
        found = {name for name, _ in _rename(iter(tensors.items()), kind.base_model_prefix, model)}
        missing[kind] = sorted(own - found)
        left_out[kind] = sorted(found - own - set(kind.tied_keys))
    return missing, left_out


def resized(parameter: Tensor, rows: int, added: Tensor) -> nn.Parameter:
    """A parameter's first `rows` rows, with `added` behind them."""
    kept = parameter.detach()[:rows]
    return nn.Parameter(torch.cat((kept, added)), requires_grad=parameter.requires_grad)


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a folder's safetensors file, or of the shards that its index names."""
    files = [folder / WEIGHTS]
    if not files[0].exists():
        index = folder / WEIGHTS_INDEX
        if not index.exists():
            others = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            raise UserError(f"{folder}: holds no {WEIGHTS} (found {others}); weights are read from safetensors only")
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError):
            raise CheckpointError(f"{index}: not an index of safetensors shards") from None
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise CheckpointError(f"{index}: names the shard {name!r}, which is no plain file name")
        files = [folder / name for name in sorted(names)]
    for file in files:
        try:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118  (not a dictionary)
                    yield name, reader.get_tensor(name)
        except FileNotFoundError:
            raise CheckpointError(f"{file}: missing, though the index names it") from None
        except SafetensorError as error:
            raise CheckpointError(f"{file}: not a whole safetensors file ({error})") from None


def _rename(tensors: Iterator[tuple[str, Tensor]], prefix: str, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Map a checkpoint's names to the model's: with or without the `bert.` prefix, old LayerNorm names."""
    own = model.state_dict().keys()
    for name, tensor in tensors:
        if name.endswith(IGNORED):
            continue
        for old, new in RENAMED:
            name = name.replace(old, new)
        if name not in own:
            stripped = name.removeprefix(f"{prefix}.")
            prefixed = f"{prefix}.{name}"
            name = stripped if stripped in own else prefixed if prefixed in own else name
        yield name, tensor
