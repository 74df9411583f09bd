"""How a model's embeddings are made: what sentence-transformers keeps in the small files beside the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

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
