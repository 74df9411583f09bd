"""Settings of a model's embeddings: pooling, prompts, normalisation and dense layers, as sentence-transformers stores
them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import functional as F

from fastbert.checkpoints.formats.names import WEIGHTS
from fastbert.checkpoints.formats.safetensors import save_tensors
from fastbert.checkpoints.manifest import update_manifest
from fastbert.checkpoints.pipeline_files import ENCODER_CONFIG, MODULES, PROMPTS, TYPES
from fastbert.embeddings.pooling import check_pooling
from fastbert.errors import CheckpointError, UserError, require_whole
from fastbert.io.atomic_write import atomic_write, write_json_atomic
from fastbert.ops.native import matmul

# By name of torch's modules.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "GELU": F.gelu,
    "ReLU": torch.relu,
    "Sigmoid": torch.sigmoid,
}


@dataclass(frozen=True, eq=False)
class Dense:
    """activation(x weight^T + bias) after pooling: weight (out, in) and bias (out,) or None, fp32 on the CPU."""

    weight: Tensor
    bias: Tensor | None
    activation: str

    def __post_init__(self) -> None:
        weight, bias = self.weight, self.bias
        if weight.dim() != 2 or weight.dtype != torch.float32 or not weight.numel() or weight.device.type != "cpu":
            raise UserError(f"a Dense takes a weight of fp32 (out, in) on the CPU, not {_described(weight)}")
        if bias is not None and (bias.dtype != torch.float32 or bias.shape != weight.shape[:1]):
            raise UserError(f"a Dense with a weight {tuple(weight.shape)} takes a bias of fp32, not {_described(bias)}")
        if not all(bool(torch.isfinite(tensor).all()) for tensor in (weight, bias) if tensor is not None):
            raise UserError("a Dense holds a weight that is NaN or infinite; restore the model's files")
        if self.activation not in ACTIVATIONS:
            raise UserError(f"a Dense has the activation {self.activation!r}; known are {', '.join(ACTIVATIONS)}")

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer: fp32 (texts, in) on the CPU -> (texts, out); a text's bits do not depend on the others."""
        y = matmul.matmul(x, matmul.prepack(self.weight, "fp32"), self.bias)
        # In fp64, so that rounding hides how torch divides the work over its vector units.
        y = y.double()
        return ACTIVATIONS[self.activation](y).float()

    def save(self, folder: Path) -> None:
        """Write its weights and config in the format of sentence-transformers."""
        home = "torch.nn.modules.linear" if self.activation == "Identity" else "torch.nn.modules.activation"
        config = {
            "in_features": self.weight.shape[1],
            "out_features": self.weight.shape[0],
            "bias": self.bias is not None,
            "activation_function": f"{home}.{self.activation}",
        }
        write_json_atomic(folder / "config.json", config)
        tensors = {"linear.weight": self.weight, "linear.bias": self.bias}
        with atomic_write(folder / WEIGHTS) as partial:
            save_tensors({name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}, partial)


@dataclass(frozen=True, kw_only=True, eq=False)
class EmbedSettings:
    """Settings of embeddings; defaults are those of sentence-transformers."""

    pooling: str = "mean"
    """"cls", "mean" or "max"."""
    normalize: bool = False
    """True if vectors are divided by their length."""
    max_length: int | None = None
    """Tokens per text, [CLS] and [SEP] included; None: as many as tokenizer and model allow."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prefixes of the texts to embed, by name."""
    default_prompt: str | None = None
    """The prompt that is used if none is named."""
    dense: tuple[Dense, ...] = ()
    """Layers after pooling and before normalisation."""

    def __post_init__(self) -> None:
        check_pooling(self.pooling)
        require_whole("max_length", self.max_length, 3, optional=True)
        named = self.prompts.items() if isinstance(self.prompts, Mapping) else [(None, None)]
        if not all(isinstance(name, str) and isinstance(text, str) for name, text in named):
            raise UserError(f"prompts={self.prompts!r} must be texts by name")
        if self.default_prompt is not None:
            self.prompt(self.default_prompt)

    def check_width(self, width: int, source: str) -> None:
        """Raise UserError if a Dense does not take the output width of the model or of the previous Dense."""
        for index, dense in enumerate(self.dense):
            if dense.weight.shape[1] != width:
                raise UserError(f"{source}: Dense {index} takes {dense.weight.shape[1]} numbers, but gets {width}")
            width = len(dense.weight)

    def check_folder(self, folder: Path) -> None:
        """Raise UserError, before anything is written, if a link or a file is in the way of `save`."""
        for name, _ in self._modules():
            path = folder / name
            if name and os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
                raise UserError(f"{path}: is a link or a file, where a module's folder belongs; move it away")

    def prompt(self, name: str | None) -> str:
        """Return the text of a prompt: by default that of the default prompt, "" if there is none."""
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise UserError(f"prompt={name!r} is unknown: the model has {known}")
        return self.prompts[name]

    def save(self, folder: Path, width: int) -> None:
        """Write the settings next to a model of `width` hidden units, readable by all releases of
        sentence-transformers.

        `modules.json`, which makes a folder a sentence-transformers model, is written last, and every file is written
        atomically. Raises `CheckpointError` if writing fails.
        """
        self.check_width(width, str(folder))
        self.check_folder(folder)
        listed, files = [], [ENCODER_CONFIG, PROMPTS, MODULES]
        try:
            for index, (name, kind) in enumerate(self._modules()):
                listed.append({"idx": index, "name": str(index), "path": name, "type": f"{TYPES}.{kind}"})
                (folder / name).mkdir(exist_ok=True)
                if kind == "Pooling":
                    config = {"word_embedding_dimension": width, **_pooling_modes(self.pooling)}
                    write_json_atomic(folder / name / "config.json", config)
                    files.append(f"{name}/config.json")
                elif kind == "Dense":
                    self.dense[index - 2].save(folder / name)
                    files += [f"{name}/config.json", f"{name}/{WEIGHTS}"]
            write_json_atomic(folder / ENCODER_CONFIG, {"max_seq_length": self.max_length, "do_lower_case": False})
            write_json_atomic(
                folder / PROMPTS, {"prompts": dict(self.prompts), "default_prompt_name": self.default_prompt}
            )
            write_json_atomic(folder / MODULES, listed)
            update_manifest(folder, files)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{folder}: the settings of embeddings could not be written ({error}); free some disk space or choose"
                " another folder"
            ) from error

    def _modules(self) -> list[tuple[str, str]]:
        """Return the modules' folders and kinds."""
        kinds = ["Pooling", *["Dense"] * len(self.dense), *["Normalize"] * self.normalize]
        return [("", "Transformer"), *((f"{index}_{kind}", kind) for index, kind in enumerate(kinds, 1))]


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"


def _pooling_modes(pooling: str) -> dict[str, bool]:
    """Return the keys of releases before 6, which later ones read too."""
    keys = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    return {f"pooling_mode_{key}": mode == pooling for mode, key in keys.items()}
