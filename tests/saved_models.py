"""Random models that are saved with settings, each with a tokenizer, for tests of folders of sentence-transformers."""

from pathlib import Path
from typing import Any

import torch
from embedding import random_texts
from reranking_models import PIECES, POSITIONS, model_folder

import fastbert
from fastbert import WordPieceTokenizer
from fastbert.checkpoints.manifest import verify_files
from fastbert.embeddings.settings import Dense
from fastbert.retrieval.saving import save_with_settings

LONG = " ".join("abcdefgh" * 12)
EDGES = ["", "a, b. c!", LONG, ", .", "A B c"]
PROMPTS = {"query": "q a ", "document": "d "}
WIDTH, OUT = 64, 24


def texts_of(seed: int) -> list[str]:
    return [*EDGES, *random_texts(seed, 12, most=45)]


def layer(seed: int, width: int = WIDTH, out: int = OUT) -> Dense:
    """A projection without bias."""
    generator = torch.Generator().manual_seed(seed)
    return Dense(torch.randn(out, width, generator=generator) / width**0.5, None, "Identity")


def tokenizer_of(cased: bool = False) -> WordPieceTokenizer:
    return WordPieceTokenizer(PIECES, model_max_length=POSITIONS, do_lower_case=not cased)


def saved(
    tmp_path: Path, name: str, seed: int, settings: Any, *, cased: bool = False, before: bool = False, **options: Any
) -> Path:
    """Save a random model with settings, and its tokenizer before or afterwards."""
    plain, folder = model_folder(tmp_path / "plain", name, seed, **options), tmp_path / "saved"
    if before:
        tokenizer_of(cased).save_pretrained(folder)
    save_with_settings(fastbert.load(plain), settings, folder)
    if not before:
        tokenizer_of(cased).save_pretrained(folder)
    verify_files(folder, "model", "tokenizer", "embedder")
    assert not list(tmp_path.rglob("*partial*"))
    return folder
