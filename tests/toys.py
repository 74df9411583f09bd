"""Models of transformers with a few thousand random weights, and inputs of every kind."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

VOCABULARY, COLUMNS = 211, 19
SHAPE = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "pad_token_id": 1}
WIDE = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 80}
DISTILBERT = {"dim": 64, "n_layers": 3, "n_heads": 2, "hidden_dim": 80}
FAMILIES = ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra", "DistilBert")


def toy(name: str, seed: int, dropout: float = 0.0, **options: Any) -> Any:
    """A model by its class's name, "RobertaForMaskedLM", with weights large enough that every part matters."""
    kind = getattr(transformers, name)
    family = next(prefix for prefix in sorted(FAMILIES, key=len, reverse=True) if name.startswith(prefix))
    if family == "DistilBert":
        numbers = {
            **DISTILBERT,
            "dropout": dropout,
            "attention_dropout": dropout,
            "seq_classif_dropout": 0.0,
            "qa_dropout": 0.0,
        }
    else:
        numbers = {
            **WIDE,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
            "classifier_dropout": 0.0,
        }
    if family == "Electra":
        numbers["embedding_size"] = 32
    torch.manual_seed(seed)
    model = kind(getattr(transformers, f"{family}Config")(**SHAPE, **numbers, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2 if parameter.dim() > 1 else 0.5)
    return model.eval()


def masks(rows: int = 4) -> dict[str, Tensor | None]:
    """Attention masks (rows, COLUMNS) by what they have."""
    right = torch.ones(rows, COLUMNS, dtype=torch.int64)
    for row in range(rows):
        right[row, COLUMNS - 4 * row :] = 0 if row else 1
    holes = right.clone()
    holes[0, 3:5] = 0
    holes[2, 7] = 0
    return {"none": None, "full": torch.ones_like(right), "right": right, "holes": holes, "left": right.flip(1)}


def inputs(seed: int, mask: Tensor | None, segments: bool = False) -> dict[str, Tensor]:
    """Random ids, with the padding's id where the mask says so."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (4, COLUMNS), generator=generator)
    arguments = {"input_ids": ids if mask is None else ids.masked_fill(mask == 0, 1)}
    if mask is not None:
        arguments["attention_mask"] = mask
    if segments:
        arguments["token_type_ids"] = torch.randint(0, 2, (4, COLUMNS), generator=generator)
    return arguments


def real(mask: Tensor | None) -> Tensor:
    """Return the mask of the tokens, bool (4, COLUMNS)."""
    return torch.ones(4, COLUMNS, dtype=torch.bool) if mask is None else mask.bool()


def gradients(model: nn.Module, value: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    """Return the gradients of all parameters that a value depends on."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    result = torch.autograd.grad(value, list(named.values()), upstream.to(value.dtype), allow_unused=True)
    return {name: grad for name, grad in zip(named, result, strict=True) if grad is not None}
