"""What all models share: configuration, initialisation, files in and out (`fastbert.checkpoints`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from fastbert.checkpoints.formats.safetensors import in_bytes, write_safetensors
from fastbert.checkpoints.hub import MAIN
from fastbert.checkpoints.key_mapping import match
from fastbert.checkpoints.manifest import MODEL, update_manifest, verify_files
from fastbert.checkpoints.source import Weights, config_folder, find_source, find_weights
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.models import loading
from fastbert.models.compatibility import Compatibility
from fastbert.ops.dispatch import fastest_dtype
from fastbert.ops.native import prepacked_weights

Checkpointing = Literal["none", "layer", "selective"]
Quantization = Literal["int8"]


class PreTrainedModel(Compatibility, loading.LoadableModel):
    """What all models share: their config, how weights begin, and `from_pretrained` with `save_pretrained`."""

    base_model_prefix: ClassVar[str] = "bert"
    config_type: ClassVar[type[BertConfig]] = BertConfig
    tied_keys: tuple[str, ...] = ()

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

    def get_input_embeddings(self) -> nn.Embedding:
        """The token embedding."""
        raise NotImplementedError(f"{type(self).__name__} has no token embedding")

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None
    ) -> nn.Embedding:
        """Give the token embedding `new_num_tokens` rows (None: as many as it has), rounded up to a multiple.

        Rows that stay keep their values; new ones are drawn as a new model's are, from torch's global generator, with
        bias 0 (`fastbert.models.vocabulary_extension` gives them better ones). A masked-LM decoder stays tied
        and follows with its bias; `config.vocab_size` is the new number. Parameters become new ones, so make the
        optimizer afterwards.

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
            prepacked_weights.forget(self.parameters())
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """What moves and casts a module: its parameters may become others."""
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
        """Load a model's folder, or a model of the Hugging Face Hub (`org/name`) that lies in its local cache, at
        `revision`; nothing is downloaded.

        A folder holds `config.json` with `model.safetensors` or its shards; or, with `pickles=True`,
        `pytorch_model.bin`, whose pickle is read but not executed; or a TensorFlow checkpoint with `bert_config.json`
        (`source` may also be its prefix, `folder/bert_model.ckpt`). docs/checkpoints.md tells what is read and refused.

        Weights in safetensors, in the dtype they have there, are mapped: a page of the file is read when it is first
        looked at, and changes stay in memory. So the file must not be written to in place while the model lives (what
        `save_pretrained` writes takes a file's name when it is whole); `mapped=False` reads all of it at once.

        A folder with a `fastbert_manifest.json` is compared with it first, which reads the weights once;
        `verify=False`, or FASTBERT_VERIFY=0 in the environment, skips that.

        Weights keep the checkpoint's dtype unless `dtype` is given: `"fastest"` is bf16 where this machine's GPU, or
        else its CPU, multiplies bf16 in hardware, else the best it has; `fastbert doctor` says which and why.
        `overrides` replace config fields. Weights of a head, or the pooler, that the checkpoint lacks are initialised,
        and a warning names them. The model comes in eval mode. Raises `UserError` or `CheckpointError` for files that
        are missing or damaged, and for weights of the encoder that are missing or of another shape.
        """
        if isinstance(dtype, str):
            if dtype != "fastest":
                raise UserError(f'dtype={dtype!r} must be a torch dtype, "fastest", or None for the checkpoint\'s own')
            dtype = fastest_dtype(torch.device("cuda" if torch.cuda.is_available() else "cpu"))[0]
        place = find_source(source, revision)
        verify_files(config_folder(place), MODEL, verify=verify)
        config = cls.config_type.from_pretrained(config_folder(place))
        if overrides:
            config = cls.config_type.from_dict({**config.to_dict(), **overrides}, source=str(place))
        weights = find_weights(place, pickles, verify=False)  # checked above
        loading.check_config(config, weights)
        model = loading.outline(cls, config)
        loading.load(model, weights, dtype, mapped=mapped)
        return model.eval()

    def save_pretrained(self, folder: str | Path, *, max_shard_size: int | str | None = None) -> None:
        """Write `config.json` and `model.safetensors`, which `transformers.AutoModel` loads unchanged.

        `max_shard_size`, in bytes or as "2GB", splits larger weights into several files with an index. Raises
        `CheckpointError` where the disk refuses; a file has its name when it is whole. `fastbert_manifest.json` lists
        the files' checksums.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self._tensors_of_files()
        names = write_safetensors(folder, tensors, None if max_shard_size is None else in_bytes(max_shard_size))
        write_json_atomic(folder / "config.json", self.config.to_dict(architecture=type(self).__name__))
        update_manifest(folder, [*names, "config.json"])

    def _tensors_of_files(self) -> dict[str, Tensor]:
        """The weights by name, on the CPU. What two of the names in files have in common is written twice."""
        left_out, seen, tensors = self._keys_to_ignore_on_save or (), set(), {}
        for name, tensor in self.state_dict(keep_vars=True).items():
            if name not in left_out:
                own = tensor.detach().contiguous().cpu()
                tensors[name] = own.clone() if id(tensor) in seen else own
                seen.add(id(tensor))
        return tensors


def _forget_copies(module: nn.Module, *_: Any) -> None:
    """Drop what was laid out of a module's weights."""
    prepacked_weights.forget(module.parameters())


def match_weights(
    weights: Weights, config: BertConfig, kinds: Iterable[type[PreTrainedModel]]
) -> tuple[dict[type[PreTrainedModel], list[str]], dict[type[PreTrainedModel], list[str]]]:
    """For each kind of model: which of its weights a checkpoint lacks, and which of its own it has no place for."""
    loading.check_config(config, weights)
    missing, left_out = {}, {}
    for kind in kinds:
        own = loading.model_shapes(loading.outline(kind, config))
        found = match(weights.tensors, own, kind.base_model_prefix, weights.path).keys()
        missing[kind] = sorted(own.keys() - found)
        left_out[kind] = sorted(found - own.keys() - set(kind.tied_keys))
    return missing, left_out


def resized(parameter: Tensor, rows: int, added: Tensor) -> nn.Parameter:
    """A parameter's first `rows` rows, with `added` behind them."""
    kept = parameter.detach()[:rows]
    return nn.Parameter(torch.cat((kept, added)), requires_grad=parameter.requires_grad)
