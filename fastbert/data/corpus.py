"""Read the files of a corpus as documents, each a list of sentences, as a stream in bounded memory.

`.txt` files have one of the layouts of `fastbert.data.layouts`, detected per file from its first 256 KiB. `.jsonl`,
`.parquet` and `.arrow` files have one document per line or row, a dump of Wikipedia (`.xml`) one per article. Text
files and dumps may be compressed; files may be on a server. A folder that the library `datasets` saved is one of its
splits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from fastbert.data import text_lines
from fastbert.data.columns import arrow_texts, parquet_texts
from fastbert.data.corpus_files import find_files, kind_of
from fastbert.data.json_lines import json_texts
from fastbert.data.layouts import MAX_DOCUMENT_CHARS, TextFormat, detect_layout
from fastbert.data.wikipedia import wikipedia_texts
from fastbert.errors import CorpusError
from fastbert.flags import DATA, rare, required
from fastbert.io.locations import LocationText
from fastbert.io.log import logger
from fastbert.io.sources import Source, size_of
from fastbert.io.text import COMPRESSIONS

if TYPE_CHECKING:
    from fastbert import _C

COMPRESSION_RATIO = 4  # bytes of text per byte of a compressed file, roughly

_BLOCK_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 18

# The texts of a file, each a document, by the kind of the file: called with the file, --text-key and the progress.
_Texts = Callable[[Source, str, text_lines.Progress | None], Iterator[str]]
_TEXTS: dict[str, _Texts] = {
    ".jsonl": json_texts,
    ".parquet": parquet_texts,
    ".arrow": arrow_texts,
    ".xml": wikipedia_texts,
}


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus, in reading order. Create one with `Corpus.find`; `documents` can be called repeatedly."""

    files: tuple[Source, ...]
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
        """Find the corpus files in `paths`: files, folders (searched recursively, in sorted order) and glob patterns,
        each on this machine or a URL that fsspec opens.

        Raises CorpusError for a path that does not exist, a file with an unknown extension, and a folder or pattern
        without corpus files.
        """
        if text_format not in ("auto", "lines", "paragraphs", "prose"):
            raise CorpusError(f"text_format={text_format!r} must be auto, lines, paragraphs or prose")
        if isinstance(paths, str | os.PathLike):
            paths = [paths]
        files = find_files(os.fspath(path) for path in paths)
        if not files:
            raise CorpusError("no corpus was named; give at least one file, folder or pattern")
        return cls(files, text_format, text_key)

    @property
    def total_bytes(self) -> int:
        """Return the size of the files on disk, compressed or not: the final value of `progress`. Files of a server
        that does not tell their size count as empty."""
        return sum(size_of(file) or 0 for file in self.files)

    @property
    def text_bytes(self) -> int:
        """Return the approximate size of the text: that of compressed files is about four times their size on disk."""
        compressed = sum(size_of(file) or 0 for file in self.files if file.suffix in (*COMPRESSIONS, ".parquet"))
        return self.total_bytes + (COMPRESSION_RATIO - 1) * compressed

    def batches(
        self, progress: text_lines.Progress | None = None, *, repeats: _C.Repeats | None = None
    ) -> Iterator[_C.SentenceBatch]:
        """Yield the sentences of all documents in order, about 1 MiB of text at a time.

        A document may span batches. With `repeats`, lines and documents that were read before are dropped. `progress`
        is called regularly with the number of bytes read from disk so far. Raises CorpusError for text that cannot be
        read, and if the files hold no text at all.
        """
        done = 0
        empty = True
        for file in self.files:
            size = size_of(file) or 0
            report = None
            if progress is not None:
                report = lambda position, base=done, size=size: progress(base + min(position, size))  # noqa: E731
            for batch in self._read(file, report, repeats):
                empty = empty and not len(batch)
                yield batch
            done += size
            if progress is not None:
                progress(done)
        if empty:
            names = str(self.files[0]) if len(self.files) == 1 else f"{len(self.files)} files, {self.files[0]} first"
            raise CorpusError(f"the corpus is empty: no text in {names}")

    def documents(self, progress: text_lines.Progress | None = None) -> Iterator[list[str]]:
        """Yield the documents in order, each a list of non-blank sentences.

        `progress` and errors are those of `batches`.
        """
        document: list[str] = []
        for batch in self.batches(progress):
            sentences = batch.strings()
            start = 0
            for end in batch.document_ends.tolist():
                document += sentences[start:end]
                yield document
                document, start = [], end
            document += sentences[start:]

    def _read(
        self, file: Source, report: text_lines.Progress | None, repeats: _C.Repeats | None
    ) -> Iterator[_C.SentenceBatch]:
        from fastbert.data.sentence_reader import sentence_reader  # imports numpy

        texts = _TEXTS.get(kind_of(file.name) or "")
        reader = sentence_reader(
            self._layout(file, texts),
            one_document=texts is not None,
            max_paragraph_chars=text_lines.MAX_LINE_BYTES,
            max_document_chars=MAX_DOCUMENT_CHARS,
            repeats=repeats,
        )
        if texts is None:
            for block in text_lines.whole_lines(file, _BLOCK_BYTES, report=report):
                reader.add(block)
                yield reader.take()
        else:
            for text in texts(file, self.text_key, report):
                reader.add(text.encode("utf-8"))
                reader.end_document()
                if reader.complete_bytes >= _BLOCK_BYTES:
                    yield reader.take()
        reader.end_document()
        yield reader.take()
        if reader.cut_documents:
            logger.warning(
                "%s: a document of more than %d million characters is split into several; are blank lines missing?",
                file,
                MAX_DOCUMENT_CHARS // 1_000_000,
            )

    def _layout(self, file: Source, texts: _Texts | None) -> TextFormat:
        """Return the layout of a file's lines, detected for `auto`."""
        if self.text_format != "auto":
            return self.text_format
        if texts is wikipedia_texts:
            return "paragraphs"
        if texts is not None:
            return _detect_layout_of_texts(texts(file, self.text_key, None))
        sample = next(text_lines.line_blocks(file, _SAMPLE_BYTES), [])
        layout = detect_layout(sample[:-1] if len(sample) > 1 else sample)
        logger.debug("%s is read as %s", file, layout)
        return layout


@dataclass(frozen=True, kw_only=True)
class CorpusFlags:
    """The flags of commands that read a corpus."""

    GROUP: ClassVar = DATA

    corpus: tuple[LocationText, ...] = required("text files, folders or globs", default=())
    """Text: files, folders or globs of .txt, .jsonl, .parquet and .arrow, Wikipedia's XML dumps, folders saved by
    `datasets`, also compressed (.gz, .xz, .zst, .bz2) and as URLs (s3://, https:// ...)."""
    text_format: TextFormat = rare("auto")
    """Layout of .txt files: one sentence per line, one paragraph per line, or wrapped prose; auto detects it for each
    file."""
    text_key: str = rare("text")
    """Key of the text in .jsonl files, and its column in .parquet and .arrow files."""

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


def _detect_layout_of_texts(texts: Iterable[str]) -> TextFormat:
    """Return "prose" if the texts are hard-wrapped, else "paragraphs"."""
    sample: list[str] = []
    chars = 0
    for text in texts:
        sample += [*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]
        chars += len(text)
        if chars > _SAMPLE_BYTES:
            break
    several_lines = any(line.strip() and follower.strip() for line, follower in pairwise(sample))
    return "prose" if several_lines and detect_layout(sample) == "prose" else "paragraphs"
