"""Small models with random weights of every family that has a masked-LM head, each with a tokenizer of its kind: as
folders of transformers, for tests of the commands."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from toy_tasks import VOCABULARY, sentence

from fastbert import WordPieceTokenizer
from fastbert.models import registry

BERT_SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64, "initializer_range": 0.4,
}  # fmt: skip
ROBERTA_SHAPE = BERT_SHAPE | {"max_position_embeddings": 66, "type_vocab_size": 1}
SHAPES = {
    "bert": ("Bert", "wordpiece", BERT_SHAPE),
    "distilbert": (
        "DistilBert",
        "wordpiece",
        {
            "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 64,
            "initializer_range": 0.4,
        },
    ),
    "electra": ("Electra", "wordpiece", BERT_SHAPE | {"embedding_size": 32}),
    "roberta-wordpiece": ("Roberta", "wordpiece", ROBERTA_SHAPE | {"pad_token_id": 0}),  # such as klue/roberta-base
    "roberta": ("Roberta", "bpe", ROBERTA_SHAPE),
    "xlm-roberta": ("XLMRoberta", "unigram", ROBERTA_SHAPE),
    "camembert": ("Camembert", "camembert", ROBERTA_SHAPE),
}  # fmt: skip
FAMILIES = [
    name
    for name, (prefix, _, _) in SHAPES.items()
    if any(record.class_prefix == prefix and record.config is not None for record in registry.ARCHITECTURES.values())
]
every_family = pytest.mark.parametrize("family", [name for name in FAMILIES if name != "bert"])  # it has its own tests


def corpus() -> list[str]:
    random = Random(0)
    return [sentence(random, bool(number % 2)) + " ." for number in range(200)]


@functools.cache
def _trained(kind: str) -> Any:
    """Train byte-level BPE or Unigram on a small corpus; return transformers' tokenizer."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    mask = tokenizers.AddedToken("<mask>", lstrip=True, special=True, normalized=False)
    if kind in ("bpe", "gpt2"):
        special = ["<|endoftext|>"] if kind == "gpt2" else ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trained = tokenizers.Tokenizer(tokenizers.models.BPE())
        trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        trained.train_from_iterator(corpus(), trainer)
        model = json.loads(trained.to_str())["model"]
        merges = [tuple(pair) for pair in model["merges"]]
        if kind == "gpt2":
            return transformers.GPT2Tokenizer(vocab=model["vocab"], merges=merges, model_max_length=64)
        return transformers.RobertaTokenizer(vocab=model["vocab"], merges=merges, mask_token=mask, model_max_length=64)
    trained = tokenizers.Tokenizer(tokenizers.models.Unigram())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=90, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(corpus(), trainer)
    pieces = [(piece, score) for piece, score in json.loads(trained.to_str())["model"]["vocab"]]
    pieces = [pair for pair in pieces if pair[0] != "<unk>"]
    if kind == "camembert":
        special = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
        vocab = [*((name, 0.0) for name in special), *pieces, ("<s>", 0.0), ("</s>", 0.0), ("<mask>", 0.0)]
        return transformers.CamembertTokenizer(vocab=vocab, mask_token=mask, model_max_length=64)
    vocab = [*((name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")), *pieces, ("<mask>", 0.0)]
    return transformers.XLMRobertaTokenizer(vocab=vocab, mask_token=mask, model_max_length=64)


def save_tokenizer(kind: str, folder: Path) -> int:
    """Write a tokenizer to a folder; return its size."""
    if kind == "wordpiece":
        tokenizer = WordPieceTokenizer(list(VOCABULARY), model_max_length=64)
        tokenizer.save_pretrained(folder)
        return len(tokenizer)
    _trained(kind).save_pretrained(folder)
    return len(_trained(kind))


def save_family(family: str, folder: Path, seed: int, head: str = "ForMaskedLM", **config: Any) -> Path:
    """Write a model of transformers and its tokenizer to a folder."""
    transformers = pytest.importorskip("transformers")
    prefix, kind, shape = SHAPES[family]
    folder.mkdir(parents=True, exist_ok=True)
    size = save_tokenizer(kind, folder)
    torch.manual_seed(seed)
    made = getattr(transformers, f"{prefix}Config")(vocab_size=size, **shape, **config)
    model = getattr(transformers, f"{prefix}{head}")(made)
    model.save_pretrained(folder)
    return folder
