"""`fastbert prepare`: tokenize a corpus once, into shards that `pretrain --data` reads from memory maps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastbert.cli.common import require
from fastbert.data.corpus import CorpusFlags
from fastbert.io.progress import Bars


@dataclass(frozen=True, kw_only=True)
class Config(CorpusFlags):
    """Turn a corpus into token shards, in bounded memory."""

    tokenizer: Path | None = None
    """Folder or vocab.txt of the tokenizer (`fastbert vocab` builds one)."""
    out: Path | None = None
    """Folder to write; it appears only when it is complete."""
    overwrite: bool = False
    """Replace existing shards."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Prepare shards, with a progress bar in bytes and sentences."""
    from fastbert.data.prepare import prepare
    from fastbert.tokenizers import WordPieceTokenizer

    require(config.corpus, "--corpus", "the text to tokenize, as files, folders or globs")
    out = require(config.out, "--out", "the folder to write the shards to")
    tokenizer = WordPieceTokenizer.from_pretrained(
        require(config.tokenizer, "--tokenizer", "a folder or vocab.txt; `fastbert vocab` builds one")
    )
    corpus = config.find_corpus()
    with Bars(quiet) as bars:
        total = corpus.total_bytes
        update = bars.stage("tokenizing", total)

        def progress(done: int, sentences: int) -> None:
            update(done, f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB  {sentences:,} sentences")

        shards = prepare(corpus, tokenizer, out, overwrite=config.overwrite, progress=progress)
    print(
        f"{out}: {shards.num_documents:,} documents, {shards.num_sentences:,} sentences, {shards.num_tokens:,} tokens\n"
        f"next: fastbert pretrain --data {out} --model mini --out runs/mini"
    )
    return 0
