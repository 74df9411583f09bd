"""A corpus with something to learn, a run of a few steps on it, and tests on one thread."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fastbert.io import figures
from fastbert.training import plot
from fastbert.training.config import PretrainConfig


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty documents whose words follow each other by a rule, so that there is something to learn."""
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=4)) for _ in range(30)]
    lines = []
    for _ in range(40):
        place = draw.randrange(30)
        for _ in range(8):
            sentence = []
            for _ in range(9):
                sentence.append(words[place])
                place = (place + 1) % 30 if draw.random() < 0.9 else draw.randrange(30)
            lines.append(" ".join(sentence) + ".")
        lines.append("")
    path = tmp_path_factory.mktemp("corpus") / "toy.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def config(corpus: Path, tmp_path: Path) -> PretrainConfig:
    """A run of twelve steps on a model of 2 layers and width 32."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    vocabulary += sorted({word.strip(".") for word in corpus.read_text().split()})
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    model = {
        "vocab_size": len(vocabulary), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "model.json").write_text(json.dumps(model))
    return PretrainConfig(
        corpus=(corpus,),
        tokenizer=tmp_path / "vocab.txt",
        model=str(tmp_path / "model.json"),
        out=tmp_path / "run",
        text_format="lines",
        steps=12,
        batch_size=8,
        micro_batch=4,
        max_length=32,
        lr=3e-3,
        dtype="fp32",
        device="cpu",
        log_every=2,
        eval_every=6,
        eval_samples=16,
        checkpoint_every=4,
        keep_checkpoints=10,
    )


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures of plots that are written, as matplotlib holds them."""
    written = []

    @contextmanager
    def figure_file(*arguments: Any) -> Iterator[Any]:
        with figures.figure_file(*arguments) as figure:
            written.append(figure)
            yield figure

    monkeypatch.setattr(plot, "figure_file", figure_file)
    return written


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without their picture, which takes longer than their steps."""
    monkeypatch.setattr("fastbert.training.pretrain.plot_runs", lambda runs, file, **options: file.write_bytes(b""))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take long on a busy machine; what depends on them has a test of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
