"""Count co-occurrences of words for GloVe in bounded memory: sorted runs in files, merged by ranges of their keys.

A pair of words d tokens apart in a sentence, at most `window`, counts 1/d in both directions (Pennington et al. 2014,
section 4.2). The records of the resulting matrix are spread over files, "buckets", at random, so that training can
visit them in random order and hold one bucket at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastbert.vectors.corpus_words import WordCorpus

RECORD = np.dtype([("row", np.int32), ("column", np.int32), ("count", np.float32)])
"""A cell of the matrix that is not zero."""
RECORDS = 1 << 22
"""Records in memory at once, about; with their sorted copies, 500 MB."""
_STRIDE = 4096  # keys of a run per sample, from which the ranges are chosen
_SPREAD = 1  # the purpose of random numbers, beside others of the same seed

Run = tuple[NDArray[np.int64], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Cooccurrences:
    """The non-zero cells of the matrix, in files of `RECORD`s."""

    buckets: tuple[Path, ...]
    records: int

    def bucket(self, index: int) -> NDArray[np.void]:
        """Read a bucket: `RECORD` (records,)."""
        return np.fromfile(self.buckets[index], dtype=RECORD)


def count_cooccurrences(
    corpus: WordCorpus,
    window: int,
    folder: Path,
    *,
    seed: int = 0,
    records: int = RECORDS,
    progress: Callable[[int], None] | None = None,
) -> Cooccurrences:
    """Count the co-occurrences of a corpus into files in `folder`, with about `records` of them in memory at once.

    `progress` is called with the number of tokens counted.
    """
    words = len(corpus.words)
    runs: list[Run] = []
    done = 0
    for ids, offsets in corpus.chunks(records):
        pending: list[Run] = []
        size = 0
        for keys, distance in _pairs(ids, offsets, window, words):
            pending.append((keys, np.full(len(keys), 1.0 / distance)))
            size += len(keys)
            if size >= 2 * records:
                pending = [_summed(pending)]
                size = len(pending[0][0])
                if size >= records:
                    runs.append(_written(pending[0], folder / f"run-{len(runs)}"))
                    pending, size = [], 0
        if size:
            runs.append(_written(_summed(pending), folder / f"run-{len(runs)}"))
        done += len(ids)
        if progress is not None:
            progress(done)
    return _spread(runs, words, folder, seed, records)


def _pairs(
    ids: NDArray[np.int32], offsets: NDArray[np.int64], window: int, words: int
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yield the keys of the pairs at each distance, int64 (pairs,): smaller number * words + larger number."""
    lengths = np.diff(offsets)
    left = np.repeat(offsets[1:], lengths) - np.arange(len(ids))  # tokens to the end of the sentence, itself included
    wide = ids.astype(np.int64)
    for distance in range(1, min(window, int(lengths.max(initial=1)) - 1) + 1):
        first = np.flatnonzero(left > distance)
        x, y = wide[first], wide[first + distance]
        yield np.minimum(x, y) * words + np.maximum(x, y), distance


def _summed(runs: Sequence[Run]) -> Run:
    """Return the sorted keys of several runs, each once, int64 (keys,), and their sums, float64 (keys,)."""
    keys = np.concatenate([keys for keys, _ in runs])
    values = np.concatenate([values for _, values in runs])
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if len(keys) else np.zeros(0, np.int64)
    return keys[first], np.add.reduceat(values, first) if len(first) else values


def _written(run: Run, path: Path) -> Run:
    """Write a run to two files, and return it memory-mapped."""
    keys, sums = run
    keys.tofile(f"{path}-keys")
    sums.tofile(f"{path}-sums")
    return np.memmap(f"{path}-keys", np.int64, "r"), np.memmap(f"{path}-sums", np.float64, "r")


def _spread(runs: Sequence[Run], words: int, folder: Path, seed: int, records: int) -> Cooccurrences:
    """Merge sorted runs, and write each cell to a random bucket."""
    most = 2 * sum(len(keys) for keys, _ in runs)
    buckets = tuple(folder / f"bucket-{index}" for index in range(max(1, -(-most // records))))
    for bucket in buckets:
        bucket.touch()
    total = 0
    for part, merged in enumerate(_merged(runs, records)):
        cells = _cells(merged, words)
        # The buckets of a range depend on the seed and the number of the range alone.
        chosen = np.random.default_rng((seed, _SPREAD, part)).integers(len(buckets), size=len(cells))
        cells = cells[np.argsort(chosen, kind="stable")]
        ends = np.cumsum(np.bincount(chosen, minlength=len(buckets)))
        for bucket, begin, end in zip(buckets, np.concatenate(([0], ends[:-1])), ends, strict=True):
            with bucket.open("ab") as file:
                file.write(cells[begin:end].tobytes())
        total += len(cells)
    return Cooccurrences(buckets=buckets, records=total)


def _merged(runs: Sequence[Run], records: int) -> Iterator[Run]:
    """Yield the sums over all runs, about `records` keys of the runs at a time, in the order of the keys."""
    samples = np.sort(np.concatenate([keys[_STRIDE - 1 :: _STRIDE] for keys, _ in runs] or [np.zeros(0, np.int64)]))
    bounds = np.unique(samples[max(1, records // _STRIDE) - 1 :: max(1, records // _STRIDE)])
    edges = [np.concatenate(([0], np.searchsorted(keys, bounds, side="right"), [len(keys)])) for keys, _ in runs]
    for part in range(len(bounds) + 1):
        parts = [
            (np.asarray(keys[edge[part] : edge[part + 1]]), np.asarray(sums[edge[part] : edge[part + 1]]))
            for (keys, sums), edge in zip(runs, edges, strict=True)
        ]
        if any(len(keys) for keys, _ in parts):
            yield _summed(parts)


def _cells(run: Run, words: int) -> NDArray[np.void]:
    """Return both halves of the symmetric matrix, `RECORD` (cells,), from the keys and sums of one."""
    keys, sums = run
    low, high = np.divmod(keys, words)
    off_diagonal = low != high
    cells = np.empty(len(keys) + int(off_diagonal.sum()), dtype=RECORD)
    one, other = cells[: len(keys)], cells[len(keys) :]
    one["row"], one["column"] = low, high
    one["count"] = np.where(off_diagonal, sums, 2.0 * sums)  # a word beside itself counts in both directions
    other["row"], other["column"], other["count"] = high[off_diagonal], low[off_diagonal], sums[off_diagonal]
    return cells
