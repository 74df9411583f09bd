"""`fastbert rerank`: rank the texts of a file by their relevance to a query, with a cross-encoder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from fastbert.cli.checks import check_model, check_texts, named
from fastbert.cli.counts import counted
from fastbert.cli.model_flags import InferenceFlags
from fastbert.errors import UserError
from fastbert.flags import DATA, MODEL, OUTPUT, require, required
from fastbert.io.progress import Bars
from fastbert.reranking.settings import SHORTEST, check_labels
from fastbert.tasks.text_files import TextFile

EXAMPLES = (
    'fastbert rerank --model ms-marco-MiniLM-L6-v2 --query "who wrote Emma" --texts answers.txt --top 10',
    'fastbert rerank --model bge-reranker --query "a quiet hotel" --texts hotels.jsonl --column review --json',
)


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The query and the texts."""

    GROUP: ClassVar = DATA

    query: str | None = required("the words to rank texts by, in quotes")
    """The query, in quotes."""
    texts: str | None = required("a file with the texts, or - for standard input")
    """File with the texts: .txt, one per line; .jsonl, .csv or .tsv with --column; also .gz and .xz; - reads lines from
    standard input. Empty texts are scored too."""
    column: str | None = None
    """Key or column of the text in .jsonl, .csv and .tsv files (default: text)."""
    max_length: int | None = None
    """Tokens per pair of query and text, the longer of which is truncated first (default: the folder's, else as many as
    the model allows)."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model."""

    GROUP: ClassVar = MODEL

    model: str | None = required("the folder of a cross-encoder")
    """Folder of a cross-encoder: a sequence classifier with one label, of sentence-transformers or Hugging Face; or its
    name in the Hub's cache."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The ranking."""

    GROUP: ClassVar = OUTPUT

    top: int | None = None
    """Print the best texts only, so many (default: all)."""
    json: bool = False
    """Print a JSON object per text: rank, score, line, text."""


@dataclass(frozen=True, kw_only=True)
class Config(InferenceFlags, _Output, _Model, _Data):
    """Rank the texts of a file by their relevance to a query: prints rank, score, line number and text, best first.
    Texts with equal scores keep the order of the file. The model's folder says if scores are logits or pass a
    sigmoid."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    values = check_model("--model", require(config, "model"))
    if values:
        with named("--model"):
            check_labels(values, config.model)
    if not require(config, "query").strip():
        raise UserError(f"--query {config.query!r}: is empty; give the words to rank texts by")
    check_texts("--texts", require(config, "texts"), config.column)
    if config.top is not None and config.top < 1:
        raise UserError(f"--top {config.top} must be at least 1")
    if config.max_length is not None and config.max_length < SHORTEST:
        raise UserError(f"--max-length {config.max_length} must be at least {SHORTEST}: three tokens are special")


def run(config: Config, *, quiet: bool = False) -> int:
    """Print the ranking."""
    from fastbert.reranking.cross_encoder import CrossEncoder

    with named("--texts"):
        texts = list(TextFile(require(config, "texts"), config.column).numbered())
        if not texts:
            raise UserError(f"{config.texts}: holds no text; name a file that does")
    with Bars(quiet) as bars:
        model = CrossEncoder(require(config, "model"), device=config.device, dtype=config.dtype)
        bars.message(model.how)
        update = bars.stage("ranking", len(texts), "texts")
        ranked = model.rank(
            require(config, "query"),
            [text for _, text in texts],
            top=config.top,
            max_length=config.max_length,
            batch_tokens=config.batch_tokens,
            progress=lambda done: update(done, counted(done, "text"), counted=done),
        )
    ranks, lines = len(str(len(ranked))), len(str(texts[-1][0]))
    for rank, one in enumerate(ranked, 1):
        line = texts[one.index][0]
        if config.json:
            # Nine digits represent each fp32 exactly.
            record = {"rank": rank, "score": float(f"{one.score:.9g}"), "line": line, "text": one.text}
            print(json.dumps(record, ensure_ascii=False))
        else:
            print(f"{rank:>{ranks}}  {one.score:>9.5f}  {line:>{lines}}  {' '.join(one.text.split())}")
    return 0
