"""A sample of a corpus's sentences, which tells repeated text and leaked validation text without reading it again.

Sampled are the sentences of 10 tokens or more whose hash is below a limit, with all their repeats: a repeated sentence
is in the sample with each of its occurrences, or with none. The limit is halved whenever the sample exceeds 262,144
sentences, so it takes at most 4 MiB, in memory and in its file `sample.bin`, and depends on the corpus alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.data.shards import SAMPLE, HashedFile, IndexReader

LEAST_TOKENS = 10
"""Shorter sentences ("He nodded.") occur in independent texts."""
_MOST = 1 << 18
_DTYPE = np.dtype([("hash", "<u8"), ("sentence", "<i8")])
_LARGEST_LEVEL = 63


def hash_sentences(ids: NDArray[Any], offsets: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes, uint64 (sampled,), and the indices, int64 (sampled,), of sentences long enough for a sample.

    `ids` (tokens,) are in the dtype of the shards; `offsets`, int64 (sentences + 1,): sentence i has `ids[offsets[i] :
    offsets[i + 1]]`.
    """
    long = np.flatnonzero(np.diff(offsets) >= LEAST_TOKENS)
    return _C.hash_rows(ids, offsets)[long], long


class SentenceSampler:
    """Collect the sample of a corpus."""

    def __init__(self) -> None:
        self.level: int = 0
        """The sample holds one in 2^level different sentences."""
        self._parts: list[NDArray[Any]] = []
        self._size = 0

    def add(self, hashes: NDArray[np.uint64], sentences: NDArray[np.int64]) -> None:
        """Add sentences in the order of the corpus: `hashes` uint64 (long,), and their numbers, int64 (long,)."""
        part = np.empty(len(hashes), _DTYPE)
        part["hash"], part["sentence"] = hashes, sentences
        self._append(part)
        while self._size > _MOST and self.level < _LARGEST_LEVEL:
            self.level += 1
            parts, self._parts, self._size = self._parts, [], 0
            self._append(np.concatenate(parts))

    def _append(self, part: NDArray[Any]) -> None:
        part = part[part["hash"] < _limit(self.level)] if self.level else part
        if len(part):
            self._parts.append(part)
            self._size += len(part)

    def rows(self) -> NDArray[Any]:
        """Return the sample in the order of the corpus: `hash` uint64 and `sentence` int64, structured, (sampled,)."""
        return np.concatenate([np.empty(0, _DTYPE), *self._parts])

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the sample to a folder of shards, and return its entry for the index."""
        file = HashedFile(folder / SAMPLE)
        file.write(self.rows().view(np.uint8))
        return {"level": self.level, "file": file.close()}


@dataclass(frozen=True)
class SentenceSample:
    """The sample of a folder of shards."""

    hashes: NDArray[np.uint64]
    """The hash of each sentence, uint64 (sampled,)."""
    sentences: NDArray[np.int64]
    """Their numbers in the corpus, in rising order, int64 (sampled,)."""
    level: int
    """The sample holds one in 2^level different sentences."""

    @classmethod
    def read(cls, folder: Path) -> SentenceSample | None:
        """Return the sample of a folder of token shards, None for one that was written before there were samples.

        Raises UserError for a file that is missing or damaged.
        """
        reader = IndexReader(folder)
        entry = reader.content.get("sample") if isinstance(reader.content, dict) else None
        if entry is None:
            return None
        level = reader.count(entry, "level", smallest=0)
        size = reader.count(reader.get(entry, "file", dict), "bytes", smallest=0)
        if level > _LARGEST_LEVEL or size % _DTYPE.itemsize or size > _MOST * _DTYPE.itemsize:
            raise reader.damaged(f"describes a sample of {size} bytes and level {level}, which is out of range")
        path = reader.file(entry, "file", SAMPLE, size, verify=True, smallest=0)
        rows = np.fromfile(path, _DTYPE)
        return cls(np.ascontiguousarray(rows["hash"]), np.ascontiguousarray(rows["sentence"]), level)


def repeated_share(hashes: NDArray[np.uint64]) -> float:
    """Return the share of sampled sentences, `hashes` uint64 (sampled,), that repeat an earlier one."""
    return float((np.diff(np.sort(hashes)) == 0).sum()) / max(len(hashes), 1)


def leaked_share(sample: SentenceSample, train: NDArray[np.int64], validation: NDArray[np.int64]) -> float:
    """Return the share of the validation split's sentences that occur in the training split too, 0 to 1.

    `train` and `validation` are the splits' documents as ranges of sentences, int64 (documents, 2), in order. The share
    is that of the sample.
    """
    in_validation = _inside(sample.sentences, validation)
    in_train = _inside(sample.sentences, train)
    validated = sample.hashes[in_validation]
    if not len(validated):
        return 0.0
    return float(np.isin(validated, sample.hashes[in_train]).mean())


def shared_share(
    sample: SentenceSample, train: NDArray[np.int64], other: SentenceSample, validation: NDArray[np.int64]
) -> float:
    """Return the share of a validation split's sentences that occur in the training split of another corpus, 0 to 1.

    `train` are documents of the corpus of `sample`, `validation` those of `other`, as in `leaked_share`; both corpora
    were tokenized with one tokenizer.
    """
    validated = other.hashes[_inside(other.sentences, validation)]
    level = max(sample.level, other.level)
    if level:
        validated = validated[validated < _limit(level)]
    if not len(validated):
        return 0.0
    return float(np.isin(validated, sample.hashes[_inside(sample.sentences, train)]).mean())


def _inside(sentences: NDArray[np.int64], ranges: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each sentence is in one of the ranges, which rise."""
    if not len(ranges):
        return np.zeros(len(sentences), bool)
    index = np.searchsorted(ranges[:, 0], sentences, side="right") - 1
    return (index >= 0) & (sentences < ranges[np.maximum(index, 0), 1])


def _limit(level: int) -> np.uint64:
    return np.uint64(1 << (64 - level))
