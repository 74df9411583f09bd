"""Training of embedders, rerankers, sparse and token vectors from input that does not fit: refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetune_runs import config, wrong
from retrieval_data import lists, masked_folder, scored, triplets
from saved_models import saved

from fastbert import TokenEncoder
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.finetuning.mixture import mixed
from fastbert.finetuning.run import finetune
from fastbert.models import registry
from fastbert.reranking.settings import CrossEncoderSettings
from fastbert.retrieval.saving import save_with_settings
from fastbert.tasks.examples import Dataset, TextGroup
from fastbert.tasks.retrieval.scores import predictions_of
from fastbert.tokenizers.loading import load_tokenizer

SHORT: dict[str, Any] = {"task": "embedding", "steps": 1, "batch_size": (8,), "lr": (1e-3,), "eval": ()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    masked_folder(folder / "model")
    triplets(folder / "train.jsonl", 16, seed=1)
    triplets(folder / "pairs.jsonl", 16, seed=3, negatives=0)
    scored(folder / "scored.tsv", 16, seed=5)
    lists(folder / "lists.jsonl", 16, seed=6)
    embedder(folder, "embedder", EmbedSettings())
    embedder(folder, "distances", EmbedSettings(similarity="euclidean"))
    return folder


def embedder(folder: Path, name: str, settings: EmbedSettings) -> Path:
    """The encoder of the folder's model, with settings of one vector per text."""
    model = registry.load_encoder(folder / "model")
    model.pooler = None  # type: ignore[assignment]
    save_with_settings(model, settings, folder / name)
    load_tokenizer(folder / "model").save_pretrained(folder / name)
    return folder / name


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"train": "train.jsonl", "loss": "triplet", "symmetric": True},
            "triplet, for which --symmetric changes nothing",
        ),
        (
            {"train": "scored.tsv", "loss_temperature": 0.3},
            "for which --loss-temperature changes nothing",
        ),
        ({"train": "scored.tsv", "eval": "pairs.jsonl", "metric": "spearman"}, "is undefined on "),
        ({"train": "scored.tsv", "teacher": "embedder"}, "teaches queries with positives and negatives, and "),
        ({"train": "pairs.jsonl", "more_train": "scored.tsv"}, "line 1 has none; train on files of one form"),
        ({"train": "pairs.jsonl", "model": "distances"}, "compares vectors by euclidean distance, which no loss"),
        ({"train": "pairs.jsonl", "frozen": True}, "--frozen: --task embedding has no weights but the encoder's"),
        ({"train": "pairs.jsonl", "gradual_unfreezing": True}, "--gradual-unfreezing: --task embedding has no"),
        ({"task": "splade", "train": "pairs.jsonl", "model": "embedder"}, "is an embedder without a masked-LM head"),
        (
            {"train": "pairs.jsonl", "mine_negatives": "embedder", "mining_margin": 5.0},
            "candidates, the margins and filters leave no negative; loosen them",
        ),
    ],
)
def test_input_that_does_not_fit(flags: dict[str, Any], message: str, place: Path, tmp_path: Path) -> None:
    chosen = {**SHORT, **flags, "train": place / flags["train"]}
    for name in ("eval", "more_train"):
        chosen[name] = (place / flags[name],) if name in flags else ()
    for name in ("model", "teacher", "mine_negatives"):
        if name in flags:
            chosen[name] = str(place / flags[name])
    assert message in wrong(place, tmp_path, **chosen)
    assert not (tmp_path / "run").exists()


def test_errors_name_the_file_of_a_mixture_once() -> None:
    files = [Dataset(name, (TextGroup(id="0", location="line 1", texts=("a", "b")),)) for name in ("a.tsv", "b.tsv")]
    assert [mixed(files, (), 0).where(index) for index in (0, 1)] == ["a.tsv, line 1", "b.tsv, line 1"]


def test_token_vectors_are_trained_from_an_embedder(place: Path, tmp_path: Path) -> None:
    flags = {**SHORT, "task": "colbert", "model": str(place / "embedder"), "train": place / "pairs.jsonl"}
    finetune(config(place, tmp_path / "run", **flags, more_train=(place / "train.jsonl",)))
    assert "| pairs.jsonl + train.jsonl | 32 examples |" in (tmp_path / "run" / "model" / "README.md").read_text()
    encoder = TokenEncoder(tmp_path / "run")
    assert encoder.settings.normalize
    assert torch.isfinite(encoder.encode(["a day"], role="query").vectors).all()


def test_a_reranker_is_taught_scores_of_pairs(place: Path, tmp_path: Path, seed: int) -> None:
    """The default loss of a teacher is one that the form of the file has."""
    teacher = saved(tmp_path, "BertForSequenceClassification", seed, CrossEncoderSettings(), num_labels=1)
    flags = {**SHORT, "task": "rerank", "teacher": str(teacher), "train": place / "scored.tsv"}
    finetune(config(place, tmp_path / "run", **flags))
    task = json.loads((tmp_path / "run" / "model" / "fastbert_task.json").read_text())
    assert task["settings"]["loss"] == "mse"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_similarities_that_are_not_finite_get_no_rank(value: float) -> None:
    dataset = Dataset("dev.jsonl", (TextGroup(id="0", location="line 1", texts=("a", "b", "c")),))

    def similarities(queries: list[int], documents: list[int]) -> torch.Tensor:
        return torch.from_numpy(np.full((len(queries), len(documents)), value, dtype=np.float32))

    with pytest.raises(UserError, match="the model's vectors are not finite"):
        predictions_of(dataset, similarities, lambda a, b: torch.zeros(len(a)))
