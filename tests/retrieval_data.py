"""A toy model with a masked-LM head, and files of groups of texts about topics that it learns in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from toy_tasks import BAD, GOOD, PLAIN, VOCABULARY

from fastbert import BertConfig, BertForMaskedLM, WordPieceTokenizer

TOPICS = (*GOOD, *BAD)


def masked_folder(folder: Path, seed: int = 0, **config: object) -> Path:
    """A model's folder with a masked-LM head."""
    shape = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
    }
    model = BertForMaskedLM(BertConfig(**{**shape, **config}))  # type: ignore[arg-type]
    model.init_weights(seed=seed)
    model.save_pretrained(folder)
    WordPieceTokenizer(list(VOCABULARY), do_lower_case=True).save_pretrained(folder)
    return folder


def about(random: Random, topic: str, words: int) -> str:
    """Plain words with a topic among them."""
    chosen = random.choices(PLAIN, k=words)
    chosen[random.randrange(words)] = topic
    return " ".join(chosen)


def triplets(path: Path, count: int, seed: int = 0, negatives: int = 1, **more: Any) -> Path:
    """A line per anchor, with a positive on the same topic and negatives on others."""
    random, lines = Random(seed), []
    for _ in range(count):
        topic = random.choice(TOPICS)
        others = random.sample([other for other in TOPICS if other != topic], negatives)
        line = {
            "anchor": about(random, topic, random.randint(3, 9)),
            "positive": about(random, topic, random.randint(3, 12)),
            **({"negatives": [about(random, other, random.randint(3, 12)) for other in others]} if negatives else {}),
            **more,
        }
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n")
    return path


def scored(path: Path, count: int, seed: int = 0) -> Path:
    """Pairs of sentences with a score of 5 for the same topic, else 0 to 2."""
    random, lines = Random(seed), ["score\tsentence1\tsentence2"]
    for _ in range(count):
        first, second = random.choice(TOPICS), random.choice(TOPICS)
        score = 5.0 if first == second else random.randint(0, 4) / 2
        lines.append(f"{score}\t{about(random, first, 5)}\t{about(random, second, 6)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def lists(path: Path, count: int, seed: int = 0, candidates: int = 4) -> Path:
    """Queries with candidates and their grades, of unequal numbers."""
    random, lines = Random(seed), []
    for number in range(count):
        topic = random.choice(TOPICS)
        others = random.sample([other for other in TOPICS if other != topic], candidates + number % 2)
        texts = [about(random, topic, 7), *(about(random, other, 8) for other in others)]
        line = {"query": about(random, topic, 4), "documents": texts, "labels": [2] + [0] * len(others)}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n")
    return path
