"""Fine-tuning RoBERTa-, DistilBERT- and ELECTRA-shaped models beside transformers' Trainer: the same losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fastbert
from fastbert.tokenizers import WordPieceTokenizer

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' Trainer needs it")

WORDS = [f"word{letter}" for letter in "abcdefghijklmnopqrst"]
SHAPE = {
    "vocab_size": 5 + len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 40, "pad_token_id": 0,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Roberta": {**SHAPE, "type_vocab_size": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "DistilBert": {
        "vocab_size": 5 + len(WORDS), "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64,
        "max_position_embeddings": 40, "dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0,
    },
    "Electra": {**SHAPE, "embedding_size": 24, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_fifty_losses_are_those_of_the_trainer(family: str, tmp_path: Path, seed: int) -> None:
    from fastbert.benchmarks.finetuning.contender import Contender

    torch.manual_seed(seed)
    model = tmp_path / "model"
    getattr(transformers, f"{family}Model")(
        getattr(transformers, f"{family}Config")(**FAMILIES[family])
    ).save_pretrained(model)
    WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]).save_pretrained(model)
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for index in range(80):
        length = int(torch.randint(3, 20, (1,), generator=draw))
        words = [WORDS[index % 2 * 10 + i] for i in torch.randint(0, 10, (length,), generator=draw)]
        rows.append(f"{' '.join(words)}\t{'yes' if index % 2 else 'no'}")
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    spec = {
        "threads": torch.get_num_threads(), "task": "classification", "model": str(model), "dropout": None,
        "max_length": 32, "train": str(tmp_path / "train.tsv"), "eval": str(tmp_path / "train.tsv"), "limit": None,
        "lr": 2e-3, "batch_size": 8, "epochs": 5.0, "seed": seed % 2**31, "initial": str(tmp_path / "initial"),
    }  # fmt: skip
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    losses = {}
    for name in ("Trainer fp32", "fastbert"):
        contender = Contender(name, str(tmp_path / "spec.json"))
        contender.open()
        losses[name] = contender.steps(50)["losses"]
        if name == "fastbert":
            assert type(contender.model) is getattr(fastbert, f"{family}ForSequenceClassification")
            assert contender.finish()["steps"] == 50
    assert len(losses["fastbert"]) == len(losses["Trainer fp32"]) == 50
    assert losses["fastbert"] == pytest.approx(losses["Trainer fp32"], abs=1e-4)
    assert min(losses["fastbert"]) < losses["fastbert"][0] - 0.1, "the task is learned"
