"""Collect the pairs of an anchor and a positive of training files, and the texts that may become their negatives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fastbert.errors import UserError
from fastbert.tasks.examples import TextGroup
from fastbert.tasks.readers.text_groups import Form, TextGroups


@dataclass(frozen=True)
class Query:
    """An anchor, its id ("" if it has none), and the sorted indices of the texts that are not candidates for it: all of
    its positives, by text and by id, and its own text."""

    anchor: str
    key: str
    excluded: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """The index of a query, that of its positive among the texts, and the id of its example."""

    query: int
    positive: int
    id: str


@dataclass(frozen=True)
class MiningPairs:
    """The pairs in the order of the files, the distinct queries, and the distinct texts with their ids ("" if unknown):
    positives first, then the files' negatives, then the corpus."""

    pairs: tuple[Pair, ...]
    queries: tuple[Query, ...]
    texts: tuple[str, ...]
    keys: tuple[str, ...]

    @property
    def has_keys(self) -> bool:
        """True if a query or text has an id."""
        return any(self.keys) or any(query.key for query in self.queries)


class _Texts:
    """Distinct texts, without regard to surrounding white space, and the ids that files give them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.indices: dict[str, int] = {}
        self.keys: dict[int, str] = {}
        self.by_key: dict[str, set[int]] = {}

    def index(self, text: str) -> int | None:
        """Return the index of a text, None if it is not there."""
        return self.indices.get(text.strip())

    def add(self, text: str, key: str = "") -> int:
        """Return the index of a text, added unless it is there."""
        index = self.indices.setdefault(text.strip(), len(self.indices))
        if index == len(self.texts):
            self.texts.append(text)
        if key:
            self.keys.setdefault(index, key)
            self.by_key.setdefault(key, set()).add(index)
        return index


def collect_pairs(files: Iterable[TextGroups], corpus: Iterable[str] = ()) -> MiningPairs:
    """Return the pairs of training files, with the texts of the files and of a corpus as candidates.

    Candidates of a list and labelled documents are positives if their label is above 0. Queries are equal if their
    texts or their ids are; so are texts. White space around a text does not count, and empty texts of the corpus are
    left out. Raises UserError for a file of scored pairs, for lists without labels, and without any pair.
    """
    texts = _Texts()
    names: list[str] = []
    positives: list[tuple[str, str, int, str, str]] = []
    rest: list[tuple[str, str]] = []
    for groups in files:
        names.append(groups.path)
        _check_form(groups)
        for group in groups:
            keys = group.keys or ("",) * len(group.texts)
            for index, id_ in _positives(group):
                text = texts.add(group.texts[index], keys[index])
                positives.append((group.texts[0], keys[0], text, keys[index], id_))
            rest.extend(zip(group.texts[1:], keys[1:], strict=True))
    if not positives:
        raise UserError(f"{', '.join(names)}: has no positive to mine negatives for; label some above 0")
    for other, key in rest:
        texts.add(other, key)
    for other in corpus:
        if other.strip():
            texts.add(other)
    queries, pairs = _queries(positives, texts)
    keys_of = tuple(texts.keys.get(index, "") for index in range(len(texts.texts)))
    return MiningPairs(pairs, queries, tuple(texts.texts), keys_of)


def files_sha256(files: Iterable[TextGroups]) -> str:
    """Return a SHA-256, in hexadecimal, of the texts, labels and ids of files."""
    digest = hashlib.sha256()
    for groups in files:
        for group in groups:
            digest.update(json.dumps([groups.form, group.id, group.texts, group.labels, group.keys]).encode())
    return digest.hexdigest()


def _check_form(groups: TextGroups) -> None:
    if groups.form is Form.SCORED:
        raise UserError(
            f"{groups.path}: holds pairs with scores; negatives are mined for anchors and positives, or for"
            " queries with labelled documents"
        )
    if groups.form is Form.LISTS and groups.examples[0].labels is None:
        raise UserError(f"{groups.path}: holds lists without labels, so no positives are known; label the candidates")


def _positives(group: TextGroup) -> list[tuple[int, str]]:
    """Return the indices of a group's positives, and an id for each of the pairs."""
    if group.labels is None:
        return [(1, group.id)]
    indices = [index for index, label in enumerate(group.labels, 1) if label > 0]
    return [(index, group.id if len(indices) == 1 else f"{group.id}.{i}") for i, index in enumerate(indices)]


def _queries(
    positives: Sequence[tuple[str, str, int, str, str]], texts: _Texts
) -> tuple[tuple[Query, ...], tuple[Pair, ...]]:
    """Return the distinct queries with their exclusions, and the pairs."""
    by_anchor: dict[str, set[int]] = {}
    by_key: dict[str, set[int]] = {}
    for anchor, key, positive, positive_key, _ in positives:
        equal = texts.by_key.get(positive_key, set()) | {positive}
        by_anchor.setdefault(anchor.strip(), set()).update(equal)
        if key:
            by_key.setdefault(key, set()).update(equal)
    numbers: dict[tuple[str, str], int] = {}
    pairs = [
        Pair(numbers.setdefault((anchor, key), len(numbers)), positive, id_)
        for anchor, key, positive, _, id_ in positives
    ]
    queries = []
    for anchor, key in numbers:
        same_text = texts.index(anchor)
        excluded = by_anchor[anchor.strip()] | by_key.get(key, set())
        queries.append(Query(anchor, key, tuple(sorted(excluded if same_text is None else excluded | {same_text}))))
    return tuple(queries), tuple(pairs)
