"""Settings of a model's embeddings: pooling, prompts, normalisation and dense layers, as sentence-transformers stores
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.checkpoints.formats.safetensors import save_tensors
from fastbert.checkpoints.pipeline_files import BASE_TYPES, TYPES, Module, check_free, write_pipeline
from fastbert.embeddings.pooling import check_pooling
from fastbert.errors import UserError, require_whole
from fastbert.io.atomic_write import atomic_write
from fastbert.ops.native import matmul

# By name of torch's modules.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "GELU": F.gelu,
    "ReLU": torch.relu,
    "Sigmoid": torch.sigmoid,
}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


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

    def module(self, of: str | None = None) -> Module:
        """Return the layer in the format of sentence-transformers; `of` names what it maps, None: the vectors of texts,
        as releases before 6 have it."""
        home = "torch.nn.modules.linear" if self.activation == "Identity" else "torch.nn.modules.activation"
        config = {
            "in_features": self.weight.shape[1],
            "out_features": self.weight.shape[0],
            "bias": self.bias is not None,
            "activation_function": f"{home}.{self.activation}",
        }
        if of is None:
            return Module(type=f"{TYPES}.Dense", config=config, write_weights=self._write)
        names = {"module_input_name": of, "module_output_name": of}
        return Module(type=f"{BASE_TYPES}.dense.Dense", config={**config, **names}, write_weights=self._write)

    def _write(self, path: Path) -> None:
        tensors = {"linear.weight": self.weight, "linear.bias": self.bias}
        with atomic_write(path) as partial:
            save_tensors({name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}, partial)


def check_widths(dense: Sequence[Dense], width: int, source: str) -> int:
    """Return the width of the output of layers behind an encoder of a width. Raises UserError if one of them does not
    take the output of the encoder or of the layer before it."""
    for index, layer in enumerate(dense):
        if layer.weight.shape[1] != width:
            raise UserError(f"{source}: Dense {index} takes {layer.weight.shape[1]} numbers, but gets {width}")
        width = len(layer.weight)
    return width


def find_prompt(prompts: Mapping[str, str], name: str | None, option: str) -> str:
    """Return the prompt of a name, "" for None. Raises UserError for an unknown name, given as `option`."""
    if name is None:
        return ""
    if name not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise UserError(f"{option}={name!r} is unknown: the model has {known}")
    return prompts[name]


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
    similarity: str | None = None
    """The score of two vectors: "cosine", "dot", "euclidean" or "manhattan", the last two negated; None: cosine, by
    default."""

    def __post_init__(self) -> None:
        check_pooling(self.pooling)
        if self.similarity not in (None, *SIMILARITIES):
            raise UserError(f"similarity={self.similarity!r} must be one of {', '.join(SIMILARITIES)}")
        require_whole("max_length", self.max_length, 3, optional=True)
        named = self.prompts.items() if isinstance(self.prompts, Mapping) else [(None, None)]
        if not all(isinstance(name, str) and isinstance(text, str) for name, text in named):
            raise UserError(f"prompts={self.prompts!r} must be texts by name")
        if self.default_prompt is not None:
            self.prompt(self.default_prompt)

    def check_width(self, width: int, source: str) -> None:
        """Raise UserError if a Dense does not take the output width of the model or of the previous Dense."""
        check_widths(self.dense, width, source)

    def check_folder(self, folder: Path) -> None:
        """Raise UserError, before anything is written, if a link or a file is in the way of `save`."""
        check_free(folder, self._modules())

    def prompt(self, name: str | None) -> str:
        """Return the text of a prompt: by default that of the default prompt, "" if there is none."""
        return find_prompt(self.prompts, self.default_prompt if name is None else name, "prompt")

    def save(self, folder: Path, width: int) -> None:
        """Write the settings next to a model of `width` hidden units, readable by all releases of
        sentence-transformers.

        `modules.json`, which makes a folder a sentence-transformers model, is written last, and every file is written
        atomically. Raises `CheckpointError` if writing fails.
        """
        self.check_width(width, str(folder))
        write_pipeline(
            folder,
            self._modules(width),
            encoder={"max_seq_length": self.max_length, "do_lower_case": False},
            settings={
                "prompts": dict(self.prompts),
                "default_prompt_name": self.default_prompt,
                "similarity_fn_name": self.similarity,
            },
            encoder_type=f"{TYPES}.Transformer",
        )

    def _modules(self, width: int = 0) -> list[Module]:
        """Return the modules behind an encoder of `width` hidden units."""
        pooling = Module(
            type=f"{TYPES}.Pooling", config={"word_embedding_dimension": width, **_pooling_modes(self.pooling)}
        )
        dense = [layer.module() for layer in self.dense]
        return [pooling, *dense, *[Module(type=f"{TYPES}.Normalize")] * self.normalize]


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"


def _pooling_modes(pooling: str) -> dict[str, bool]:
    """Return the keys of releases before 6, which later ones read too."""
    keys = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    return {f"pooling_mode_{key}": mode == pooling for mode, key in keys.items()}
