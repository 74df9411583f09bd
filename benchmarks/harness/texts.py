"""The texts to tokenize: real text of many kinds from the data folder, a user's file, or Python's own documentation."""

from __future__ import annotations

import itertools
import json
import lzma
import os
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fastbert.benchmarks.tokenizer.hostile import hostile_mixture
from fastbert.errors import UserError
from fastbert.io.untrusted_input import require_regular_file

UNCASED, CHINESE, MULTILINGUAL = "bert-base-uncased", "bert-base-chinese", "bert-base-multilingual-cased"
LOWER_CASE = {UNCASED: True, CHINESE: False, MULTILINGUAL: False}
LANGUAGES = ("zho-CN", "kor", "hin", "arb", "rus", "jpn", "tha")
QUICK_LANGUAGES = ("kor",)
PARAGRAPH_SENTENCES = 5
PYTHON_VOCABULARY = 8000
DATA_VARIABLE = "FASTBERT_DATA"
ENGLISH = "wiki-en sentences"
PYTHON = ("Python docs, sentences", "Python docs, paragraphs")
DERIVED = ("one long document", "source code", "hostile mixture")


class Vocabulary(NamedTuple):
    """A vocab.txt and whether text is lower-cased for it."""

    name: str
    path: Path
    lower_case: bool

    @property
    def options(self) -> dict[str, Any]:
        """Return what a contender's constructor receives besides the path."""
        return {"lower_case": self.lower_case}

    @property
    def entries(self) -> int:
        """Return the number of tokens."""
        return self.path.read_bytes().count(b"\n")


class Family(NamedTuple):
    """A folder with a tokenizer.json, and the name of its model: "BPE" or "Unigram"."""

    name: str
    path: Path
    model: str

    @property
    def options(self) -> dict[str, Any]:
        """Return what a contender's constructor receives besides the path: nothing."""
        return {}

    @property
    def entries(self) -> int:
        """Return the number of pieces, added tokens not among them."""
        return len(json.loads((self.path / "tokenizer.json").read_bytes())["model"]["vocab"])


@dataclass(frozen=True)
class Workload:
    """Texts to encode with a vocabulary, or with a family's tokenizer."""

    name: str
    texts: list[str]
    vocabulary: Vocabulary | Family

    @property
    def text_bytes(self) -> int:
        """Return the bytes of all texts in UTF-8."""
        return sum(len(text.encode()) for text in self.texts)


def find_data(named: Path | None, *, without: str = "to measure without these texts") -> Path | None:
    """Return the data folder: the named one, else FASTBERT_DATA, else the one beside the clone if it exists. Raises
    `UserError` for a missing folder; `without` says what happens if none is named."""
    variable = os.environ.get(DATA_VARIABLE)
    folder = named if named is not None else Path(variable) if variable else None
    if folder is not None:
        if not folder.is_dir():
            flag = "--data" if named is not None else DATA_VARIABLE
            raise UserError(f"{flag} {folder}: no such folder; correct it, or leave it out {without}")
        return folder
    default = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    return default if default.is_dir() else None


def environment_with(data: Path | None) -> dict[str, str]:
    """Return the environment of a benchmark that finds this data folder; None: this process's own."""
    return {**os.environ, **({} if data is None else {DATA_VARIABLE: str(data.absolute())})}


def text_workloads(text: Path, vocab: Path, limit: int, quick: bool) -> list[Workload]:
    """Return workloads from the lines of a file, with the vocabulary of a vocab.txt."""
    from fastbert.tokenizers import WordPieceTokenizer

    texts = lines_of(text, limit)
    vocabulary = Vocabulary(vocab.name, vocab, WordPieceTokenizer.from_pretrained(vocab).do_lower_case)
    return [Workload(f"{text.name}, lines", texts, vocabulary), *_derived(texts, vocabulary, _of_others(limit, quick))]


def lines_of(text: Path, limit: int) -> list[str]:
    """Return the lines of a user's file that are not blank, at most `limit` bytes. Raises `UserError` without any."""
    require_regular_file(text)
    try:
        lines = text.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"--text {text}: not UTF-8 ({error.reason} at byte {error.start}); convert it") from None
    texts = list(up_to(limit, (line for line in lines if line.strip())))
    if not texts:
        raise UserError(f"--text {text}: holds no text; give a file with one text per line")
    return texts


def python_workloads(folder: Path, limit: int, quick: bool) -> list[Workload]:
    """Return workloads from this Python's docstrings and source code, with a vocabulary learned from the docstrings."""
    from fastbert.data.python_text import python_documents
    from fastbert.tokenizers import train_vocabulary

    documents = list(python_documents(limit))
    sentences = [sentence for document in documents for sentence in document]
    path = folder / "python-vocab.txt"
    tokens = train_vocabulary(sentences, min(PYTHON_VOCABULARY, max(300, limit // 100)))
    path.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8", newline="")
    vocabulary = Vocabulary("python", path, True)
    limit = _of_others(limit, quick)
    paragraphs = list(up_to(limit, _paragraphs(documents)))
    return [
        Workload(PYTHON[0], sentences, vocabulary),
        Workload(PYTHON[1], paragraphs, vocabulary),
        *_derived(sentences, vocabulary, limit),
    ]


def data_workloads(data: Path, folder: Path, limit: int, quick: bool, skipped: Callable[[str], None]) -> list[Workload]:
    """Return all workloads of the data folder; vocabularies are unpacked to `folder`, and `skipped` receives a line per
    missing file."""
    vocabularies = {name: _unpack_vocabulary(data, folder, name) for name in LOWER_CASE}
    for name, vocabulary in vocabularies.items():
        if vocabulary is None:
            skipped(f"{data}: no vocabulary {name}; its texts are left out")
    table: list[Workload] = []

    def add(name: str, vocabulary: str, path: str, reader: Callable[[Path], Iterable[str]]) -> None:
        vocabulary_file = vocabularies[vocabulary]
        if vocabulary_file is None:
            return
        if not (data / path).exists():
            skipped(f"{data}: no {path}; {name} is left out")
            return
        table.append(Workload(name, list(up_to(limit, reader(data / path))), vocabulary_file))

    add(ENGLISH, UNCASED, "wiki-en/wiki_en.sent.txt.xz", packed_lines)
    limit = _of_others(limit, quick)
    add("books-en paragraphs", UNCASED, "books-en/books_en.sent.txt.xz", lambda path: _paragraphs(_documents(path)))
    english = next((workload for workload in table if workload.name == ENGLISH), None)
    if english is not None:
        table += _derived(english.texts, english.vocabulary, limit)
    for language in QUICK_LANGUAGES if quick else LANGUAGES:
        add(f"news {language}", MULTILINGUAL, "multilingual/ntrex.tar.xz", partial(news, language=language))
    if not quick:
        add("wiki-zh paragraphs", CHINESE, "multilingual/wiki-zh.txt.xz", packed_lines)
    return table


def up_to(limit: int, texts: Iterable[str]) -> Iterator[str]:
    """Yield texts of at most `limit` bytes in total, but at least one."""
    used = 0
    for text in texts:
        used += len(text.encode())
        if used > limit and used != len(text.encode()):
            return
        yield text


def as_one_document(texts: Iterable[str], limit: int) -> str:
    """Join texts as the lines of one document, truncated to `limit` bytes."""
    return "\n".join(texts).encode()[:limit].decode(errors="ignore")


def _of_others(limit: int, quick: bool) -> int:
    """Return the size of all texts but the first, which are smaller for `quick`."""
    return limit // 4 if quick else limit


def _derived(texts: list[str], vocabulary: Vocabulary | Family, limit: int) -> list[Workload]:
    """Return the workloads for any vocabulary: one long document, source code, hostile text."""
    return [
        Workload(DERIVED[0], [as_one_document(texts, limit)], vocabulary),
        Workload(DERIVED[1], list(up_to(limit, _source_code())), vocabulary),
        Workload(DERIVED[2], hostile_mixture(vocabulary.path, max(1000, min(limit, 1_000_000))), vocabulary),
    ]


def _unpack_vocabulary(data: Path, folder: Path, name: str) -> Vocabulary | None:
    packed = data / "vocab" / f"{name}-vocab.txt.xz"
    if not packed.exists():
        return None
    path = folder / f"{name}-vocab.txt"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return Vocabulary(name, path, LOWER_CASE[name])


def packed_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a packed text that are not blank."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            if line.strip():
                yield line.removesuffix("\n")


def _documents(path: Path) -> Iterator[list[str]]:
    """Yield documents as lists of lines: they are separated by blank ones."""
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for filled, lines in itertools.groupby(file, key=lambda line: bool(line.strip())):
            if filled:
                yield [line.removesuffix("\n") for line in lines]


def _paragraphs(documents: Iterable[list[str]]) -> Iterator[str]:
    """Yield five consecutive sentences as one text."""
    for sentences in documents:
        for start in range(0, len(sentences), PARAGRAPH_SENTENCES):
            yield " ".join(sentences[start : start + PARAGRAPH_SENTENCES])


def news(path: Path, language: str) -> list[str]:
    """Return the lines of one language of the parallel text."""
    return next(lines for name, lines in all_news(path) if name == language)


def all_news(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the languages of the parallel text, each with its lines that are not blank."""
    with tarfile.open(path, "r:xz") as archive:
        for member in archive:
            name = Path(member.name)
            file = archive.extractfile(member) if name.suffix == ".txt" else None
            if file is not None:
                lines = file.read().decode().replace("\r\n", "\n").split("\n")
                yield name.stem, [line for line in lines if line.strip()]


def _source_code() -> Iterator[str]:
    """Yield the modules of Python's standard library, one text per file."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            yield text
