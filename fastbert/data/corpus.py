"""Corpus files as documents, each a list of sentences: streamed, in bounded memory, whatever the files hold.

`.txt` comes in three layouts, `.jsonl` holds a document per line; both may be compressed (`.gz`, `.xz`):

lines       a sentence per line, a blank line between documents
paragraphs  a paragraph per line, which is split into sentences, a blank line between documents
prose       hard-wrapped text, which is joined and split; a blank line ends a paragraph, two or more end a document
auto        decided for each file from its first 256 KiB, see `detect_layout`
"""

from __future__ import annotations

import glob
import gzip
import json
import logging
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Literal

from fastbert.data.sentences import CLOSERS, split_sentences
from fastbert.errors import CorpusError
from fastbert.io.untrusted_input import open_regular, require_regular_file

logger = logging.getLogger("fastbert")

TextFormat = Literal["auto", "lines", "paragraphs", "prose"]
Progress = Callable[[int], None]

EXTENSIONS = (".txt", ".jsonl")
COMPRESSIONS = (".gz", ".xz")
_KNOWN = ", ".join([*EXTENSIONS, *(f"*{suffix}" for suffix in COMPRESSIONS)])

_BLOCK_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 18
# What may be held in memory at once. A longer line of text is cut at a space, a longer document becomes several; a JSON
# line cannot be cut, so a longer one is an error.
MAX_LINE_BYTES = 1 << 20
MAX_JSON_LINE_BYTES = 1 << 26
MAX_DOCUMENT_CHARS = 1 << 24

_STOPS = ".!?…。！？｡．؟۔।॥።"
_CJK = re.compile(r"[　-ヿ㐀-䶿一-鿿豈-﫿＀-￯]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus, in reading order. Build one with `Corpus.find`; `documents` can be called repeatedly."""

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
        """The corpus files among `paths`: files, folders (searched recursively, in sorted order) and glob patterns.

        Raises CorpusError for a path that does not exist, a file with another extension, and a folder or pattern
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
        """The size of the files on disk (compressed, where they are): what `progress` counts up to."""
        return sum(file.stat().st_size for file in self.files)

    def documents(self, progress: Progress | None = None) -> Iterator[list[str]]:
        """The documents in order, each a list of sentences that are not blank.

        `progress` is called now and then with the number of bytes read from disk so far. Raises CorpusError for text
        that cannot be read, and if the files hold no text at all.
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


def read_documents(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    text_format: TextFormat = "auto",
    text_key: str = "text",
    progress: Progress | None = None,
) -> Iterator[list[str]]:
    """The documents of the corpus files at `paths`; see `Corpus.find` and `Corpus.documents`."""
    return Corpus.find(paths, text_format=text_format, text_key=text_key).documents(progress)


def _find_files(path: str) -> list[Path]:
    if os.path.isfile(path):
        if _kind(Path(path)) is None:
            raise CorpusError(f"{path} has an unknown extension; a corpus is made of {_KNOWN} files")
        return [Path(path)]
    if os.path.isdir(path):
        found = _walk(path)
        if not found:
            raise CorpusError(f"the folder {path} holds no {_KNOWN} files")
        return found
    if os.path.exists(path):
        require_regular_file(path, CorpusError)
    if not glob.has_magic(path):
        raise CorpusError(f"no such file or folder: {path}")
    matches = sorted(glob.glob(path, recursive=True))
    if not matches:
        raise CorpusError(f"nothing matches the pattern {path}")
    found = []
    for match in matches:
        if os.path.isdir(match):
            found += _walk(match)
        elif _kind(Path(match)) is not None:
            found.append(Path(match))
    if not found:
        raise CorpusError(f"the pattern {path} matches no {_KNOWN} files (it matches {matches[0]})")
    return found


def _walk(folder: str) -> list[Path]:
    """All corpus files under a folder, sorted; hidden files and folders are left out."""
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(root, name) for name in names if not name.startswith(".")]
    return sorted(file for file in found if _kind(file) is not None)


def _kind(file: Path) -> str | None:
    """ ".txt" or ".jsonl", looking through a compression suffix; None for other files."""
    name = file.name.lower()
    for compression in COMPRESSIONS:
        name = name.removesuffix(compression)
    return next((extension for extension in EXTENSIONS if name.endswith(extension)), None)


def _read_file(file: Path, text_format: TextFormat, text_key: str, report: Progress | None) -> Iterator[list[str]]:
    if _kind(file) == ".jsonl":
        layout = _detect_jsonl_layout(file, text_key) if text_format == "auto" else text_format
        for text in _json_texts(file, text_key, report):
            yield from _documents_of_lines(text.split("\n"), layout, one_document=True, file=file)
        return
    layout = text_format
    if layout == "auto":
        sample = next(_line_blocks(file, _SAMPLE_BYTES), [])
        layout = detect_layout(sample[:-1] if len(sample) > 1 else sample)
        logger.debug("%s is read as %s", file, layout)
    lines = (line for block in _line_blocks(file, _BLOCK_BYTES, report=report) for line in block)
    yield from _documents_of_lines(lines, layout, one_document=False, file=file)


# Bytes to lines


def _open(file: Path) -> tuple[IO[bytes], IO[bytes]]:
    """The file as it is on disk, and as decompressed."""
    raw = open_regular(file, CorpusError)
    match file.suffix.lower():
        case ".gz":
            return raw, gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
        case ".xz":
            return raw, lzma.LZMAFile(raw)
    return raw, raw


def _byte_blocks(file: Path, size: int, report: Progress | None) -> Iterator[bytes]:
    try:
        raw, stream = _open(file)
        with raw, stream:
            if file.stat().st_size == 0:
                return
            while block := stream.read(size):
                yield block
                if report is not None:
                    report(raw.tell())
    except EOFError:
        raise CorpusError(f"{file} is truncated: its data ends too early; copy or download it again") from None
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{file} is no intact {file.suffix} file ({error}); copy or download it again") from None
    except OSError as error:
        raise CorpusError(f"{file} cannot be read: {error.strerror or error}") from None


def _line_blocks(
    file: Path, size: int, *, max_line: int | None = None, cut: bool = True, report: Progress | None = None
) -> Iterator[list[str]]:
    """The lines of a file in blocks of about `size` bytes, decoded, without line ends.

    LF, CRLF and CR end a line; a byte-order mark is dropped. A line of more than `max_line` bytes (MAX_LINE_BYTES) is
    cut, at a space where there is one, or, without `cut`, raises CorpusError.
    """
    max_line = max_line or MAX_LINE_BYTES
    position = 0  # of `pending` in the decompressed stream
    pending = b""
    line_number = 1
    for block in _byte_blocks(file, size, report):
        pending += block
        if position == 0 and pending.startswith(b"\xef\xbb\xbf"):
            pending, position = pending[3:], 3
        end = pending.rfind(b"\n") + 1
        if end:
            lines = _decode(file, pending[:end], position).split("\n")
            lines.pop()  # what follows the last line end: nothing
            line_number += len(lines)
            yield lines
            pending, position = pending[end:], position + end
        while len(pending) > max_line:
            if not cut:
                raise CorpusError(f"{file}, line {line_number}: longer than {max_line >> 20} MiB; split the document")
            end = _cut(pending, max_line)
            yield _decode(file, pending[:end], position).split("\n")
            pending, position = pending[end:], position + end
    if pending:
        yield _decode(file, pending, position).split("\n")


def _cut(line: bytes, limit: int) -> int:
    """Where to cut a line of more than `limit` bytes: after its last space, else between two characters."""
    space = line.rfind(b" ", limit // 2, limit)
    if space >= 0:
        return space + 1
    end = limit
    while end > limit - 4 and line[end] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        end -= 1
    return end


def _decode(file: Path, data: bytes, position: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = position + error.start
        hint = "convert it with `iconv -f ENCODING -t UTF-8`"
        if position == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            hint = "it looks like UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"
        where = " of the decompressed text" if file.suffix.lower() in COMPRESSIONS else ""
        byte = f"byte 0x{data[error.start]:02x} at offset {offset}{where}"
        raise CorpusError(f"{file} is not UTF-8: {byte}; {hint}") from None
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


# Lines to documents


def _documents_of_lines(
    lines: Iterable[str], layout: TextFormat, *, one_document: bool, file: Path
) -> Iterator[list[str]]:
    """Groups lines into documents as `layout` says; with `one_document`, blank lines only separate paragraphs."""
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
            if wrapped_chars > MAX_LINE_BYTES:  # a paragraph without end
                document.add(split_sentences(_unwrap(wrapped)))
                wrapped, wrapped_chars = [], 0
        if document.is_full:
            yield from document.take(cut=True)
    document.add(split_sentences(_unwrap(wrapped)))
    yield from document.take()


class _Document:
    """The sentences of the document being read."""

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
                "%s: a document of more than %d million characters is cut into several; are breaks missing?",
                self.file,
                MAX_DOCUMENT_CHARS // 1_000_000,
            )
        if self.sentences:
            yield self.sentences
        self.sentences, self.chars = [], 0


def _unwrap(lines: list[str]) -> str:
    """Hard-wrapped lines as one paragraph: joined by spaces, but not between two CJK characters."""
    if not lines:
        return ""
    parts = [lines[0]]
    for before, line in pairwise(lines):
        if not (_CJK.match(before[-1]) and _CJK.match(line[0])):
            parts.append(" ")
        parts.append(line)
    return "".join(parts)


# Layout


def detect_layout(sample: Sequence[str]) -> TextFormat:
    """The layout of a text whose first lines are `sample`.

    prose: a line end falls inside a sentence more often than in three of ten places where a line follows a line, and
    falls there because the line was full (its next word would not have fitted into the width that one line in twenty
    exceeds). Else, if more than three in ten lines hold several sentences by our splitter, a line is a paragraph: prose
    if most paragraphs stand between blank lines, else paragraphs. Else lines.
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


def _detect_jsonl_layout(file: Path, text_key: str) -> TextFormat:
    """Whether the texts are hard-wrapped; where they are not, a line is a paragraph."""
    sample: list[str] = []
    chars = 0
    for text in _json_texts(file, text_key, None):
        sample += [*text.split("\n"), ""]
        chars += len(text)
        if chars > _SAMPLE_BYTES:
            break
    several_lines = any(line.strip() and follower.strip() for line, follower in pairwise(sample))
    return "prose" if several_lines and detect_layout(sample) == "prose" else "paragraphs"


# JSON lines


def _json_texts(file: Path, text_key: str, report: Progress | None) -> Iterator[str]:
    number = 0
    for block in _line_blocks(file, _BLOCK_BYTES, max_line=MAX_JSON_LINE_BYTES, cut=False, report=report):
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
        raise CorpusError(f"{where}: no key {text_key!r} (keys: {keys}); name the one that holds the text")
    text = record[text_key]
    if not isinstance(text, str):
        raise CorpusError(f"{where}: the value of {text_key!r} must be a string, not {type(text).__name__}")
    # JSON can spell half of a surrogate pair, which is no character.
    text = _SURROGATE.sub("�", text) if _SURROGATE.search(text) else text
    return text.replace("\r\n", "\n").replace("\r", "\n")
