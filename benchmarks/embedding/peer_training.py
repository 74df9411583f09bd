"""Training with sentence-transformers' losses in a plain loop, with fastbert's order, schedule and weight groups."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastbert.benchmarks.embedding.examples import Example, ExampleForm
from fastbert.finetuning import order, recipe
from fastbert.training.optimizer import decayed
from fastbert.training.optimizer_flags import EPS

ModelKind = Literal["embedder", "sparse", "cross-encoder"]
TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The hyper-parameters of a comparison; `warmup` is a fraction of the steps, `dropout` that of all layers."""

    steps: int
    batch_size: int
    lr: float
    seed: int = 0
    warmup: float = 0.1
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    max_length: int = 128
    dropout: float = 0.0


def write_initial(source: Path, folder: Path, kind: ModelKind, recipe_: Recipe) -> Path:
    """Write the folder from which both libraries load the initial model: an encoder with its settings, with a new
    masked-LM head or a new classifier initialised from the seed; return it."""
    import transformers

    if kind == "embedder":
        shutil.copytree(source, folder)
    else:
        torch.manual_seed(recipe_.seed)
        quiet = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        if kind == "sparse":
            model = transformers.AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32)
        else:
            model = transformers.AutoModelForSequenceClassification.from_pretrained(
                source, num_labels=1, dtype=torch.float32
            )
        model.save_pretrained(folder)
        transformers.logging.set_verbosity(quiet)
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copy(source / name, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    config |= dict.fromkeys(names, recipe_.dropout)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def load_peer(folder: Path, kind: ModelKind, max_length: int, *, attention: str = "sdpa") -> Any:
    """Return the model of a folder in sentence-transformers, on the CPU in fp32."""
    import sentence_transformers
    from sentence_transformers.base.modules.transformer import Transformer

    options = {"attn_implementation": attention, "dtype": torch.float32}
    if kind == "embedder":
        model: Any = sentence_transformers.SentenceTransformer(str(folder), device="cpu", model_kwargs=options)
    elif kind == "cross-encoder":
        model = sentence_transformers.CrossEncoder(str(folder), num_labels=1, device="cpu", model_kwargs=options)
    else:
        from sentence_transformers.sparse_encoder.modules import SpladePooling

        transformer = Transformer(str(folder), transformer_task="fill-mask", model_kwargs=options)
        model = sentence_transformers.SparseEncoder(modules=[transformer, SpladePooling("max")], device="cpu")
    model.max_seq_length = max_length
    return model


class PeerBatch:
    """The columns and labels of a batch, as sentence-transformers' collators make them."""

    def __init__(self, model: Any, kind: ModelKind, form: ExampleForm, examples: Sequence[Example]) -> None:
        self.labels: Any = None
        of_lists = form in ("graded", "lists")
        if of_lists:
            self.labels = [torch.tensor(each.labels) for each in examples]
        elif form == "taught":
            self.labels = torch.tensor([each.labels for each in examples])
        elif examples[0].labels:
            self.labels = torch.tensor([each.labels[0] for each in examples])
        queries = [each.texts[0] for each in examples]
        if kind != "cross-encoder":
            columns = zip(*(each.texts for each in examples), strict=True)
            self.columns: Any = [model.preprocess(list(column)) for column in columns]
        elif of_lists:
            self.columns = [queries, [list(each.texts[1:]) for each in examples]]
        else:
            self.columns = [list(column) for column in zip(*(each.texts for each in examples), strict=True)]


def update_of(model: nn.Module, recipe_: Recipe) -> torch.optim.AdamW:
    """Return torch's fused AdamW with fastbert's settings and groups."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {
            "params": [parameter for name, parameter in named if decayed(name, parameter) == decays],
            "weight_decay": recipe_.weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]
    return torch.optim.AdamW(groups, lr=recipe_.lr, betas=(0.9, 0.999), eps=EPS, fused=True)


def batches_of(examples: Sequence[Example], recipe_: Recipe) -> Iterator[list[Example]]:
    """Yield the examples of each step in fastbert's order."""
    for _, units in order.batches(len(examples), recipe_.batch_size, recipe_.seed, 0, recipe_.steps):
        yield [examples[unit] for unit in units.tolist()]


def train(
    model: Any,
    kind: ModelKind,
    form: ExampleForm,
    examples: Sequence[Example],
    recipe_: Recipe,
    loss_of: Callable[[PeerBatch, float], Tensor],
    stepped: Callable[[float], object] = lambda loss: None,
    batches: Iterable[list[Example]] | None = None,
) -> list[float]:
    """Train; return the losses. `loss_of` takes a batch and the finished fraction of the training; `stepped` the loss
    of each step that is done. `batches` are fastbert's by default."""
    model.train()
    optimizer = update_of(model, recipe_)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses = []
    for step, chosen in enumerate(batches_of(examples, recipe_) if batches is None else batches):
        rate = recipe_.lr * recipe.factor(None, recipe_.warmup, step, recipe_.steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(PeerBatch(model, kind, form, chosen), step / recipe_.steps)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe_.max_grad_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
        stepped(losses[-1])
    return losses
