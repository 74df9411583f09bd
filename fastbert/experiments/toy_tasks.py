"""Small task sets made of the English text that comes with Python: something of every kind to learn, in seconds.

They check that an experiment runs; their scores mean nothing beside those of real sets.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from fastbert.data.python_text import python_documents
from fastbert.io.atomic_write import write_atomic
from fastbert.tasks.registry import TaskName

CORPUS_BYTES = 150_000
_WORD = re.compile(r"\w+|[^\w\s]")
_FUNCTION_WORDS = frozenset(
    (
        "the", "a", "an", "this", "that", "these", "those", "of", "in", "on", "at", "by", "for", "with", "from", "to",
        "as", "and", "or", "but", "not", "if", "when", "it", "is", "are", "was", "be", "has", "have", "can", "may",
        "must", "will", "its", "their", "which",
    )
)  # fmt: skip
ToySets = dict[str, tuple[TaskName, str, tuple[Path, Path], str]]


def write_toy_tasks(work: Path, train: int, evaluate: int) -> tuple[Path, ToySets]:
    """Write a corpus and three sets: whether a sentence follows another, kinds of words, and questions whose answer is
    a word of a sentence. Return the corpus, and task, metric and files by name."""
    documents = list(python_documents(CORPUS_BYTES))
    corpus = work / "python.txt"
    write_new(corpus, "\n\n".join("\n".join(document) for document in documents) + "\n")
    kinds: tuple[tuple[str, TaskName, str, str, Iterator[str]], ...] = (
        ("pairs", "classification", "accuracy", "label\tsentence1\tsentence2\n", _pairs(documents)),
        ("words", "tagging", "accuracy", "", _words(documents)),
        ("answers", "span", "f1", "", _answers(documents)),
    )
    sets: ToySets = {}
    for name, task, metric, header, examples in kinds:
        suffix = {"classification": "tsv", "tagging": "conll", "span": "json"}[task]
        folder = work / "sets" / f"{name}-{train}-{evaluate}"
        files = (folder / f"train.{suffix}", folder / f"eval.{suffix}")
        for file, count in zip(files, (train, evaluate), strict=True):
            chosen = [example for example, _ in zip(examples, range(count), strict=False)]
            paragraphs = ",".join(chosen)
            text = (
                f'{{"data": [{{"title": "toy", "paragraphs": [{paragraphs}]}}]}}' if task == "span" else "".join(chosen)
            )
            write_new(file, header + text)
        sets[name] = (task, metric, files, "")
    return corpus, sets


def write_toy_pairs(work: Path, corpus: Path, count: int = 40) -> Path:
    """Write minimal pairs of sentences of the corpus: as they are, and with two neighbouring words exchanged."""
    draw, lines = random.Random("minimal pairs"), ["phenomenon\tparadigm\tgood\tbad\n"]
    for sentence in corpus.read_text(encoding="utf-8").split("\n"):
        words = sentence.split()
        positions = [position for position in range(len(words) - 1) if words[position] != words[position + 1]]
        if 4 < len(words) < 20 and positions and len(lines) <= count:
            position = draw.choice(positions)
            exchanged = [*words[:position], words[position + 1], words[position], *words[position + 2 :]]
            order = "short" if len(words) < 12 else "long"
            lines.append(f"word_order\t{order}_sentences\t{' '.join(words)}\t{' '.join(exchanged)}\n")
    write_new(work / "sets" / "pairs.tsv", "".join(lines))
    return work / "sets" / "pairs.tsv"


def _pairs(documents: list[list[str]]) -> Iterator[str]:
    draw = random.Random("pairs")
    for document in documents:
        for first, second in pairwise(document):
            follows = draw.random() < 0.5
            other = second if follows else draw.choice(draw.choice(documents))
            yield f"{'next' if follows else 'other'}\t{_cell(first)}\t{_cell(other)}\n"


def _words(documents: list[list[str]]) -> Iterator[str]:
    for sentence in _sentences(documents):
        lines = [f"{word}\t{_kind(word)}\n" for word in _WORD.findall(sentence)[:40]]
        yield "".join(lines) + "\n"


def _kind(word: str) -> str:
    if not word[0].isalnum():
        return "PUNCT"
    if word[0].isdigit():
        return "NUM"
    if word.lower() in _FUNCTION_WORDS:
        return "FUNC"
    return "NAME" if word[0].isupper() else "WORD"


def _answers(documents: list[list[str]]) -> Iterator[str]:
    draw = random.Random("answers")
    for number, sentence in enumerate(_sentences(documents)):
        words = [match for match in re.finditer(r"[a-z]{4,}", sentence) if sentence.count(match[0]) == 1]
        if not words:
            continue
        answer = draw.choice(words)
        question = f"{sentence[: answer.start()]}what{sentence[answer.end() :]}"
        span = {"text": answer[0], "answer_start": answer.start()}
        yield json.dumps({"context": sentence, "qas": [{"id": str(number), "question": question, "answers": [span]}]})


def _sentences(documents: list[list[str]]) -> Iterator[str]:
    return (sentence for document in documents for sentence in document if 20 < len(sentence) < 160)


def _cell(text: str) -> str:
    return text.replace("\t", " ")


def write_new(path: Path, text: str) -> None:
    """Write a file with its folder, unless it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_atomic(path, text)
