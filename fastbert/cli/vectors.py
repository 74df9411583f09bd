"""`fastbert vectors`: train static word vectors, and look at their neighbours and analogies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from fastbert.cli.checks import check_corpus, check_file
from fastbert.cli.counts import counted
from fastbert.data.corpus import CorpusFlags
from fastbert.errors import UserError
from fastbert.flags import DATA, OUTPUT, TRAINING, flag, rare, require, required
from fastbert.io.locations import LocationText
from fastbert.io.output_files import check_output
from fastbert.io.progress import Bars
from fastbert.vectors.files import SUFFIXES
from fastbert.vectors.training import Kind, TrainedVectors, VectorTraining, train_vectors
from fastbert.vectors.word_vectors import Neighbour, WordVectors

EXAMPLES = (
    "fastbert vectors --kind skipgram --corpus my_text/ --out vectors.txt --neighbours river winter",
    "fastbert vectors --vectors glove.6B.100d.txt --analogy France Paris Germany",
)


@dataclass(frozen=True, kw_only=True)
class _Data(CorpusFlags):
    """The text to train on."""

    GROUP: ClassVar = DATA

    corpus: tuple[LocationText, ...] = required(
        "text files, folders or globs; or give --vectors with an existing file", unless=("vectors",), default=()
    )
    """Text: files, folders or globs of .txt, .jsonl, .parquet and .arrow, Wikipedia's XML dumps, folders saved by
    `datasets`, also compressed (.gz, .xz, .zst, .bz2) and as URLs (s3://, https:// ...)."""
    lower_case: bool = False
    """Convert words to lower case."""
    min_count: int | None = None
    """Occurrences that a word needs to have a vector (default: 5; 2 in a corpus of less than a million words)."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    """The training of vectors."""

    GROUP: ClassVar = TRAINING

    kind: Kind = "skipgram"
    """Skip-gram or CBOW with negative sampling, which need gensim, or GloVe."""
    size: int = 100
    """Width of a vector."""
    window: int = 5
    """Words on each side that are a word's context, within its sentence."""
    epochs: int | None = None
    """Passes over the corpus, of GloVe over its counts (default: 5 to 20 by the size of the corpus; GloVe 25)."""
    negative: int = rare(5)
    """Random words per context word of skip-gram and CBOW."""
    x_max: float | None = rare(None)
    """Co-occurrences from which GloVe's weight is one (default: 100; 10 in a corpus of less than 100 million words)."""
    seed: int = rare(0)
    """Seed of the first vectors, of negative samples and of the order of GloVe's records."""
    threads: int = 1
    """Threads; with more than one, skip-gram and CBOW are not reproducible."""


@dataclass(frozen=True, kw_only=True)
class _Queries:
    """Words to look up, in the trained vectors or in those of a file."""

    GROUP: ClassVar = "Queries"

    vectors: Path | None = None
    """Existing file to look words up in: text of word2vec or GloVe, also .gz and .xz; nothing is trained."""
    neighbours: tuple[str, ...] = ()
    """Words whose nearest words, by cosine, are printed."""
    analogy: tuple[str, ...] = ()
    """Three words A B C: print the words that are to C as B is to A."""
    top_k: int = 10
    """Words printed per query."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The file of vectors."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = required("the file to write, .txt or .vec", unless=("vectors",))
    """File to write, word2vec's text format: .txt or .vec."""
    overwrite: bool = False
    """Replace the file if it exists."""


@dataclass(frozen=True, kw_only=True)
class Config(_Output, _Queries, _Training, _Data):
    """Train static word vectors on a corpus: skip-gram, CBOW or GloVe. With --neighbours or --analogy, look words up in
    them, or in an existing file of --vectors."""

    def __post_init__(self) -> None:
        if self.analogy and len(self.analogy) != 3:
            raise UserError(f"--analogy {' '.join(self.analogy)}: give three words A B C, for A is to B as C is to ...")
        if self.top_k < 1:
            raise UserError(f"--top-k {self.top_k} must be at least 1")
        if self.vectors is not None:
            for name, is_set in (("corpus", self.corpus), ("out", self.out is not None)):
                if is_set:
                    raise UserError(f"--vectors names trained vectors, and --{name} trains new ones; leave one out")
            for item in (*fields(_Data), *fields(_Training)):
                if getattr(self, item.name) != item.default:
                    name = item.name.replace("_", "-")
                    raise UserError(f"--vectors names trained vectors, and --{name} trains new ones; leave one out")
            if not self.neighbours and not self.analogy:
                raise UserError("--vectors has words to look up: give --neighbours WORD ..., or --analogy A B C")
        other = {"skipgram": "x_max", "cbow": "x_max", "glove": "negative"}[self.kind]
        if getattr(self, other) != next(item.default for item in fields(_Training) if item.name == other):
            raise UserError(f"{flag(other)} has no effect with --kind {self.kind}; leave it out")

    def training(self) -> VectorTraining:
        """Return the settings of the training. Raises `UserError`."""
        return VectorTraining(
            kind=self.kind,
            size=self.size,
            window=self.window,
            min_count=self.min_count,
            epochs=self.epochs,
            lower_case=self.lower_case,
            negative=self.negative,
            x_max=self.x_max,
            seed=self.seed,
            threads=self.threads,
        )


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    if config.vectors is not None:
        check_file("--vectors", config.vectors)
        return
    require(config, "corpus")
    training = config.training()
    check_output(require(config, "out"), SUFFIXES, config.overwrite, "--out")
    check_corpus(config)
    training.check_packages()


def run(config: Config, *, quiet: bool = False) -> int:
    """Train and save vectors, or read them; print what was asked of them."""
    if config.vectors is not None:
        with Bars(quiet) as bars:
            total = config.vectors.stat().st_size
            vectors = WordVectors.load(
                config.vectors, progress=lambda done: bars.count("reading", done, total, unit="bytes")
            )
    else:
        out = require(config, "out")
        began = time.perf_counter()
        with Bars(quiet) as bars:
            trained = train_vectors(
                config.find_corpus(),
                config.training(),
                progress=lambda stage, done, total, unit: bars.count(stage, done, total, unit=unit),
            )
        vectors = trained.vectors
        vectors.save(out, overwrite=config.overwrite)
        print(f"{describe(trained)}: {time.perf_counter() - began:.1f} s, {out}")
    unknown = []
    for word in config.neighbours:
        try:
            _print(word, vectors.neighbours(word, config.top_k))
        except UserError as error:  # the other words are answered
            unknown.append(f"--neighbours: {error}")
    if config.analogy:
        a, b, c = config.analogy
        try:
            _print(f"{a} : {b} = {c} : ?", vectors.analogy(a, b, c, config.top_k))
        except UserError as error:
            unknown.append(f"--analogy: {error}")
    if unknown:
        written = f"; {config.out} is written, look words up with --vectors" if config.vectors is None else ""
        raise UserError("; ".join(unknown) + written)
    return 0


def describe(trained: TrainedVectors) -> str:
    """Return a line on the vectors and what they were trained on."""
    records = "" if trained.records is None else f", {counted(trained.records, 'co-occurrence')}"
    return (
        f"vectors of {counted(len(trained.vectors), 'word')} out of {trained.distinct_words:,} that occur at least"
        f" {counted(trained.min_count, 'time')}, {counted(trained.vectors.size, 'number')} each;"
        f" {counted(trained.epochs, 'epoch')} on {counted(trained.total_words, 'word')}{records}"
    )


def _print(query: str, words: Sequence[Neighbour]) -> None:
    print(query)
    print("   " + "   ".join(f"{word} {cosine:.3f}" for word, cosine in words))
