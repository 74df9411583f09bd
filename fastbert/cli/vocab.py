"""`fastbert vocab`: build a WordPiece vocabulary from a corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastbert.cli.common import Bars, output, require


@dataclass(frozen=True, kw_only=True)
class Config:
    """Build a WordPiece vocabulary; the same corpus always gives the same vocab.txt."""

    corpus: tuple[Path, ...] = ()
    """Text: files, folders or globs of .txt and .jsonl, also .gz and .xz of these."""
    out: Path | None = None
    """Folder for vocab.txt and the tokenizer's configuration."""
    vocab_size: int = 30522
    """Entries, special tokens included."""
    cased: bool = False
    """Keep capitals and accents."""
    min_frequency: int = 2
    """Pieces seen less often are left out."""
    text_format: Literal["auto", "lines", "paragraphs", "prose"] = "auto"
    """Layout of .txt files: a sentence a line, a paragraph a line, or wrapped prose; auto looks at each file."""
    text_key: str = "text"
    """Key that holds a document's text in .jsonl files."""
    overwrite: bool = False
    """Replace a vocabulary that is there already."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Build and save the vocabulary."""
    from fastbert.data.corpus import Corpus
    from fastbert.errors import UserError
    from fastbert.tokenizers import WordPieceTokenizer
    from fastbert.tokenizers.training import train_vocabulary

    require(config.corpus, "--corpus", "the text to learn from, as files, folders or globs")
    out = require(config.out, "--out", "the folder to write the vocabulary to")
    if (out / "vocab.txt").exists() and not config.overwrite:
        raise UserError(f"--out {out}: already holds a vocab.txt; replace it with --overwrite")
    corpus = Corpus.find(config.corpus, text_format=config.text_format, text_key=config.text_key)
    with Bars(quiet) as bars:
        report = bars.stage("reading", corpus.total_bytes)
        sentences = (sentence for document in corpus.documents(report) for sentence in document)
        vocabulary = train_vocabulary(
            sentences, config.vocab_size, lower_case=not config.cased, min_frequency=config.min_frequency
        )
    tokenizer = WordPieceTokenizer(vocabulary, do_lower_case=not config.cased)
    tokenizer.save_pretrained(out)
    output(
        f"{out}/vocab.txt: {tokenizer.vocab_size:,} entries\n"
        f"next: fastbert prepare --corpus {' '.join(map(str, config.corpus))} --tokenizer {out} --out shards"
    )
    return 0
