"""Batches with the lengths of real texts: sentences of Wikipedia, and paragraphs and questions of SQuAD.

The texts are those of the data folder, tokenized by fastbert with the vocabulary of bert-base-uncased. Only lengths are
taken from them: tokens are random, as in the other workloads.
"""

from __future__ import annotations

import itertools
import json
import lzma
import tarfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastbert.benchmarks.cpu.workloads import Workload, batch
from fastbert.benchmarks.harness.texts import ENGLISH, UNCASED, packed_lines
from fastbert.config import BertConfig

LONGEST = 512
SEQUENCES, LONG_SEQUENCES, QUICK_SEQUENCES = 32, 8, 4
FIRST_TEXTS = 3200  # of a file, over which the choice is spread
WIKIPEDIA, SQUAD = "wiki-en/wiki_en.sent.txt.xz", "finetune/squad.tar.xz"
SQUAD_MEMBER = "squad/train-v1.1.prefix.json"
VOCABULARY = f"vocab/{UNCASED}-vocab.txt.xz"


class Source(NamedTuple):
    """The texts of a workload: their file in the data folder, the function that reads them, what they are, and how many
    of them are a batch."""

    file: str
    read: Callable[[Path], Sequence[str]]
    words: str
    sequences: int = SEQUENCES


def sentences(path: Path) -> list[str]:
    """Return the first sentences of a packed text."""
    return list(itertools.islice(packed_lines(path), FIRST_TEXTS))


def paragraphs(path: Path) -> list[str]:
    """Return the first paragraphs of SQuAD."""
    return [paragraph["context"].strip() for paragraph in _squad(path)][:FIRST_TEXTS]


def questions(path: Path) -> list[str]:
    """Return the first questions of SQuAD."""
    return [question["question"].strip() for paragraph in _squad(path) for question in paragraph["qas"]][:FIRST_TEXTS]


SOURCES = {
    ENGLISH: Source(WIKIPEDIA, sentences, "sentences of Wikipedia"),
    "squad paragraphs": Source(SQUAD, paragraphs, "paragraphs of SQuAD", LONG_SEQUENCES),
    "queries": Source(SQUAD, questions, "questions of SQuAD"),
}


def batches(config: BertConfig, data: Path, quick: bool = False) -> list[Workload]:
    """Return a batch per source whose file is in the data folder; `quick` ones have four sequences."""
    made = []
    for name, source in SOURCES.items():
        if not missing(data, source):
            count = QUICK_SEQUENCES if quick else source.sequences
            lengths = [min(length, config.max_position_embeddings) for length in lengths_of(name, data, count)]
            origin = f"lengths of {count} {source.words}"
            made.append(batch(name, lengths, max(lengths), config, origin=origin))
    return made


def missing(data: Path, source: Source) -> str | None:
    """Return the first file of a source that the data folder lacks; None if it has all."""
    return next((file for file in (source.file, VOCABULARY) if not (data / file).is_file()), None)


@lru_cache
def lengths_of(name: str, data: Path, count: int) -> tuple[int, ...]:
    """Return the lengths in tokens, with [CLS] and [SEP] and at most 512, of texts at equal distances in their file."""
    from fastbert.tokenizers import WordPieceTokenizer

    source = SOURCES[name]
    texts = source.read(data / source.file)
    chosen = [texts[index * len(texts) // count] for index in range(count)]
    vocabulary = lzma.decompress((data / VOCABULARY).read_bytes()).decode().splitlines()
    _, offsets = WordPieceTokenizer(vocabulary).encode_ragged(chosen, True, max_length=LONGEST)
    return tuple(np.diff(offsets).tolist())


@lru_cache
def _squad(path: Path) -> list[dict[str, Any]]:
    """Return the paragraphs of SQuAD's training set, each with its questions."""
    with tarfile.open(path) as archive:
        file = archive.extractfile(SQUAD_MEMBER)
        assert file is not None
        articles = json.load(file)["data"]
    return [paragraph for article in articles for paragraph in article["paragraphs"]]
