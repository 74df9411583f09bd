"""A corpus of documents on topics of their own, in the words of the toy tasks."""

from __future__ import annotations

from pathlib import Path
from random import Random

from toy_tasks import BAD, GOOD, PLAIN


def write_corpus(path: Path, documents: int, sentences: int = 12, seed: int = 0) -> Path:
    """A sentence per line of words from the six of its document."""
    random, texts = Random(seed), []
    for _ in range(documents):
        topic = random.sample((*PLAIN, *GOOD, *BAD), 6)
        texts.append("\n".join(" ".join(random.choices(topic, k=7)) + "." for _ in range(sentences)))
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path
