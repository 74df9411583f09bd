"""Parts of speech, layer by layer: a linear probe per layer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fastbert.experiments.registry import Experiment
from fastbert.experiments.sets import chosen, tagging_examples
from fastbert.experiments.summary import Row, Score
from fastbert.experiments.workspace import Workspace
from fastbert.features.extract import hidden_states
from fastbert.models import registry
from fastbert.tokenizers.loading import load_tokenizer

SETS = ("POS", "words")
MOST_SENTENCES = 3000  # whose hidden states are in memory


def rows(workspace: Workspace) -> Iterator[Row]:
    """Train a probe on the embeddings and on every layer, with every seed."""
    task = chosen(workspace, SETS, ("tagging",))[0]
    pretrained = workspace.pretrain("mlm-nsp", objective="mlm+nsp")

    def probe() -> dict[str, Any]:
        model = registry.load_encoder(pretrained.model)
        tokenizer = load_tokenizer(pretrained.model)
        states, tags = [], []
        for examples in tagging_examples(task):
            dataset = list(islice(examples, MOST_SENTENCES))
            states.append(hidden_states(model, tokenizer, [example.words for example in dataset]).values.float())
            tags.append([tag for example in dataset for tag in example.tags or ()])
        numbers = {tag: number for number, tag in enumerate(sorted(set(tags[0])))}
        labels = [torch.tensor([numbers.get(tag, -1) for tag in words]) for words in tags]
        values = [
            [
                _accuracy(
                    states[0][:, layer], labels[0], states[1][:, layer], labels[1], workspace.scale.feature_epochs, seed
                )
                for seed in range(workspace.seeds)
            ]
            for layer in range(states[0].shape[1])
        ]
        return {"values": values}

    for layer, values in enumerate(workspace.cached("probes", probe)["values"]):
        name = "embeddings" if layer == 0 else f"layer {layer}"
        score = Score(metric="accuracy", values=tuple(values))
        workspace.say(f"probe of {name}: accuracy {score}")
        yield Row(name=name, scores={task.name: score})


def _accuracy(
    train: torch.Tensor, labels: torch.Tensor, held_out: torch.Tensor, gold: torch.Tensor, epochs: int, seed: int
) -> float:
    """Return the accuracy in percent of a linear classifier of words (words, width)."""
    generator = torch.Generator().manual_seed(seed)
    mean, std = train.mean(0), train.std(0) + 1e-6
    train, held_out = (train - mean) / std, (held_out - mean) / std
    linear = nn.Linear(train.shape[1], int(labels.max()) + 1)
    nn.init.normal_(linear.weight, std=0.02, generator=generator)
    nn.init.zeros_(linear.bias)
    optimizer = torch.optim.Adam(linear.parameters(), lr=1e-3)
    for _ in range(max(epochs, 3)):
        for rows_ in torch.randperm(len(train), generator=generator).split(256):
            loss = F.cross_entropy(linear(train[rows_]), labels[rows_])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return float((linear(held_out).argmax(-1) == gold).float().mean() * 100)


EXPERIMENT = Experiment(
    title="Parts of speech, layer by layer",
    paper=(
        "Not in the paper. Tenney et al. (2019) find parts of speech in the lower layers of BERT, Peters et al. (2018)"
        " in the lower layer of ELMo: 97.3 against 96.8 in the upper one."
    ),
    limits=(
        "A linear probe reads what is linearly there; a layer may hold more. Probes are trained and scored on the first"
        " 3,000 sentences."
    ),
    rows=rows,
    finetunes=False,
)
