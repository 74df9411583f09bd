"""Minimal pairs of sentences, BLiMP's (Warstadt et al. 2020): read them, and score models by how often the acceptable
sentence of a pair is the more probable one. Imports no torch."""

from __future__ import annotations

import gzip
import json
import lzma
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fastbert.errors import UserError
from fastbert.io.text import COMPRESSIONS, has_surrogates, plain_name
from fastbert.io.untrusted_input import open_regular
from fastbert.scoring.tokenized_texts import Progress, Scorer, tokenize
from fastbert.tasks.text_files import decompressed, numbered_lines

MOST_BYTES = 1 << 28
"""Bytes of text that are read: BLiMP has 10 MB, 30 MB as JSON lines."""
KINDS = (".jsonl", ".tsv")
ARCHIVES = (".tar", ".tar.gz", ".tar.xz", ".tgz")
COLUMNS = ("phenomenon", "paradigm", "good", "bad")
Located = tuple[str, tuple[str, str, str, str]]
"""The place of a pair in its file, and its values of `COLUMNS`."""
# BLiMP's files name the linguistic term; the paper's table of 12 phenomena counts selection as argument structure.
PHENOMENA = {"s-selection": "argument_structure"}


@dataclass(frozen=True, kw_only=True)
class Paradigm:
    """The pairs of one construction, each an acceptable sentence and an unacceptable one."""

    name: str
    phenomenon: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class ParadigmScores:
    """The scores of a paradigm's sentences in nats: `good` and `bad`, float64 (pairs,)."""

    paradigm: Paradigm
    good: np.ndarray
    bad: np.ndarray

    @property
    def accuracy(self) -> float:
        """The share of pairs whose acceptable sentence scores higher, in per cent; a tie is wrong."""
        return 100.0 * float((self.good > self.bad).mean())

    @property
    def ties(self) -> int:
        """Pairs whose sentences score the same, such as those that are the same tokens."""
        return int((self.good == self.bad).sum())


def score_pairs(
    scorer: Scorer, paradigms: Sequence[Paradigm], progress: Progress | None = None
) -> list[ParadigmScores]:
    """Return the scores of all sentences, by any scorer. Raises `UserError` for a sentence that is too long."""
    sentences = [sentence for paradigm in paradigms for pair in paradigm.pairs for sentence in pair]

    def source(index: int) -> str:
        number = index // 2
        for paradigm in paradigms:
            if number < len(paradigm.pairs):
                return f"{paradigm.name}, pair {number + 1}"
            number -= len(paradigm.pairs)
        raise IndexError(index)

    texts = tokenize(scorer.tokenizer, sentences, scorer.max_tokens, source)
    tokens = scorer.log_probabilities(texts, progress)
    numbers = np.repeat(np.arange(len(texts)), texts.sizes)
    totals = np.bincount(numbers, weights=tokens, minlength=len(texts)).astype(np.float64).reshape(-1, 2)
    results, first = [], 0
    for paradigm in paradigms:
        rows = totals[first : first + len(paradigm.pairs)]
        results.append(ParadigmScores(paradigm=paradigm, good=rows[:, 0], bad=rows[:, 1]))
        first += len(paradigm.pairs)
    return results


def accuracies(scores: Sequence[ParadigmScores]) -> dict[str, Any]:
    """Return accuracies in per cent: `overall` and those of `phenomena`, means over their paradigms, and those of
    `paradigms`; also the numbers of `pairs` and `ties`."""
    by_phenomenon: dict[str, list[float]] = {}
    for each in scores:
        by_phenomenon.setdefault(each.paradigm.phenomenon, []).append(each.accuracy)
    return {
        "overall": float(np.mean([each.accuracy for each in scores])),
        "phenomena": {name: float(np.mean(values)) for name, values in sorted(by_phenomenon.items())},
        "paradigms": {each.paradigm.name: each.accuracy for each in scores},
        "pairs": sum(len(each.paradigm.pairs) for each in scores),
        "ties": sum(each.ties for each in scores),
    }


def table(results: Mapping[str, Mapping[str, Any]], paradigms: Sequence[Paradigm]) -> str:
    """Return the accuracies of several models, by name, as a table: one row per phenomenon, the paradigms below it."""
    homes: dict[str, list[str]] = {}
    for paradigm in paradigms:
        homes.setdefault(paradigm.phenomenon, []).append(paradigm.name)
    rows = []
    for phenomenon in sorted(homes):
        rows.append((phenomenon, [result["phenomena"][phenomenon] for result in results.values()]))
        if homes[phenomenon] != [phenomenon]:
            rows += [
                (f"  {name}", [result["paradigms"][name] for result in results.values()])
                for name in sorted(homes[phenomenon])
            ]
    rows.append(("overall", [result["overall"] for result in results.values()]))
    title = "accuracy, %"
    width = max(len(title), *(len(name) for name, _ in rows))
    columns = [max(len(name), 5) for name in results]
    head = "  ".join([f"{title:<{width}}", *(f"{name:>{size}}" for name, size in zip(results, columns))])
    lines = [
        "  ".join([f"{name:<{width}}", *(f"{value:>{size}.1f}" for value, size in zip(values, columns))])
        for name, values in rows
    ]
    return "\n".join([head, *lines])


def read_pairs(path: str | Path, limit: int | None = None) -> list[Paradigm]:
    """Read minimal pairs, by paradigm in the order of the files; with `limit` the first pairs of each.

    `path` is a `.jsonl` file as BLiMP publishes them, with sentence_good, sentence_bad, and perhaps UID (the paradigm;
    else the file's name) and linguistics_term (the phenomenon; else the paradigm); a `.tsv` file with columns
    phenomenon, paradigm, good and bad; a folder of such files; or a tar archive of them, which is not unpacked. All
    but the folder may be compressed (.gz, .xz).

    Raises `UserError` for what is missing or something else, with the file and the line, and for more than 256 MB of
    text.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    files = sorted(file for file in path.iterdir() if _kind(file.name)) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: holds no {' or '.join(KINDS)} files; name the folder with BLiMP's files")
    pairs: dict[str, list[tuple[str, str]]] = {}
    phenomena: dict[str, str] = {}
    size = 0
    for location, (phenomenon, paradigm, good, bad) in (item for file in files for item in _pairs_of(file)):
        size += len(good) + len(bad)
        if size > MOST_BYTES:
            raise UserError(f"{path}: more than {MOST_BYTES >> 20} MB of sentences; name a smaller file")
        if phenomena.setdefault(paradigm, phenomenon) != phenomenon:
            raise UserError(f"{location}: {paradigm} is of {phenomena[paradigm]} in an earlier line")
        listed = pairs.setdefault(paradigm, [])
        if limit is None or len(listed) < limit:
            listed.append((good, bad))
    if not pairs:
        raise UserError(f"{path}: holds no pairs of sentences")
    return [Paradigm(name=name, phenomenon=phenomena[name], pairs=tuple(items)) for name, items in pairs.items()]


def _kind(name: str) -> str | None:
    """Return ".jsonl" or ".tsv" for a file that can hold pairs, compressed or not."""
    return next((kind for kind in KINDS if plain_name(Path(name)).endswith(kind)), None)


def _pairs_of(file: Path) -> Iterator[Located]:
    """Yield the pairs of a file, or of the members of an archive."""
    if file.name.endswith(ARCHIVES):
        try:
            with open_regular(file) as raw, tarfile.open(fileobj=raw, mode="r:*") as archive:
                for member in archive:
                    stream = archive.extractfile(member) if member.isfile() and _kind(member.name) else None
                    if stream is not None:
                        yield from _records(f"{file}, {member.name}", stream)
        except (tarfile.TarError, EOFError, MemoryError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(f"{file}: not an intact archive ({error})") from None
        return
    if _kind(file.name) is None:
        known = ", ".join((*KINDS, *COMPRESSIONS, *ARCHIVES))
        raise UserError(f"{file}: is not of a kind that holds minimal pairs ({known}); name BLiMP's folder or file")
    with open_regular(file) as raw, decompressed(raw, file) as stream:
        yield from _records(str(file), stream)


def _records(name: str, stream: IO[bytes]) -> Iterator[Located]:
    """Yield the place, and phenomenon, paradigm, acceptable and unacceptable sentence, of each pair of a file."""
    lines = ((number, line) for number, line in numbered_lines(_bounded(stream, name), name) if line.strip())
    if _kind(name) == ".tsv":
        header = next(lines, (1, ""))[1].split("\t")
        missing = [column for column in COLUMNS if column not in header]
        if missing:
            raise UserError(
                f"{name}, line 1: not minimal pairs: no column {missing[0]!r} (has {', '.join(header[:8])})"
            )
        indices = [header.index(column) for column in COLUMNS]
        for number, line in lines:
            cells = line.split("\t")
            if len(cells) != len(header):
                raise UserError(f"{name}, line {number}: has {len(cells)} cells, not {len(header)}")
            yield _located(name, number, *(cells[index] for index in indices))
        return
    stem = Path(plain_name(Path(name))).stem
    for number, line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}, line {number}: not JSON ({error}); each line must be an object") from None
        values = record if isinstance(record, dict) else {}
        paradigm = values.get("UID", stem)
        items = (
            values.get("linguistics_term", paradigm),
            paradigm,
            *map(values.get, ("sentence_good", "sentence_bad")),
        )
        if not all(isinstance(item, str) for item in items):
            keys = ", ".join(map(repr, list(values)[:8])) or "no object"
            raise UserError(
                f"{name}, line {number}: not minimal pairs: sentence_good and sentence_bad must be strings (has {keys})"
            )
        yield _located(name, number, *items)


def _located(name: str, number: int, phenomenon: Any, paradigm: Any, good: Any, bad: Any) -> Located:
    location = f"{name}, line {number}"
    for sentence in (good, bad):
        if not sentence.strip() or has_surrogates(sentence):
            raise UserError(f"{location}: a sentence is empty or not valid Unicode; correct the file")
    return location, (PHENOMENA.get(phenomenon, phenomenon), paradigm, good, bad)


def _bounded(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield lines, and refuse endless ones: a small compressed file may hold terabytes."""
    size = 0
    while line := stream.readline(MOST_BYTES + 1):
        size += len(line)
        if size > MOST_BYTES:
            raise UserError(f"{name}: more than {MOST_BYTES >> 20} MB of text; name a smaller file")
        yield line
