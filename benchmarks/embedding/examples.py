"""Make examples for embedders and rerankers, in every form that a loss reads, from SNLI and STS-B.

A premise of SNLI with an entailed and a contradicting sentence is a triplet; pairs, labels and lists are made from
triplets. `without_duplicates` leaves no text twice, so that no batch holds a false negative.
"""

from __future__ import annotations

import csv
import json
import re
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

ExampleForm = Literal["triplets", "pairs", "scored", "binary", "taught", "labelled", "graded", "lists"]
CANDIDATES = 4
"""Texts per list."""
TEACHER_SCALE = 10.0


@dataclass(frozen=True)
class Example:
    """Texts, with the label or score of a pair, or those of all texts after the first."""

    texts: tuple[str, ...]
    labels: tuple[float, ...] = ()


def snli_triplets(path: Path, *, distinct: bool = False) -> list[Example]:
    """Return the triplets of a file of SNLI; `distinct` leaves out those with a text that an earlier one has."""
    by_premise: dict[str, dict[str, list[str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            by_premise.setdefault(row["premise"], {}).setdefault(row["label"], []).append(row["hypothesis"])
    triplets = [
        Example((premise, positive, negative))
        for premise, by_label in by_premise.items()
        for positive, negative in zip(by_label.get("entailment", ()), by_label.get("contradiction", ()))
    ]
    return without_duplicates(triplets) if distinct else triplets


def stsb_pairs(path: Path) -> list[Example]:
    """Return the pairs of a file of STS-B with their scores, from 0 to 1."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Example((row["sentence1"], row["sentence2"]), (float(row["score"]) / 5.0,)) for row in rows]


def squad_pairs(path: Path) -> list[Example]:
    """Return the questions of a file of SQuAD with their paragraphs."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    return [
        Example((question["question"].strip(), paragraph["context"].strip()))
        for paragraph in paragraphs
        for question in paragraph["qas"]
    ]


def batches_without_duplicates(examples: Sequence[Example], batch_size: int, seed: int) -> list[list[Example]]:
    """Return the batches of an epoch in which no text occurs twice, as sentence-transformers' sampler without
    duplicates forms them: examples that do not fit into a batch wait for a later one."""
    left = list(range(len(examples)))
    Random(seed).shuffle(left)
    batches: list[list[Example]] = []
    while left:
        batch: list[int] = []
        texts: set[str] = set()
        for number in left:
            if texts.isdisjoint(examples[number].texts):
                batch.append(number)
                texts.update(examples[number].texts)
                if len(batch) == batch_size:
                    break
        taken = set(batch)
        left = [number for number in left if number not in taken]
        batches.append([examples[number] for number in batch])
    return batches


def without_duplicates(examples: Iterable[Example]) -> list[Example]:
    """Return the examples whose texts differ from each other and from those of all earlier ones."""
    seen: set[str] = set()
    result = []
    for example in examples:
        texts = {text.strip() for text in example.texts}
        if len(texts) == len(example.texts) and not texts & seen:
            seen |= texts
            result.append(example)
    return result


def in_form(form: ExampleForm, triplets: Sequence[Example], scored: Sequence[Example]) -> list[Example]:
    """Return examples of a form: `scored` pairs as they are, all others made of triplets.

    - pairs: anchor and positive; binary: a positive or a negative in turn, with the score 1 or 0;
    - taught: a triplet with one more negative, that of the example before, and scores of a teacher, which counts words;
    - labelled: binary under the names of queries and documents;
    - graded: a query with `CANDIDATES` texts of the grades 2, 1, 0 and 0; lists: of the labels 1, 0, 0 and 0.
    """
    if form == "scored":
        return list(scored)
    if form == "triplets":
        return list(triplets)
    if form == "pairs":
        return [Example(each.texts[:2]) for each in triplets]
    if form in ("binary", "labelled"):
        return [
            Example((each.texts[0], each.texts[1 + number % 2]), (float(1 - number % 2),))
            for number, each in enumerate(triplets)
        ]
    examples = []
    for number, each in enumerate(triplets):
        before = triplets[number - 1].texts
        if form == "taught":
            texts = (*each.texts, before[2])
            examples.append(Example(texts, tuple(shared_words(texts[0], text) for text in texts[1:])))
        else:
            grades = (2.0, 1.0, 0.0, 0.0) if form == "graded" else (1.0, 0.0, 0.0, 0.0)
            # The first text is not always the best one.
            order = [(place + number) % CANDIDATES for place in range(CANDIDATES)]
            candidates = (each.texts[1], each.texts[2], before[1], before[2])
            texts = (each.texts[0], *(candidates[place] for place in order))
            examples.append(Example(texts, tuple(grades[place] for place in order)))
    return examples


def shared_words(first: str, second: str) -> float:
    """Return the fraction of words that two texts share, times `TEACHER_SCALE`: the score of a simple teacher."""
    a, b = (set(re.findall(r"\w+", text.lower())) for text in (first, second))
    return TEACHER_SCALE * len(a & b) / max(len(a | b), 1)


def write(path: Path, form: ExampleForm, examples: Sequence[Example]) -> Path:
    """Write a file for `fastbert finetune`; return its path."""
    with path.open("w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps(_row(form, example), ensure_ascii=False) + "\n")
    return path


def _row(form: ExampleForm, example: Example) -> dict[str, Any]:
    texts, labels = example.texts, list(example.labels)
    if form in ("pairs", "triplets"):
        return dict(zip(("anchor", "positive", "negative"), texts))
    if form in ("scored", "binary"):
        return {"sentence1": texts[0], "sentence2": texts[1], "score": labels[0]}
    if form == "taught":
        return {"anchor": texts[0], "positive": texts[1], "negative": list(texts[2:]), "scores": labels}
    if form == "labelled":
        return {"query": texts[0], "document": texts[1], "label": int(labels[0])}
    return {"query": texts[0], "documents": list(texts[1:]), "labels": [int(label) for label in labels]}


def extracted(data: Path, archive: str, names: Sequence[str], folder: Path) -> list[Path]:
    """Extract files of an archive of the data folder; return their paths."""
    with tarfile.open(data / "finetune" / f"{archive}.tar.xz") as files:
        for name in names:
            files.extract(f"{archive}/{name}", folder, filter="data")
    return [folder / archive / name for name in names]
