"""For tests of tasks: a small vocabulary in our tokenizer and transformers', and a small model in both libraries."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastbert import BertConfig, WordPieceTokenizer, models
from fastbert.tasks.rows import Rows, TaskBatch

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
VOCABULARY = [
    *(
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "##ing",
        "##er",
        "##한",
        "é",
        "中",
        "国",
        "日",
        ".",
        ",",
        "-",
    ),
    *("(", ")", "'", "?", *LETTERS, *(f"##{letter}" for letter in LETTERS)),
]
WORDS = [
    *("the", "walking", "walker", "x", "1999", "café", "cafe\u0301", "中国", "日", "🙂", "don't", "well-known", "(ab)"),
    *("ABC", "zz.", "q,r", "\u00a0", "a" * 101, "naïve", "e\u0301\u0327t", "x\u200by", "[SEP]", "\u3000", "ß"),
]
POSITIONS = 512


def our_tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(VOCABULARY)


def their_tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.BertTokenizerFast(vocab={token: index for index, token in enumerate(VOCABULARY)})


def some_text(rng: random.Random, words: int) -> str:
    """So many words with spaces of all kinds between them."""
    return "".join(rng.choice(WORDS) + rng.choice([" ", " ", " ", "  ", "\n", "\t"]) for _ in range(words))


def twins(name: str, folder: Path, seed: int, num_labels: int = 2) -> tuple[Any, Any]:
    """Our model and transformers' on the same weights, without dropout, to be trained."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=POSITIONS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=num_labels,
    )
    model = getattr(models, name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model.train(), getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").train()


def batches(rows: Rows, units: int) -> Iterator[TaskBatch]:
    """All units in turn, so many at a time."""
    for first in range(0, rows.units, units):
        yield rows.batch(np.arange(first, min(first + units, rows.units)))


def all_outputs(task: Any, model: Any, rows: Rows, batch_tokens: int = 400) -> list[np.ndarray]:
    """Return a model's outputs for every row in the rows' order, computed with the longest rows first."""
    result: list[Any] = [None] * len(rows)
    with torch.no_grad():
        for chosen in rows.by_length(batch_tokens):
            outputs = task.outputs(model.eval(), TaskBatch(inputs=rows.packed(chosen), targets={}))
            for row, output in zip(chosen.tolist(), outputs, strict=True):
                result[row] = output
    return result


def rows_of(rows: Rows) -> list[tuple[list[int], list[int]]]:
    """The ids and the types of each row."""
    return [
        (rows.input_ids[begin:end].tolist(), rows.token_type_ids[begin:end].tolist())
        for begin, end in zip(rows.offsets.tolist(), rows.offsets[1:].tolist())
    ]


def gradient_difference(model: Any, original: Any) -> float:
    """The largest difference of two models' gradients, as a part of the largest gradient of the parameter."""
    worst = 0.0
    reference = dict(original.named_parameters())
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and reference[name].grad is not None:
            scale = reference[name].grad.abs().max().clamp(min=1e-3)
            worst = max(worst, float((parameter.grad - reference[name].grad).abs().max() / scale))
    return worst
