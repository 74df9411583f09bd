"""Read corpus files as documents, each a list of sentences, as a stream in bounded memory.

`.txt` files have one of three layouts, `.jsonl` files one document per line; both may be compressed (`.gz`, `.xz`):

lines       one sentence per line, a blank line between documents
paragraphs  one paragraph per line, which is split into sentences, a blank line between documents
prose       hard-wrapped text, which is joined and split; a blank line ends a paragraph, two or more end a document
auto        detected per file from its first 256 KiB, see `detect_layout`
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

from fastbert.data import text_lines
from fastbert.data.sentences import CLOSERS, split_sentences
from fastbert.errors import CorpusError
from fastbert.flags import DATA, rare, required
from fastbert.io.log import logger
from fastbert.io.text import COMPRESSIONS, plain_name, whole_characters
from fastbert.io.untrusted_input import require_regular_file

TextFormat = Literal["auto", "lines", "paragraphs", "prose"]
EXTENSIONS = (".txt", ".jsonl")
_KNOWN = ", ".join([*EXTENSIONS, *(f"*{suffix}" for suffix in COMPRESSIONS)])

COMPRESSION_RATIO = 4  # bytes of text per byte of a compressed file, roughly

_BLOCK_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 18
# A line of JSON cannot be cut: a longer one is an error.
MAX_JSON_LINE_BYTES = 1 << 26
# A longer document becomes several.
MAX_DOCUMENT_CHARS = 1 << 24

_STOPS = ".!?…。！？｡．؟۔।॥።"
_CJK = re.compile(r"[　-ヿ㐀-䶿一-鿿豈-﫿＀-￯]")


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus, in reading order. Create one with `Corpus.find`; `documents` can be called repeatedly."""

    files: tuple[Path, ...]
    text_format: TextFormat = "auto"
    text_key: str = "text"

    @classmethod
    def find(
        cls,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        text_format: TextFormat = "auto",
        text_key: str = "text",
    ) -> Corpus:
        """Find the corpus files in `paths`: files, folders (searched recursively, in sorted order) and glob patterns.

        Raises CorpusError for a path that does not exist, a file with an unknown extension, and a folder or pattern
        without corpus files.
        """
        if text_format not in ("auto", "lines", "paragraphs", "prose"):
            raise CorpusError(f"text_format={text_format!r} must be auto, lines, paragraphs or prose")
        if isinstance(paths, str | os.PathLike):
            paths = [paths]
        files: dict[Path, Path] = {}  # by resolved path, so that a file named twice is read once
        for path in paths:
            for file in _find_files(os.fspath(path)):
                files.setdefault(file.resolve(), file)
        if not files:
            raise CorpusError("no corpus was named; give at least one file, folder or pattern")
        return cls(tuple(files.values()), text_format, text_key)

    @property
    def total_bytes(self) -> int:
        """Return the size of the files on disk, compressed or not: the final value of `progress`."""
        return sum(file.stat().st_size for file in self.files)

    @property
    def text_bytes(self) -> int:
        """Return the approximate size of the text: that of compressed files is about four times their size on disk."""
        compressed = sum(file.stat().st_size for file in self.files if file.suffix in COMPRESSIONS)
        return self.total_bytes + (COMPRESSION_RATIO - 1) * compressed

    def documents(self, progress: text_lines.Progress | None = None) -> Iterator[list[str]]:
        """Yield the documents in order, each a list of non-blank sentences.

        `progress` is called regularly with the number of bytes read from disk so far. Raises CorpusError for text that
        cannot be read, and if the files hold no text at all.
        """
        done = 0
        empty = True
        for file in self.files:
            base = done
            report = None if progress is None else lambda position, base=base: progress(base + position)
            for document in _read_file(file, self.text_format, self.text_key, report):
                empty = False
                yield document
            done += file.stat().st_size
            if progress is not None:
                progress(done)
        if empty:
            names = str(self.files[0]) if len(self.files) == 1 else f"{len(self.files)} files, {self.files[0]} first"
            raise CorpusError(f"the corpus is empty: no text in {names}")


@dataclass(frozen=True, kw_only=True)
class CorpusFlags:
    """The flags of commands that read a corpus."""

    GROUP: ClassVar = DATA

    corpus: tuple[Path, ...] = required("text files, folders or globs", default=())
    """Text: files, folders or globs of .txt and .jsonl, also .gz and .xz of these."""
    text_format: TextFormat = rare("auto")
    """Layout of .txt files: one sentence per line, one paragraph per line, or wrapped prose; auto detects it for each
    file."""
    text_key: str = rare("text")
    """Key that holds a document's text in .jsonl files."""

    def find_corpus(self) -> Corpus:
        """Return the corpus, by `Corpus.find`. Raises CorpusError for paths without one."""
        return Corpus.find(self.corpus, text_format=self.text_format, text_key=self.text_key)


def read_documents(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    text_format: TextFormat = "auto",
    text_key: str = "text",
    progress: text_lines.Progress | None = None,
) -> Iterator[list[str]]:
    """Yield the documents of the corpus files at `paths`, by `Corpus.find` and `Corpus.documents`.

    Raises CorpusError for paths without a corpus, and for files that cannot be read.
    """
    return Corpus.find(paths, text_format=text_format, text_key=text_key).documents(progress)


def _find_files(path: str) -> list[Path]:
    if os.path.isfile(path):
        if _kind(Path(path)) is None:
            raise CorpusError(f"{path} has an unknown extension; a corpus consists of {_KNOWN} files")
        return [Path(path)]
    if os.path.isdir(path):
        files = _walk(path)
        if not files:
            raise CorpusError(f"the folder {path} holds no {_KNOWN} files")
        return files
    if os.path.exists(path):
        require_regular_file(path, CorpusError)
    if not glob.has_magic(path):
        raise CorpusError(f"no such file or folder: {path}")
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise CorpusError(f"nothing matches the pattern {path}")
    files = []
    for match in matches:
        if os.path.isdir(match):
            files += _walk(match)
        elif _kind(Path(match)) is not None:
            files.append(Path(match))
    if not files:
        raise CorpusError(f"the pattern {path} matches no {_KNOWN} files (it matches {matches[0]})")
    return files


def _walk(folder: str) -> list[Path]:
    """Return all corpus files under a folder, sorted, except hidden files and folders."""
    files = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(file for file in files if _kind(file) is not None)


def _kind(file: Path) -> str | None:
    """Return ".txt" or ".jsonl", ignoring a compression suffix; None for other files."""
    return next((extension for extension in EXTENSIONS if plain_name(file).endswith(extension)), None)


def _read_file(
    file: Path, text_format: TextFormat, text_key: str, report: text_lines.Progress | None
) -> Iterator[list[str]]:
    if _kind(file) == ".jsonl":
        layout = _detect_jsonl_layout(file, text_key) if text_format == "auto" else text_format
        for text in _json_texts(file, text_key, report):
            yield from documents_of_lines(text.split("\n"), layout, one_document=True, file=file)
        return
    layout = text_format
    if layout == "auto":
        sample = next(text_lines.line_blocks(file, _SAMPLE_BYTES), [])
        layout = detect_layout(sample[:-1] if len(sample) > 1 else sample)
        logger.debug("%s is read as %s", file, layout)
    lines = (line for block in text_lines.line_blocks(file, _BLOCK_BYTES, report=report) for line in block)
    yield from documents_of_lines(lines, layout, one_document=False, file=file)


def _detect_jsonl_layout(file: Path, text_key: str) -> TextFormat:
    """Return "prose" if the texts are hard-wrapped, else "paragraphs"."""
    sample: list[str] = []
    chars = 0
    for text in _json_texts(file, text_key, None):
        sample += [*text.split("\n"), ""]
        chars += len(text)
        if chars > _SAMPLE_BYTES:
            break
    several_lines = any(line.strip() and follower.strip() for line, follower in pairwise(sample))
    return "prose" if several_lines and detect_layout(sample) == "prose" else "paragraphs"


def _json_texts(file: Path, text_key: str, report: text_lines.Progress | None) -> Iterator[str]:
    number = 0
    for block in text_lines.line_blocks(file, _BLOCK_BYTES, max_line=MAX_JSON_LINE_BYTES, cut=False, report=report):
        for line in block:
            number += 1
            if line.strip():
                yield _json_text(line, text_key, f"{file}, line {number}")


def _json_text(line: str, text_key: str, where: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: not valid JSON ({error}); each line must be one JSON object") from None
    if not isinstance(record, dict):
        raise CorpusError(f'{where}: must be a JSON object such as {{"{text_key}": "..."}}, not {line[:40]!r}')
    if text_key not in record:
        keys = ", ".join(sorted(map(str, record))[:10]) or "none"
        raise CorpusError(f"{where}: no key {text_key!r} (keys: {keys}); name the key that holds the text")
    text = record[text_key]
    if not isinstance(text, str):
        raise CorpusError(f"{where}: the value of {text_key!r} must be a string, not {type(text).__name__}")
    return whole_characters(text).replace("\r\n", "\n").replace("\r", "\n")


def documents_of_lines(
    lines: Iterable[str], layout: TextFormat, *, one_document: bool, file: Path
) -> Iterator[list[str]]:
    """Group lines into documents by layout; with `one_document`, blank lines only separate paragraphs."""
    document = _Document(file)
    wrapped: list[str] = []  # the lines of the paragraph being read, for prose
    wrapped_chars = 0
    blank_lines = 0
    for line in lines:
        line = line.strip()
        if not line:
            blank_lines += 1
            if layout == "prose":
                document.add(split_sentences(_unwrap(wrapped)))
                wrapped, wrapped_chars = [], 0
            if not one_document and blank_lines == (2 if layout == "prose" else 1):
                yield from document.take()
            continue
        blank_lines = 0
        if layout == "lines":
            document.add([line])
        elif layout == "paragraphs":
            document.add(split_sentences(line))
        else:
            wrapped.append(line)
            wrapped_chars += len(line)
            if wrapped_chars > text_lines.MAX_LINE_BYTES:  # an endless paragraph
                document.add(split_sentences(_unwrap(wrapped)))
                wrapped, wrapped_chars = [], 0
        if document.is_full:
            yield from document.take(cut=True)
    document.add(split_sentences(_unwrap(wrapped)))
    yield from document.take()


class _Document:
    """Collect the sentences of one document."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.sentences: list[str] = []
        self.chars = 0
        self.warned = False

    def add(self, sentences: Sequence[str]) -> None:
        self.sentences += sentences
        self.chars += sum(map(len, sentences))

    @property
    def is_full(self) -> bool:
        return self.chars > MAX_DOCUMENT_CHARS

    def take(self, cut: bool = False) -> Iterator[list[str]]:
        if cut and not self.warned:
            self.warned = True
            logger.warning(
                "%s: a document of more than %d million characters is split into several; are blank lines missing?",
                self.file,
                MAX_DOCUMENT_CHARS // 1_000_000,
            )
        if self.sentences:
            yield self.sentences
        self.sentences, self.chars = [], 0


def _unwrap(lines: list[str]) -> str:
    """Join hard-wrapped lines to one paragraph: with spaces, except between two CJK characters."""
    if not lines:
        return ""
    parts = [lines[0]]
    for before, line in pairwise(lines):
        if not (_CJK.match(before[-1]) and _CJK.match(line[0])):
            parts.append(" ")
        parts.append(line)
    return "".join(parts)


def detect_layout(sample: Sequence[str]) -> TextFormat:
    """Return the layout of a text whose first lines are `sample`.

    prose: more than 30 % of the line ends between two lines are inside a sentence because the line was full (the next
    word would not have fitted into the 95th percentile of line lengths). Otherwise, if `split_sentences` finds several
    sentences in more than 30 % of the lines, each line is a paragraph: prose if blank lines separate most of them, else
    paragraphs. Otherwise lines.
    """
    lines = [line.strip() for line in sample]
    filled = [line for line in lines if line]
    if not filled:
        return "lines"
    width = sorted(map(len, filled))[(len(filled) - 1) * 19 // 20]
    pairs = [(line, follower) for line, follower in pairwise(lines) if line and follower]
    wrapped = sum(
        not _ends_sentence(line) and len(line) + 1 + _first_word_length(follower) > width for line, follower in pairs
    )
    if wrapped > 0.3 * max(len(pairs), 1):
        return "prose"
    several = sum(len(split_sentences(line[:4096])) > 1 for line in filled)
    if several <= 0.3 * len(filled):
        return "lines"
    return "prose" if len(filled) > 2 and len(pairs) < 0.2 * len(filled) else "paragraphs"


def _ends_sentence(line: str) -> bool:
    return line.rstrip(CLOSERS + " ")[-1:] in tuple(_STOPS)


def _first_word_length(line: str) -> int:
    return 1 if _CJK.match(line) else min(len(line.split(maxsplit=1)[0]), 20)
