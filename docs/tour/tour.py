"""Shared parts of the notebooks: the text, small models that are trained once and cached, and the look of pictures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from everyday import everyday_documents

from fastbert.config import BertConfig
from fastbert.data.corpus import Corpus
from fastbert.data.prepare import prepare
from fastbert.data.python_text import python_documents
from fastbert.data.shards import TokenShards
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.figures import SEQUENTIAL
from fastbert.io.figures import caption as caption
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training.config import Objective, PretrainConfig
from fastbert.training.demo import write_corpus
from fastbert.training.pretrain import pretrain
from fastbert.training.reporter import Record, Reporter

CACHE = Path(__file__).resolve().parent / "cache"
VOCABULARY = 2048
STEPS: dict[Objective, int] = {"mlm+nsp": 1200, "ltr": 600, "bilm": 150}
PYTHON_BYTES = 3_000_000
EVERYDAY_DOCUMENTS = 1500
SHAPE = BertConfig(
    vocab_size=VOCABULARY,
    hidden_size=192,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=768,
    max_position_embeddings=128,
)

plt.rcParams.update({"figure.constrained_layout.use": True, "font.size": 9, "axes.titlesize": 10, "savefig.dpi": 100})


def text_file(scale: float = 1.0) -> Path:
    """Return a file of sentences, written on first use: the English of Python's documentation and docstrings, and short
    texts about rivers, money, theatre, games and music. `scale` multiplies its size."""
    path = CACHE / f"text-{scale:g}.txt"
    if not path.exists():
        everyday = everyday_documents(everyday_count(scale))
        write_corpus(chain(everyday, python_documents(round(PYTHON_BYTES * scale))), path, lambda written: None)
    return path


def everyday_file(scale: float = 1.0) -> Path:
    """Return a file with the short texts alone, written on first use."""
    path = CACHE / f"everyday-{scale:g}.txt"
    if not path.exists():
        write_corpus(everyday_documents(everyday_count(scale)), path, lambda written: None)
    return path


def everyday_count(scale: float) -> int:
    """Return the number of short texts."""
    return max(round(EVERYDAY_DOCUMENTS * scale), 60)


def pretrained(objective: Objective, scale: float = 1.0) -> Path:
    """Return the folder of a small model, trained on first use: `mlm+nsp` and `ltr` on `text_file`, 4 layers, 192 wide;
    `bilm`, an ELMo, on `everyday_file`.

    `scale` multiplies the steps and the size of the text. An interrupted training continues when called again.
    """
    run = CACHE / f"{objective}-{scale:g}"
    if not (run / "model" / "model.safetensors").exists():
        elmo = objective == "bilm"
        text, shape = everyday_file(scale) if elmo else text_file(scale), CACHE / "shape.json"
        write_json_atomic(shape, asdict(SHAPE))
        config = PretrainConfig(
            corpus=(text,),
            text_format="lines",
            model="tiny" if elmo else str(shape),
            architecture="elmo" if elmo else None,
            objective=objective,
            out=run,
            vocab_size=VOCABULARY,
            batch_size=32,
            max_length=32 if elmo else 64,
            lr=3e-3 if elmo else 1e-3,
            steps=max(round(STEPS[objective] * scale), 10),
            eval_samples=256,
            resume=True,
        )
        result = pretrain(config, Reporter(on_step=progress()))
        print(
            f"\ntrained {objective}: a loss of {result.validation.mlm_loss:.2f} nats per predicted token;"
            f" word frequencies alone give {result.unigram_cross_entropy:.2f}",
            file=sys.stderr,
        )
    return run / "model"


def shards(tokenizer: WordPieceTokenizer, scale: float = 1.0) -> TokenShards:
    """Return `text_file` as token shards of a tokenizer, written on first use."""
    out = CACHE / f"shards-{scale:g}-{tokenizer.fingerprint[:8]}"
    if not out.exists():
        prepare(Corpus.find(text_file(scale), text_format="lines"), tokenizer, out)
    return TokenShards.open(out)


def progress() -> Callable[[Record, float], None]:
    """Return a hook that shows how much of a training is done, on standard error, in steps of 2 %."""
    shown = -1

    def on_step(record: Record, done: float) -> None:
        nonlocal shown
        if int(done * 50) > shown:
            shown = int(done * 50)
            print(f"\rtraining: {done:4.0%}, loss {record['loss']:.2f}", end="", file=sys.stderr, flush=True)

    return on_step


def draw_matrix(
    axes: Any,
    values: Any,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    *,
    low: float = 0.0,
    high: float | None = None,
    numbers: bool = False,
) -> Any:
    """Draw a matrix (rows, columns), darker is more, with names at its sides; `numbers` writes each value too. Return
    the image, for a colour bar."""
    values = np.asarray(values)
    image = axes.imshow(values, cmap=SEQUENTIAL, vmin=low, vmax=high, aspect="auto" if len(rows) == 0 else "equal")
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    if numbers:
        dark = (image.norm.vmax + image.norm.vmin) / 2
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                axes.text(
                    column, row, f"{value:.2f}".replace("0.", ".").replace("1.00", "1"), ha="center", va="center",
                    fontsize=7, color="white" if value > dark else "black",
                )  # fmt: skip
    return image
