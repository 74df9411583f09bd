"""Cross-encoders as contenders: a round is one ranking of all texts for a query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks.cpu.embed_contender import EmbedLineup, TextWorkload, text_arrays
from fastbert.benchmarks.cpu.lineup import Verdict, compare
from fastbert.benchmarks.cpu.random_models import random_model
from fastbert.benchmarks.cpu.workloads import SEED, encoder_operations, lognormal_lengths, unread_operations
from fastbert.config import BertConfig
from fastbert.tokenizers import WordPieceTokenizer

IDENTITY = "torch.nn.modules.linear.Identity"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MINILM = BertConfig(
    hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, num_labels=1,
    extra={"sentence_transformers": {"activation_fn": IDENTITY}},
)  # fmt: skip
QUERY_TOKENS, LONGEST = 12, 256
LENGTHS = (f"full-{LONGEST}", "mixed lengths")
AROUND = 3  # special tokens of a pair
WARMING_TEXTS = 16


class RerankLineup(EmbedLineup):
    """The cross-encoders that take part; the order of their scores is compared too."""

    def verdict(self, expected: np.ndarray, values: np.ndarray, dtype: str, reference: str) -> Verdict:
        """Return how scores (1, pairs) differ from the reference's, with Kendall's tau."""
        verdict = compare(expected, values, dtype, reference)
        if expected.shape != values.shape or not np.isfinite(values).all():
            return verdict
        tau = float(f"{kendall_tau(expected[0], values[0]):.5g}")
        return verdict._replace(details={**verdict.details, "kendall_tau": tau, "note": f"tau {tau:.4f}"})


def kendall_tau(a: np.ndarray, b: np.ndarray) -> float:
    """Return Kendall's tau-a of two rankings (items,): the share of concordant pairs minus that of discordant ones."""
    signs = np.sign(a[:, None] - a) * np.sign(b[:, None] - b)
    return float(signs.sum() / max(len(a) * (len(a) - 1), 1))


def word_tokenizer(config: BertConfig) -> WordPieceTokenizer:
    """Return a tokenizer of words w0, w1, ..., a token each."""
    words = [f"w{index}" for index in range(config.vocab_size - len(SPECIAL))]
    return WordPieceTokenizer([*SPECIAL, *words], model_max_length=config.max_position_embeddings)


def random_pairs(lengths: Sequence[int], words: int) -> tuple[str, list[str]]:
    """Return a query and a text per pair of so many tokens, of random words."""
    rng = np.random.default_rng(SEED)

    def text(tokens: int) -> str:
        return " ".join(f"w{index}" for index in rng.integers(0, words, tokens))

    return text(QUERY_TOKENS), [text(max(length - AROUND - QUERY_TOKENS, 0)) for length in lengths]


def random_cross_encoder(
    config: BertConfig, tokenizer: WordPieceTokenizer, query: str, texts: Sequence[str], seed: int = SEED
) -> Any:
    """Return a cross-encoder with random weights whose classifier reads the direction in which the texts differ most,
    as a trained one does: in a random direction their scores hardly differ, and rounding would reorder them."""
    import torch

    from fastbert.models import BertForSequenceClassification

    model = random_model(BertForSequenceClassification, config, seed)
    with torch.no_grad():
        batch = tokenizer.pack([query] * len(texts), texts, max_length=config.max_position_embeddings)
        pooled = model.bert(batch).pooler_output
        model.classifier.weight.copy_(torch.linalg.svd(pooled - pooled.mean(0), full_matrices=False)[2][:1])
    return model


def write_model(folder: Path, config: BertConfig = MINILM) -> None:
    """Write a cross-encoder with random weights, and its tokenizer."""
    tokenizer = word_tokenizer(config)
    query, texts = random_pairs([64] * 64, len(tokenizer) - len(SPECIAL))
    random_cross_encoder(config, tokenizer, query, texts).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def workloads(folder: Path, pairs: int) -> list[TextWorkload]:
    """Return the workloads: pairs of 256 tokens each, and pairs of mixed lengths up to 256."""
    from fastbert.tokenizers.loading import load_tokenizer

    config, tokenizer = BertConfig.from_pretrained(folder), load_tokenizer(folder)
    words = sum(token.startswith("w") and token[1:].isdigit() for token in tokenizer.get_vocab())
    if not words:
        return [_workload("own vocabulary", *_spelled_pairs(pairs), config, tokenizer)]
    shortest = AROUND + QUERY_TOKENS + 1
    mixed = [max(length, shortest) for length in lognormal_lengths(pairs, LONGEST)]
    return [
        _workload(name, *random_pairs(lengths, words), config, tokenizer)
        for name, lengths in zip(LENGTHS, ([LONGEST] * pairs, mixed))
    ]


def _spelled_pairs(pairs: int) -> tuple[str, list[str]]:
    """Return a query and texts of Python's own documentation, for a model with a vocabulary of its own."""
    from fastbert.data.python_text import python_documents

    sentences = [" ".join(text.split()) for document in python_documents(pairs * 4000) for text in document]
    texts = [text for text in sentences if text][:pairs]
    return "how do I read a file", texts


def _workload(name: str, query: str, texts: Sequence[str], config: BertConfig, tokenizer: Any) -> TextWorkload:
    batch = tokenizer.pack([query] * len(texts), list(texts), max_length=config.max_position_embeddings)
    lengths = batch.cu_seqlens.diff().tolist()
    tokens = sum(lengths)
    return TextWorkload(
        name=f"{len(texts)} pairs, {name}",
        tokens=tokens,
        # The last layer is read at first tokens alone.
        operations=encoder_operations(config, lengths) - unread_operations(config) * (tokens - len(texts)),
        arrays=text_arrays([query, *texts], [query, *texts[:WARMING_TEXTS]]),
        note=f"{tokens:,} tokens, at most {max(lengths)} per pair",
        texts=len(texts),
    )
