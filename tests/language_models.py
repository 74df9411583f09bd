"""Small language models with a tokenizer and texts, for tests of scores."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import transformers

from fastbert import WordPieceTokenizer

WORDS = ("a", "b", "cat", "dog", "runs", "sees", "the", ".", "un")
PIECES = ("##s", "##ing", "##d", "##a")
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *PIECES]
SIZE, POSITIONS = 64, 24
SHAPE = {"vocab_size": SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer([*VOCABULARY, *(f"w{number}" for number in range(SIZE - len(VOCABULARY)))])


def saved(folder: Path, kind: str, **config: Any) -> Any:
    """Write a model of transformers, whose weights all matter, with its tokenizer; return the model."""
    family = next(name for name in ("Roberta", "DistilBert", "GPT2", "Bert") if kind.startswith(name))
    values: dict[str, Any] = {**SHAPE, "intermediate_size": 48, "max_position_embeddings": POSITIONS}
    if family == "Roberta":  # whose positions begin behind that of the padding
        values |= {"max_position_embeddings": POSITIONS + 1, "pad_token_id": 0}
    elif family == "DistilBert":
        values = {"vocab_size": SIZE, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
        values |= {"max_position_embeddings": POSITIONS}
    elif family == "GPT2":
        values = {"vocab_size": SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}
        values |= {"bos_token_id": 2, "eos_token_id": 3}
    torch.manual_seed(len(kind))
    model = getattr(transformers, kind)(getattr(transformers, f"{family}Config")(**values, **config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model.eval()


def sentences(seed: int, count: int) -> list[str]:
    """Sentences that share words, beginnings and whole texts, some of them without a token."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices([*WORDS, "cats", "running", "cat"], k=rng.randint(0, 9))) for _ in range(count)]
    pairs = [text.replace("cat", "dog") for text in texts if "cat" in text]
    return [*texts, *pairs, texts[0], texts[-1]]
