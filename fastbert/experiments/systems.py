"""The systems that several experiments compare with BERT, trained on the same text: ELMo, and static word vectors; and
taggers on the frozen features of any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastbert.data.corpus import Corpus
from fastbert.experiments.data import TaskSet
from fastbert.experiments.sets import tagging_examples
from fastbert.experiments.summary import Score
from fastbert.experiments.workspace import Pretrained, Workspace
from fastbert.features.extract import Features, hidden_states
from fastbert.features.static import static_features
from fastbert.features.tagging import FeatureTraining, train_rows
from fastbert.models import registry
from fastbert.models.elmo.model import ElmoModel
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.training.run_files import remove_run
from fastbert.vectors import WordVectors
from fastbert.vectors.training import VectorTraining, train_vectors

Sentences = Sequence[Sequence[str]]
_SMALL_FILTERS, _FILTERS = (16, 16, 32), (32, 32, 64, 128, 256)
_SMALL = 64  # the widest model with few filters


@dataclass(frozen=True)
class FrozenStates:
    """Features of words (words, layers, width) from a frozen system, and which layers a tagger reads: concatenated, or
    mixed by learned weights."""

    encode: Callable[[Sentences], Features]
    layers: tuple[int, ...] = (0,)
    mixed: bool = False


def encoder_features(folder: Path) -> FrozenStates:
    """Return the last four layers of an encoder, concatenated, as in the feature-based approach of BERT's paper."""
    model, tokenizer = registry.load_encoder(folder), load_tokenizer(folder)
    count = len(model.encoder.layer)
    last_four = tuple(range(max(count - 3, 1), count + 1))
    return FrozenStates(lambda sentences: hidden_states(model, tokenizer, sentences), last_four)


def elmo_features(folder: Path) -> FrozenStates:
    """Return all layers of an ELMo, mixed by learned weights, as in its paper."""
    model = load_elmo(folder)
    return FrozenStates(
        lambda sentences: elmo_states(model, sentences), tuple(range(model.config.num_hidden_layers + 1)), mixed=True
    )


def vector_features(vectors: WordVectors) -> FrozenStates:
    """Return static vectors, one per word."""
    return FrozenStates(lambda sentences: static_features(vectors, sentences)[0])


def tag_features(workspace: Workspace, name: str, task: TaskSet, features: Callable[[], FrozenStates]) -> Score:
    """Train BiLSTM taggers on the features of a tagging set, one per seed; return their scores.

    `features` is called if the taggers have not been trained yet.
    """

    def train() -> dict[str, Any]:
        frozen = features()
        datasets = tagging_examples(task)
        states = [frozen.encode([example.words for example in dataset]) for dataset in datasets]
        values, width = [], workspace.scale.hidden_size
        for seed in range(workspace.seeds):
            training = FeatureTraining(
                hidden_size=width, epochs=workspace.scale.feature_epochs, seed=seed, last_epoch=True
            )
            row = train_rows([(name, frozen.layers, frozen.mixed)], states, datasets, training)[0]
            values.append(row.f1)
        return {"values": values}

    values = workspace.cached(f"features-{name}-{task.name}", train)["values"]
    score = Score(metric=task.metric, values=tuple(values))
    workspace.say(f"{name}, features, on {task.name}: {task.metric} {score}")
    return score


def pretrain_elmo(workspace: Workspace) -> Pretrained:
    """Pre-train an ELMo of the scale's width on the corpora, with a vocabulary of their words."""
    width, words = workspace.scale.hidden_size, workspace.scale.vocab_size
    shape = {
        "model_type": "elmo",
        "vocab_size": words,
        "output_size": words,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
        "intermediate_size": 2 * width,  # half of the published ratio, for the cost of a step
        "filters": _SMALL_FILTERS if width <= _SMALL else _FILTERS,
        "num_highways": 1,
    }
    corpora: dict[str, Any] = {"data": None, "corpus": workspace.data.corpora, "text_format": "lines"}
    pretrained = workspace.pretrain("elmo", model=shape, objective="bilm", **corpora)
    remove_run(workspace.folder / "pretrain" / "elmo", ("data",))  # the run's own token shards
    return pretrained


def load_elmo(folder: Path) -> ElmoModel:
    """Return the encoder of an ELMo for inference."""
    model: Any = registry.load_encoder(folder)
    assert isinstance(model, ElmoModel), folder
    return model.eval()


def elmo_states(model: ElmoModel, sentences: Sentences) -> Features:
    """Return all hidden states of each word, bf16 (words, layers + 1, hidden_size)."""
    lengths = [len(sentence) for sentence in sentences]
    total, layers = sum(lengths), model.config.num_hidden_layers + 1
    values = torch.empty(total, layers, model.config.hidden_size, dtype=torch.bfloat16)
    for words, states in model.states_of(sentences):
        values[words] = states.to("cpu", values.dtype)
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return Features(values=values, offsets=offsets, items=tuple(word for sentence in sentences for word in sentence))


def train_static_vectors(workspace: Workspace) -> WordVectors:
    """Train skip-gram vectors of the scale's width on the corpora, in lower case; read them where they are finished.

    Raises `UserError` without gensim.
    """
    path = workspace.file("vectors/skipgram.txt")
    if not path.exists():
        epochs = 5 if workspace.scale.name == "smoke" else None
        training = VectorTraining(size=workspace.scale.hidden_size, lower_case=True, epochs=epochs)
        report = workspace.reporter.on_stage
        updates: dict[str, Callable[[int], None]] = {}

        def progress(stage: str, done: int, total: int, unit: str) -> None:
            if stage not in updates:
                updates[stage] = report(f"vectors: {stage}", total, unit)
            updates[stage](done)

        path.parent.mkdir(parents=True, exist_ok=True)
        trained = train_vectors(Corpus.find(workspace.data.corpora, text_format="lines"), training, progress=progress)
        trained.vectors.save(path)
        workspace.say(
            f"static vectors of {len(trained.vectors):,} words, trained on {trained.total_words:,} words in"
            f" {trained.epochs} epochs"
        )
    return WordVectors.load(path)
