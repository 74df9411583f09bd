"""How a model's embeddings are made: what sentence-transformers keeps in the small files beside the weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from fastbert.checkpoints.pipeline_files import ENCODER_CONFIG, MODULES, PROMPTS, TYPES
from fastbert.checkpoints.safetensors_files import WEIGHTS
from fastbert.errors import UserError
from fastbert.ops import native_product
from fastbert.tasks.pooling import check_pooling

# By the names of torch's modules.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "GELU": F.gelu,
    "ReLU": torch.relu,
    "Sigmoid": torch.sigmoid,
}


@dataclass(frozen=True, eq=False)
class Dense:
    """activation(x weight^T + bias) behind pooling: weight (out, in) and bias (out,) or None, fp32 on the CPU."""

    weight: Tensor
    bias: Tensor | None
    activation: str

    def __call__(self, x: Tensor) -> Tensor:
        """x fp32 (texts, in) on the CPU -> (texts, out); a text's bits do not depend on the others."""
        y = native_product.product(x, native_product.pack(self.weight, "fp32"), self.bias)
        # In fp64, so that how torch cuts the work for its vector units is rounded away.
        y = y.double()
        return ACTIVATIONS[self.activation](y).float()

    def describe(self) -> dict[str, Any]:
        """Its config.json in sentence-transformers."""
        home = "torch.nn.modules.linear" if self.activation == "Identity" else "torch.nn.modules.activation"
        return {
            "in_features": self.weight.shape[1],
            "out_features": self.weight.shape[0],
            "bias": self.bias is not None,
            "activation_function": f"{home}.{self.activation}",
        }

    def save(self, folder: Path) -> None:
        """Write its weights as sentence-transformers names them."""
        tensors = {"linear.weight": self.weight, "linear.bias": self.bias}
        partial = folder / f"{WEIGHTS}.partial"
        save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, partial)
        partial.replace(folder / WEIGHTS)


@dataclass(frozen=True, kw_only=True, eq=False)
class EmbedSettings:
    """What a folder says of its embeddings; what it leaves open is as sentence-transformers takes it."""

    pooling: str = "mean"
    """"cls", "mean" or "max"."""
    normalize: bool = False
    """Whether vectors are divided by their length."""
    max_length: int | None = None
    """Tokens of a text, [CLS] and [SEP] included; None: as many as tokenizer and model take."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that are put before those to embed, by name."""
    default_prompt: str | None = None
    """The prompt that is used when none is named."""
    dense: tuple[Dense, ...] = ()
    """Layers behind pooling, before vectors are divided by their length."""

    def __post_init__(self) -> None:
        check_pooling(self.pooling)
        if self.default_prompt is not None:
            self.prompt(self.default_prompt)

    def prompt(self, name: str | None) -> str:
        """The text of a prompt: the default one's without a name, "" where there is none."""
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise UserError(f"prompt={name!r} is unknown: the model has {known}")
        return self.prompts[name]

    def save(self, folder: Path, width: int) -> None:
        """Write them beside a model of `width` hidden units, as sentence-transformers of any release reads them.

        `modules.json`, by which a folder is one of its models, comes last, and a file has its name when it is whole.
        """
        parts: list[tuple[str, dict[str, Any] | None]] = [("Transformer", None)]
        parts.append(("Pooling", {"word_embedding_dimension": width, **_pooling_modes(self.pooling)}))
        parts += [("Dense", dense.describe()) for dense in self.dense]
        parts += [("Normalize", None)] if self.normalize else []
        listed = []
        for index, (kind, config) in enumerate(parts):
            name = "" if kind == "Transformer" else f"{index}_{kind}"
            listed.append({"idx": index, "name": str(index), "path": name, "type": f"{TYPES}.{kind}"})
            (folder / name).mkdir(exist_ok=True)
            if config is not None:
                _write_json(folder / name / "config.json", config)
            if kind == "Dense":
                self.dense[index - 2].save(folder / name)
        _write_json(folder / ENCODER_CONFIG, {"max_seq_length": self.max_length, "do_lower_case": False})
        _write_json(folder / PROMPTS, {"prompts": dict(self.prompts), "default_prompt_name": self.default_prompt})
        _write_json(folder / MODULES, listed)


def _pooling_modes(pooling: str) -> dict[str, bool]:
    """The keys of releases before 6, which later ones know too."""
    keys = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    return {f"pooling_mode_{key}": mode == pooling for mode, key in keys.items()}


def _write_json(path: Path, content: Any) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
