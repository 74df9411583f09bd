"""`fastbert prepare`: tokenize a corpus once, into shards that `pretrain --data` reads from memory maps."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fastbert.cli.checks import check_corpus, check_exists, check_new_folder
from fastbert.cli.counts import counted
from fastbert.data.corpus import CorpusFlags
from fastbert.data.dedup_flags import DedupFlags
from fastbert.errors import UserError
from fastbert.flags import DATA, MACHINE, OUTPUT, require, required
from fastbert.io.progress import Bars

EXAMPLES = (
    "fastbert prepare --corpus my_text/ --tokenizer vocab --out shards",
    "fastbert prepare --corpus 'books/*.txt.gz' --text-format prose --tokenizer vocab --out shards",
    "fastbert prepare --corpus s3://bucket/crawl/ --text-key content --dedup --tokenizer vocab --out shards",
)


@dataclass(frozen=True, kw_only=True)
class _Data(CorpusFlags, DedupFlags):
    """The corpus and its tokenizer."""

    GROUP: ClassVar = DATA

    tokenizer: Path | None = required("a folder or vocab.txt; `fastbert vocab` builds one")
    """Folder, vocab.txt or tokenizer.json of the tokenizer (`fastbert vocab` builds one)."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The folder of shards."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = required("the folder to write the shards to")
    """Folder to write; it appears only when it is complete."""
    overwrite: bool = False
    """Replace existing shards."""


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """The threads."""

    GROUP: ClassVar = MACHINE

    workers: int | None = None
    """Threads that tokenize (default: the cores that this process may use); the shards do not depend on it."""


@dataclass(frozen=True, kw_only=True)
class Config(_Machine, _Output, _Data):
    """Turn a corpus into token shards, in bounded memory."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    config.check_flags()
    if config.workers is not None and config.workers < 1:
        raise UserError(f"--workers {config.workers} must be at least 1")
    check_corpus(config)
    check_exists("--tokenizer", config.tokenizer)
    check_new_folder("--out", require(config, "out"), parents=True)


def run(config: Config, *, quiet: bool = False) -> int:
    """Prepare shards, with a progress bar in bytes and sentences."""
    from fastbert.data.dedup import DedupReport
    from fastbert.data.prepare import prepare
    from fastbert.tokenizers.loading import load_tokenizer

    require(config, "corpus")
    out = require(config, "out")
    tokenizer = load_tokenizer(require(config, "tokenizer"))
    corpus = config.find_corpus()
    with Bars(quiet) as bars:
        total = corpus.total_bytes
        update = bars.stage("tokenizing", total)

        def progress(done: int, sentences: int) -> None:
            update(done, f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB  {counted(sentences, 'sentence')}")

        shards = prepare(
            corpus,
            tokenizer,
            out,
            overwrite=config.overwrite,
            dedup=config.dedup,
            workers=config.workers,
            progress=progress,
        )
    dropped = DedupReport.read(shards.folder)
    print(
        f"{out}: {counted(shards.num_documents, 'document')}, {counted(shards.num_sentences, 'sentence')},"
        f" {counted(shards.num_tokens, 'token')}\n"
        + ("" if dropped is None else f"{dropped}\n")
        + f"next: fastbert pretrain --data {shlex.quote(str(out))} --model mini --out runs/mini"
    )
    return 0
