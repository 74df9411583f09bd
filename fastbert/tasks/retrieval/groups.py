"""Groups of texts as rows of tokens: a query with its positive and negatives, or two texts with a score."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, TextGroup
from fastbert.tasks.rows import Rows, bounds, runs
from fastbert.tokenizers.tokenizer import Tokenizer

TrainingForm = Literal["groups", "scored", "lists"]


def form_of(dataset: Dataset[TextGroup]) -> TrainingForm:
    """Return the form of a dataset: "groups" of a query, its positive and its negatives; two texts with a score,
    "scored"; or "lists" of a query and texts with labels."""
    if not len(dataset):
        raise UserError(f"{dataset.path}: has no examples; name a file that does")
    if dataset[0].labels is None:
        return "groups"
    return "scored" if all(len(example.texts) == 2 for example in dataset) else "lists"


def without_positive(dataset: Dataset[TextGroup]) -> int:
    """Return the number of examples whose labels are all 0 or less."""
    return sum(example.labels is not None and max(example.labels) <= 0 for example in dataset)


def expanded(dataset: Dataset[TextGroup]) -> list[tuple[int, TextGroup]]:
    """Return groups of a query, one positive and negatives, each with the number of its example: lists have one per
    text with a label above 0, those with other labels being negatives. Groups stay as they are."""
    groups: list[tuple[int, TextGroup]] = []
    for number, example in enumerate(dataset):
        if example.labels is None:
            groups.append((number, example))
            continue
        texts, labels, scores = example.texts[1:], example.labels, example.teacher
        negatives = [index for index, label in enumerate(labels) if label <= 0]
        for index, label in enumerate(labels):
            if label > 0:
                order = [index, *negatives]
                group = replace(
                    example,
                    texts=(example.texts[0], *(texts[each] for each in order)),
                    labels=None,
                    teacher=None if scores is None else tuple(scores[each] for each in order),
                    keys=None
                    if example.keys is None
                    else (example.keys[0], *(example.keys[1 + each] for each in order)),
                )
                groups.append((number, group))
    return groups


def text_keys(texts: Sequence[str]) -> np.ndarray:
    """Return a 64-bit hash of each text without surrounding white space, int64 (texts,)."""
    digests = (hashlib.blake2b(text.strip().encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype=np.int64).copy()


@dataclass(frozen=True, kw_only=True)
class SideTokens:
    """How the texts of a side, queries or documents, become tokens: `prompt` stands in front, `max_length` counts all
    tokens."""

    prompt: str = ""
    max_length: int = 128

    def encode(self, tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the tokens of texts, special ones included, int32 (tokens,); the offsets of each text's, int64
        (texts + 1,); and how many of a text's tokens others attend to, int64 (texts,)."""
        whole = [self.prompt + text for text in texts] if self.prompt else texts
        ids, offsets = tokenizer.encode_ragged(whole, True, max_length=self.max_length)
        return ids, offsets, np.diff(offsets)


def tokenized(
    tokenizer: Tokenizer, texts: Sequence[str], is_query: np.ndarray, query: SideTokens, document: SideTokens
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what `SideTokens.encode` returns, of texts of both sides; `is_query`, bool (texts,), tells them apart."""
    sides = []
    sizes, attended = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=np.int64)
    for side, of_side in ((query, is_query), (document, ~is_query)):
        indices = np.flatnonzero(of_side)
        ids, offsets, attended[indices] = side.encode(tokenizer, [texts[index] for index in indices.tolist()])
        sizes[indices] = np.diff(offsets)
        sides.append((indices, ids))
    starts = bounds(sizes)
    tokens = np.empty(int(starts[-1]), dtype=np.int32)
    for indices, ids in sides:
        tokens[runs(starts[indices], sizes[indices])] = ids
    return tokens, starts, attended


def training_rows(
    dataset: Dataset[TextGroup],
    tokenizer: Tokenizer,
    query: SideTokens,
    document: SideTokens,
    *,
    scored: bool,
    teacher: bool = False,
) -> Rows:
    """Return the rows to train on: a unit per group, whose first row is the query.

    `row_targets` are `keys`, int64, equal for equal texts; with ids in the file `ids`, int64, equal for equal ids; and
    of a teacher's scores `teacher`, fp32, NaN for queries. `unit_targets` of pairs with scores, `scored`, are their
    `scores`, fp32. Raises UserError if no group has a positive.
    """
    numbered = list(enumerate(dataset)) if scored else expanded(dataset)
    groups = [group for _, group in numbered]
    if not groups:
        raise UserError(f"{dataset.path}: no text has a label above 0, so no query has a positive; correct the labels")
    sizes = np.array([len(group.texts) for group in groups], dtype=np.int64)
    texts = [text for group in groups for text in group.texts]
    is_query = np.zeros(len(texts), dtype=bool)
    is_query[bounds(sizes)[:-1]] = True
    tokens, offsets, attended = tokenized(tokenizer, texts, is_query, query, document)
    row_targets = {"keys": text_keys(texts), "is_query": is_query, "attended": attended}
    if any(group.keys is not None for group in groups):
        ids = [f"id {key}" for group in groups for key in (group.keys or ("",) * len(group.texts))]
        row_targets["ids"] = np.where([name == "id " for name in ids], row_targets["keys"], text_keys(ids))
    unit_targets: dict[str, np.ndarray] = {}
    if scored:
        unit_targets["scores"] = np.array([group.labels[0] for group in groups if group.labels], dtype=np.float32)
    if teacher:
        row_targets["teacher"] = np.array(
            [score for group in groups for score in (np.nan, *(group.teacher or ()))], dtype=np.float32
        )
    return Rows(
        input_ids=tokens,
        token_type_ids=np.zeros_like(tokens),
        offsets=offsets,
        examples=np.repeat(np.array([number for number, _ in numbered]), sizes),
        unit_sizes=sizes,
        unit_targets=unit_targets,
        row_targets=row_targets,
    )


@dataclass(frozen=True)
class DistinctTexts:
    """The distinct queries and documents of a dataset: `texts`, `is_query`, bool (texts,), the `example` where each
    stands first, and for each example the index of each of its texts."""

    texts: list[str]
    is_query: np.ndarray
    example: np.ndarray
    members: list[list[int]]

    @classmethod
    def of(cls, dataset: Dataset[TextGroup]) -> DistinctTexts:
        """Return the distinct texts of a dataset, in the order in which they appear."""
        index: dict[tuple[bool, str], int] = {}
        texts: list[str] = []
        queries: list[bool] = []
        examples: list[int] = []
        members: list[list[int]] = []
        for number, group in enumerate(dataset):
            indices = []
            for position, text in enumerate(group.texts):
                key = (position == 0, text)
                if key not in index:
                    index[key] = len(texts)
                    texts.append(text)
                    queries.append(position == 0)
                    examples.append(number)
                indices.append(index[key])
            members.append(indices)
        return cls(texts, np.array(queries, dtype=bool), np.array(examples, dtype=np.int64), members)


def evaluation_rows(dataset: Dataset[TextGroup], tokenizer: Tokenizer, query: SideTokens, document: SideTokens) -> Rows:
    """Return a row per distinct query and per distinct document."""
    distinct = DistinctTexts.of(dataset)
    tokens, offsets, attended = tokenized(tokenizer, distinct.texts, distinct.is_query, query, document)
    return Rows(
        input_ids=tokens,
        token_type_ids=np.zeros_like(tokens),
        offsets=offsets,
        examples=distinct.example,
        row_targets={"is_query": distinct.is_query, "attended": attended},
    )
