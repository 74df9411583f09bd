"""`fastbert search`: make an index of the texts of a file, and find the texts that are nearest to a query."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from fastbert.cli.checks import STDIN, check_length, check_model, check_new_folder, check_texts, named
from fastbert.cli.counts import counted
from fastbert.cli.model_flags import InferenceFlags
from fastbert.cli.ranking_flags import is_cross_encoder
from fastbert.errors import UserError
from fastbert.flags import DATA, MODEL, OUTPUT, rare, require, required
from fastbert.io.log import logger
from fastbert.io.progress import Bars
from fastbert.reranking.settings import check_labels
from fastbert.search import faiss_files
from fastbert.search.documents import Documents
from fastbert.search.format import check_out, read_settings
from fastbert.tasks.text_files import TextFile

if TYPE_CHECKING:
    from fastbert.search.index import Hit

MEGABYTE = 1e6


@dataclass(frozen=True, kw_only=True)
class _IndexData:
    """The texts."""

    GROUP: ClassVar = DATA

    text: str | None = required("a file with the texts to search, or - for standard input")
    """File with the texts: .txt, one per line; .jsonl, .csv, .tsv, .parquet or .arrow with --column; also .gz and .xz;
    - reads lines from standard input. Empty texts are left out."""
    column: str | None = None
    """Key or column of the text (default: text)."""
    id_column: str | None = None
    """Key or column of the texts' ids (default: _id or id if there is one, else the numbers of lines or rows)."""
    max_length: int | None = None
    """Tokens per text; longer texts are truncated (default: the folder's, else as many as the model allows)."""


@dataclass(frozen=True, kw_only=True)
class _IndexModel:
    """The model."""

    GROUP: ClassVar = MODEL

    model: str | None = required("the folder of an embedder")
    """Folder of the model, one of sentence-transformers or any Hugging Face encoder; or its name in the Hub's cache."""
    prompt: str | None = None
    """Name of the folder's prompt that precedes each text (default: document, passage or corpus, if it has one of
    these)."""
    similarity: Literal["cosine", "dot"] | None = None
    """Score of a query and a text: cosine scales vectors to unit length, dot keeps their length (default: the folder's,
    else cosine)."""


@dataclass(frozen=True, kw_only=True)
class _IndexOutput:
    """The folder of the index."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = required("the folder to write the index to")
    """Folder to write."""
    store: Literal["fp16", "fp32", "int8", "faiss"] = "fp16"
    """Vectors that a query scans: fp16, exact to its rounding; fp32; int8, the fastest, whose best candidates are
    scored again with an fp16 copy; faiss, an index in FAISS' format, for many millions of vectors (needs faiss-cpu)."""
    no_rescore: bool = False
    """Keep no fp16 copy beside int8 and FAISS: less disk space, and less exact."""
    faiss: str | None = None
    """FAISS' factory string of the index: Flat, HNSW32, IVF4096,PQ48 ... (default: Flat)."""
    overwrite: bool = False
    """Replace the index if there is one."""


@dataclass(frozen=True, kw_only=True)
class IndexConfig(InferenceFlags, _IndexOutput, _IndexModel, _IndexData):
    """Embed the texts of a file and write an index of them to a folder, in bounded memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.faiss is not None and self.store != "faiss":
            raise UserError(f"--faiss {self.faiss} changes nothing without --store faiss; leave it out")
        if self.no_rescore and self.store not in ("int8", "faiss"):
            raise UserError(f"--no-rescore: --store {self.store} has no copy to rescore with; leave it out")
        if self.no_rescore and self.store == "faiss" and self.faiss in (None, "Flat"):
            raise UserError("--no-rescore: a flat FAISS index has no copy to rescore with; leave it out")


@dataclass(frozen=True, kw_only=True)
class _QueryData:
    """The queries."""

    GROUP: ClassVar = DATA

    query: Annotated[tuple[str, ...], tyro.conf.Positional] = required(
        "the words to search for, in quotes; or give --queries", unless=("queries",), name="QUERY", default=()
    )
    """One query or several, each in quotes."""
    index: Path | None = required("the folder of an index, made by `fastbert search index`")
    """Folder of the index."""
    queries: str | None = None
    """File with queries: .txt, one per line; .jsonl, .csv or .tsv with --column; - reads lines from standard input."""
    column: str | None = None
    """Key or column of the query in .jsonl, .csv and .tsv files (default: text)."""


@dataclass(frozen=True, kw_only=True)
class _QueryModel:
    """The model, and how it searches."""

    GROUP: ClassVar = MODEL

    model: str | None = None
    """Folder of the index's model, if it was moved."""
    prompt: str | None = None
    """Name of the folder's prompt that precedes each query (default: query, if it has one)."""
    rerank: str | None = None
    """Folder of a cross-encoder that ranks the best candidates again."""
    candidates: int = 100
    """Texts that --rerank scores."""
    probes: int = rare(32)
    """Lists of an IVF index, or candidates of an HNSW index, that FAISS visits per query."""


@dataclass(frozen=True, kw_only=True)
class _QueryOutput:
    """The hits."""

    GROUP: ClassVar = OUTPUT

    top: int = 10
    """Texts printed per query."""
    json: bool = False
    """Print a JSON object per hit: query (its number, from 1; empty ones count), rank, score, id, text."""


@dataclass(frozen=True, kw_only=True)
class QueryConfig(InferenceFlags, _QueryOutput, _QueryModel, _QueryData):
    """Print the texts of an index that are nearest to each query: rank, score, id and text, best first. Equal scores
    keep the order of the index."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("top", "candidates", "probes"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)} must be at least 1")
        if self.queries is not None and self.query:
            raise UserError(f"--queries {self.queries}: cannot be combined with a query on the command line")
        if self.queries is None and self.column is not None:
            raise UserError(f"--column {self.column} changes nothing without --queries; leave it out")
        if self.rerank is None and self.candidates != QueryConfig.candidates:
            raise UserError(f"--candidates {self.candidates} changes nothing without --rerank; leave it out")
        if self.candidates < self.top and self.candidates != QueryConfig.candidates:
            raise UserError(f"--candidates {self.candidates} must be at least --top {self.top}, which are printed")


SUBCOMMANDS: dict[str, tuple[type[Any], str]] = {
    "index": (IndexConfig, "embed the texts of a file and write an index of them"),
    "query": (QueryConfig, "print the texts of an index that are nearest to a query"),
}
EXAMPLES: dict[str, tuple[str, ...]] = {
    "index": (
        "fastbert search index --model MiniLM --text sentences.txt --out sentences",
        "fastbert search index --model MiniLM --text papers.jsonl --column abstract --out papers --store int8",
    ),
    "query": (
        'fastbert search query --index sentences "when was the bridge built"',
        'fastbert search query --index papers --rerank ms-marco-MiniLM-L6-v2 --json "sparse attention"',
    ),
}


def overview() -> str:
    """Return the sub-commands, one per line, and the shortest useful calls."""
    names = "\n".join(f"  {name:<8}{description}" for name, (_, description) in SUBCOMMANDS.items())
    return (
        f"usage: fastbert search WHAT [FLAGS]\n\n{names}\n\n"
        "`fastbert search WHAT --help` shows the flags.\n\n"
        "Example: fastbert search index --model MiniLM --text sentences.txt --out sentences\n"
        '         fastbert search query --index sentences "when was the bridge built"'
    )


def subcommand(what: str) -> type[Any]:
    """Return the flags of a sub-command. Raises `UserError` for an unknown one."""
    if what in SUBCOMMANDS:
        return SUBCOMMANDS[what][0]
    close = difflib.get_close_matches(what, SUBCOMMANDS, n=1)
    hint = f"did you mean `fastbert search {close[0]}`?" if close else "`fastbert search` describes them"
    problem = "comes before index or query" if what.startswith("-") else "is not known"
    raise UserError(f"search {what!r}: {problem}; choose one of {', '.join(SUBCOMMANDS)} ({hint})")


def check(config: IndexConfig | QueryConfig) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    if isinstance(config, IndexConfig):
        model = require(config, "model")
        values = check_model("--model", model)
        if is_cross_encoder(values):
            raise UserError(f"--model {model}: is a cross-encoder, which has no vectors; name an embedder")
        if config.max_length is not None:
            check_length(config.max_length, values, model)
        with named("--text"):
            documents = Documents(require(config, "text"), config.column, config.id_column)
            if config.text != STDIN and next(documents.with_ids(), None) is None:
                raise UserError(f"{config.text}: holds no text; name a file that does")
        faiss_files.check(config.store, config.faiss or "Flat")
        out = require(config, "out")
        check_new_folder("--out", out)
        with named("--out"):
            check_out(out, config.overwrite)
        return
    with named("--index"):
        settings = read_settings(require(config, "index"))
    for text in config.query:
        if not text.strip():
            raise UserError(f"QUERY {text!r}: is empty; give the words to search for")
    if config.queries is not None:
        check_texts("--queries", config.queries, config.column)
    if settings.model is None:
        raise UserError(f"--index {config.index}: was made of vectors, without a model; query it from Python")
    if settings.store != "faiss" and config.probes != QueryConfig.probes:
        raise UserError(f"--probes {config.probes} changes nothing for an index without FAISS; leave it out")
    check_model("--model", config.model)
    values = check_model("--rerank", config.rerank)
    if values:
        with named("--rerank"):
            check_labels(values, config.rerank)


def run(config: IndexConfig | QueryConfig, *, quiet: bool = False) -> int:
    """Write an index, or print hits."""
    if isinstance(config, IndexConfig):
        _index(config, quiet)
    else:
        _query(config, quiet)
    return 0


def _index(config: IndexConfig, quiet: bool) -> None:
    from fastbert.embeddings.embed import Counts
    from fastbert.search.build import BuildOptions, build_index

    documents = Documents(require(config, "text"), config.column, config.id_column)
    counts, began, position = Counts(), time.perf_counter(), 0
    options = BuildOptions(
        store=config.store,
        rescore=not config.no_rescore,
        similarity=config.similarity,
        prompt=config.prompt,
        max_length=config.max_length,
        batch_tokens=config.batch_tokens,
        faiss=config.faiss or BuildOptions.faiss,
    )
    with Bars(quiet) as bars:
        update = bars.stage("embedding", documents.total_bytes, "texts")

        def progress(done: int) -> None:
            nonlocal position
            position = max(position, documents.position * done // max(counts.read, 1))
            update(position, counted(done, "text"), counted=done)

        settings = build_index(
            require(config, "out"),
            documents.with_ids(),
            require(config, "model"),
            options,
            device=config.device,
            dtype=config.dtype,
            overwrite=config.overwrite,
            counts=counts,
            progress=progress,
            message=bars.message,
        )
    if documents.empty:
        empty = f", {counted(documents.empty, 'empty text')} left out"
    else:
        empty = ""
    size = sum(entry.size for entry in settings.files.values()) / MEGABYTE
    print(
        f"{counted(settings.count, 'text')} ({documents.described}{empty}), {counts.describe_truncated()};"
        f" {settings.width} numbers per vector in {settings.faiss or settings.store}, {size:,.1f} MB:"
        f" {time.perf_counter() - began:.1f} s, {config.out}"
    )


def _query(config: QueryConfig, quiet: bool) -> None:
    from fastbert.search.index import QUERY_BATCH, Index

    numbered = list(enumerate(config.query, 1))
    if config.queries is not None:
        with named("--queries"):
            texts = list(TextFile(config.queries, config.column))
            numbered = [(number, text) for number, text in enumerate(texts, 1) if text.strip()]
            if not numbered:
                raise UserError(f"{config.queries}: holds no query; name a file that does")
        if len(numbered) < len(texts):
            logger.warning("%s: %s left out", config.queries, counted(len(texts) - len(numbered), "empty text"))
    reranker = None
    with Index.open(require(config, "index"), model=config.model, device=config.device, dtype=config.dtype) as index:
        if config.rerank is not None:
            from fastbert.reranking.cross_encoder import CrossEncoder

            reranker = CrossEncoder(config.rerank, device=config.device, dtype=config.dtype)
        for first in range(0, len(numbered), QUERY_BATCH):
            batch = numbered[first : first + QUERY_BATCH]
            results = index.query(
                [query for _, query in batch],
                config.top,
                prompt=config.prompt,
                reranker=reranker,
                candidates=config.candidates,
                probes=config.probes,
            )
            for (number, query), hits in zip(batch, results, strict=True):
                if config.json:
                    _print_json(number, hits)
                    continue
                if len(numbered) > 1:
                    print(query)
                _print(hits)


def _print(hits: Sequence[Hit]) -> None:
    ids = [" ".join(hit.id.split()) for hit in hits]
    rank_width, id_width = len(str(len(hits))), max(map(len, ids), default=0)
    for hit, identifier in zip(hits, ids, strict=True):
        text = " ".join(hit.text.split())
        print(f"{hit.rank:>{rank_width}}  {hit.score:>9.5f}  {identifier:>{id_width}}  {text}")


def _print_json(number: int, hits: Sequence[Hit]) -> None:
    for hit in hits:
        # Nine digits represent each fp32 exactly.
        score = float(f"{hit.score:.9g}")
        record = {"query": number, "rank": hit.rank, "score": score, "id": hit.id, "text": hit.text}
        print(json.dumps(record, ensure_ascii=False))
