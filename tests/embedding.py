"""A small encoder with its tokenizer and texts of many lengths, for tests of embeddings."""

import random
from pathlib import Path

import torch

from fastbert import BertConfig, BertModel, WordPieceTokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
POSITIONS = 48


def small_tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(VOCABULARY, model_max_length=POSITIONS)


def small_model(seed: int, width: int = 32) -> BertModel:
    """Weights and biases that all matter."""
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=2 * width + 8,
        max_position_embeddings=POSITIONS,
    )
    model = BertModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        spread = 1 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.3
        parameter.data = torch.randn(parameter.shape, generator=generator) * spread
    return model


def random_texts(seed: int, count: int, most: int = 60) -> list[str]:
    """Texts of 0 to `most` words of a letter: as many tokens."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(LETTERS, k=rng.randint(0, most))) for _ in range(count)]


def saved(folder: Path, seed: int) -> Path:
    """The model and its tokenizer as a Hugging Face folder."""
    small_model(seed).save_pretrained(folder)
    small_tokenizer().save_pretrained(folder)
    return folder
