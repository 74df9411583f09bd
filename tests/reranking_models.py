"""Models of every family with random weights, in folders with a WordPiece tokenizer."""

from pathlib import Path
from typing import Any

import torch
from embedding import LETTERS
from toys import SHAPE, VOCABULARY, toy

from fastbert import WordPieceTokenizer

SPECIAL = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]  # the toys' padding has the id 1
WORDS = [*LETTERS, *(f"##{letter}" for letter in LETTERS), *",.!"]
PIECES = [*SPECIAL, *WORDS, *(f"[unused{index}]" for index in range(VOCABULARY - len(SPECIAL) - len(WORDS)))]
POSITIONS = SHAPE["max_position_embeddings"] - 2  # RoBERTa's begin at 2


def model_folder(folder: Path, name: str, seed: int, config: dict[str, Any] | None = None, **options: Any) -> Path:
    """Save a model by its class's name, with further keys in its config.json, and a tokenizer."""
    # The tokenizer numbers the segments of a pair, in models that have none by default too.
    segments = {} if name.startswith("DistilBert") else {"type_vocab_size": 2}
    model = toy(name, seed, **segments, **options)
    with torch.no_grad():  # so that each vector depends on all tokens of its text
        for key, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.5 if "word_embeddings" in key else 1.2 / parameter.shape[1] ** 0.5)
            elif "LayerNorm" in key or "layer_norm" in key:
                parameter.fill_(1.0 if key.endswith("weight") else 0.1)
    for key, value in (config or {}).items():
        setattr(model.config, key, value)
    model.save_pretrained(folder)
    WordPieceTokenizer(PIECES, model_max_length=POSITIONS).save_pretrained(folder)
    return folder


def cross_encoder(folder: Path, family: str, seed: int, num_labels: int = 1, **config: Any) -> Path:
    """Save a classifier of a family."""
    return model_folder(folder, f"{family}ForSequenceClassification", seed, config, num_labels=num_labels)
