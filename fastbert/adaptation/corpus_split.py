"""Split a corpus into a training part and a held-out part, its end; both are written as files of sentences.

Whatever the layout of the corpus, the files have one sentence per line and an empty line between documents, so later
stages of a run do not need the corpus. Duplicates of earlier documents are dropped, so that none is in both parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from fastbert.checkpoints.atomic_folder import atomic_folder
from fastbert.data.corpus import Corpus
from fastbert.data.dedup import repeats_of
from fastbert.errors import CheckpointError, CorpusError, UserError
from fastbert.io.atomic_write import sync_tree, write_synced
from fastbert.io.untrusted_input import read_json_object

TRAIN, HELD_OUT, INDEX = "train.txt", "held-out.txt", "index.json"
FORMAT, VERSION = "fastbert-corpus-split", 1
LEAST, MOST = 0.5, 2.0
"""The limits of a held-out part of whole documents, relative to the requested size; otherwise a document is divided."""
MOST_SENTENCES = 200_000
"""The most sentences that are held out."""

Progress = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """The size of a part of the corpus."""

    documents: int
    sentences: int


@dataclass(frozen=True, kw_only=True)
class CorpusSplit:
    """The two parts of a corpus in a folder."""

    folder: Path
    train: Part
    held_out: Part

    @property
    def train_file(self) -> Path:
        """Return the file of the training part."""
        return self.folder / TRAIN

    @property
    def held_out_file(self) -> Path:
        """Return the file of the held-out part."""
        return self.folder / HELD_OUT

    def train_documents(self) -> Iterator[list[str]]:
        """Yield the documents of the training part, each a list of sentences."""
        return Corpus.find(self.train_file, text_format="lines").documents()

    def held_out_documents(self) -> Iterator[list[str]]:
        """Yield the documents of the held-out part, each a list of sentences."""
        return Corpus.find(self.held_out_file, text_format="lines").documents()


def read_split(folder: Path) -> CorpusSplit | None:
    """Return the split that `split_corpus` wrote to a folder, None if there is none. Raises `UserError` for a file of
    another kind or a newer version."""
    path = folder / INDEX
    if not path.exists():
        return None
    values = read_json_object(path)
    version = values.get("version")
    if values.get("format") != FORMAT or not isinstance(version, int):
        raise UserError(f"{path}: does not describe a split corpus; restore it, or start again with --overwrite")
    if version > VERSION:
        raise UserError(f"{path}: written by a newer fastbert (version {version}); update fastbert")
    try:
        parts = {name: Part(**values[name]) for name in ("train", "held_out")}
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: is damaged ({error}); start again with --overwrite") from None
    return CorpusSplit(folder=folder, **parts)


def split_corpus(corpus: Corpus, folder: Path, fraction: float, progress: Progress | None = None) -> CorpusSplit:
    """Write both parts of a corpus to a folder, which appears whole, and return them.

    About the last `fraction` of the sentences, at most `MOST_SENTENCES`, is held out, beginning with the nearest
    document; if none begins near there, as in a corpus of one document, a document is divided. The corpus is read
    twice; `progress` is called with the bytes read so far. Raises `CorpusError` for a corpus that is empty or has a
    single sentence.
    """
    total = corpus.total_bytes
    report = progress or (lambda done: None)
    sizes = [len(document) for document in _documents(corpus, report)]
    first, inside = _begin(sizes, fraction)
    train, held_out = list[int](), list[int]()
    with atomic_folder(folder) as partial:
        with (
            (partial / TRAIN).open("w", encoding="utf-8") as train_file,
            (partial / HELD_OUT).open("w", encoding="utf-8") as held_out_file,
        ):
            for number, document in enumerate(_documents(corpus, lambda done: report(total + done))):
                cut = len(document) if number < first else inside if number == first else 0
                for sentences, sizes_of_part, file in (
                    (document[:cut], train, train_file),
                    (document[cut:], held_out, held_out_file),
                ):
                    if sentences:
                        file.write("\n".join(sentences) + "\n\n")
                        sizes_of_part.append(len(sentences))
        parts = {
            name: Part(documents=len(sizes_of_part), sentences=sum(sizes_of_part))
            for name, sizes_of_part in (("train", train), ("held_out", held_out))
        }
        values = {"format": FORMAT, "version": VERSION, **{name: asdict(part) for name, part in parts.items()}}
        write_synced(partial / INDEX, json.dumps(values, indent=2) + "\n")
        sync_tree(partial)
    return CorpusSplit(folder=folder, **parts)


def _documents(corpus: Corpus, progress: Progress) -> Iterator[list[str]]:
    """Yield the documents of a corpus without duplicates."""
    document: list[str] = []
    for batch in corpus.batches(progress, repeats=repeats_of("documents")):
        sentences, start = batch.strings(), 0
        for end in batch.document_ends.tolist():
            document += sentences[start:end]
            if document:
                yield document
            document, start = [], end
        document += sentences[start:]
    if document:
        yield document


def _begin(sizes: list[int], fraction: float) -> tuple[int, int]:
    """Return the number of the document in which the held-out part begins, and of its first sentence there; `sizes` are
    the sentences per document."""
    total = sum(sizes)
    if total < 2:
        raise CorpusError("the corpus has a single sentence; add text, since a part of it is held out")
    count = min(max(round(total * fraction), 1), total - 1, MOST_SENTENCES)
    starts = [0, *accumulate(sizes)][:-1]
    whole = [
        (abs(total - start - count), number)
        for number, start in enumerate(starts)
        if start and LEAST * count <= total - start <= MOST * count
    ]
    if whole:
        return min(whole)[1], 0
    mark = total - count
    number = max(number for number, start in enumerate(starts) if start <= mark)
    return number, mark - starts[number]
