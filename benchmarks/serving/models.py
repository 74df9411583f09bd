"""The models that are served: MiniLM, and random weights in published shapes with a vocabulary of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fastbert.benchmarks.bench_embed import minilm_folder
from fastbert.benchmarks.cpu.random_models import write_embedder
from fastbert.config import BertConfig
from fastbert.errors import UserError

VOCABULARY = 8000
MINILM = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
BGE_SMALL = BertConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=12, intermediate_size=1536)
EMPTY = BertConfig.preset("tiny", num_hidden_layers=1)


def minilm(folder: Path, texts: Sequence[str]) -> Path:
    """Return MiniLM's folder if its package is installed, else write one of its shape with random weights."""
    try:
        return minilm_folder()
    except UserError:
        return random_embedder(folder / "minilm", MINILM, texts)


def random_embedder(folder: Path, config: BertConfig, texts: Sequence[str]) -> Path:
    """Write an embedder with random weights, and MiniLM's tokenizer if its package is installed, else one learned from
    the texts, to whose size the vocabulary is reduced; return its folder."""
    try:
        tokenizer = minilm_folder()
    except UserError:
        tokenizer, entries = _learned_tokenizer(folder.with_name("tokenizer"), texts)
        config = replace(config, vocab_size=entries)
    return write_embedder(folder, config, tokenizer)


def _learned_tokenizer(folder: Path, texts: Sequence[str]) -> tuple[Path, int]:
    """Write a tokenizer, unless another model has, and return its folder and its size."""
    from fastbert.tokenizers import WordPieceTokenizer, train_vocabulary

    if not folder.exists():
        WordPieceTokenizer(train_vocabulary(list(texts), VOCABULARY)).save_pretrained(folder)
    return folder, len(WordPieceTokenizer.from_pretrained(folder))
