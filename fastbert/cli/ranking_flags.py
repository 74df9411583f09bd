"""The flags of `fastbert evaluate` for retrieval and reranking, and their checks before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from fastbert.cli.checks import check_file, check_folder, check_model, check_new_file, named
from fastbert.cli.language_model_tasks import RETRIEVAL, refuse_flags, refuse_scored_files
from fastbert.cli.retrieval_flags import POOLINGS
from fastbert.errors import UserError
from fastbert.flags import flag, rare, required
from fastbert.io.figures import PICTURES
from fastbert.io.output_files import check_output
from fastbert.reranking.settings import SHORTEST, check_labels
from fastbert.tasks.metrics.retrieval import check_metrics, deepest
from fastbert.tasks.readers.documents import check_kind, find_beir

# Name -> the inputs that it needs.
RETRIEVAL_TASKS = dict.fromkeys(RETRIEVAL, "queries, documents and judgements")
_FILES = ("queries", "documents", "qrels")
# The flags of one task, and those of some kinds of vectors.
_RETRIEVAL_ALONE = ("top", "rerank", "rerank_top", "widths", "plot", "drop_same_id")
KINDS_OF_FLAGS: dict[str, tuple[str, ...]] = {
    "similarity": ("dense",),
    "long": ("dense",),
    "widths": ("dense",),
    "normalize": ("dense", "tokens"),
    "pooling": ("dense", "sparse"),
    "query_length": ("tokens",),
    "top_k": ("sparse",),
}
_CROSS_ENCODER = "ForSequenceClassification"


@dataclass(frozen=True, kw_only=True)
class RetrievalTaskFlags:
    """Queries, documents and judgements, and how documents are ranked."""

    GROUP: ClassVar = "Rankings (--task retrieval, reranking)"

    queries: Path | None = None
    """File of queries: .jsonl with _id and text, or .tsv with an id and a text; also .gz and .xz."""
    documents: Path | None = None
    """File of documents, as --queries; a title precedes the text."""
    qrels: Path | None = required("a file of judgements; or give --data", when="run", unless=("data",))
    """File of judgements, TREC's or BEIR's."""
    split: str = rare("test")
    """Judgements of a BEIR folder, qrels/SPLIT.tsv."""
    run: Path | None = None
    """TREC run. Without --model its rankings are scored; for reranking its documents are the candidates (default: the
    judged documents)."""
    vectors: Literal["dense", "tokens", "sparse"] = "dense"
    """Vectors of --model: one per text, one per token with MaxSim (ColBERT), or sparse ones (SPLADE)."""
    similarity: Literal["cosine", "dot"] | None = rare(None)
    """dense: compares vectors (default: the folder's, else cosine)."""
    pooling: Literal["mean", "max", "cls", "sum"] | None = rare(None)
    """Pooling of the tokens' vectors (default: the folder's); --vectors sparse has max and sum."""
    normalize: bool = rare(False)
    """Scale each vector to unit length, even if the folder's settings do not."""
    long: Literal["truncate", "windows", "error"] = rare("truncate")
    """dense: longer texts are truncated, split into overlapping windows, or refused."""
    query_prompt: str | None = None
    """Name of the folder's prompt that precedes queries (default: query, if it has one)."""
    document_prompt: str | None = None
    """Name of the folder's prompt that precedes documents (default: document, passage or corpus, if it has one)."""
    query_length: int | None = rare(None)
    """tokens: fill queries with [MASK] up to so many tokens; 0: not at all (default: the folder's)."""
    top_k: int | None = rare(None)
    """sparse: keep so many entries per text, those with the largest weights (default: all)."""
    top: int | None = None
    """Documents per query that are retrieved (default: 100, or the largest rank in --metrics)."""
    rerank: str | None = None
    """Folder of a cross-encoder that ranks the retrieved documents again."""
    rerank_top: int | None = rare(None)
    """Documents per query that --rerank ranks, and drops the others (default: all)."""
    metrics: tuple[str, ...] = ()
    """Metrics: map, or ndcg, mrr, recall, precision, map and accuracy with a rank, such as ndcg@10 (default: ndcg@10,
    mrr@10, map@100, recall@1, @10 and @100)."""
    widths: tuple[int, ...] = ()
    """Score the first so many numbers of each vector, one row per width (Matryoshka)."""
    plot: Path | None = None
    """Picture of the metrics over --widths, .png, .pdf or .svg."""
    drop_same_id: bool = rare(False)
    """Leave out documents whose id is the query's, as BEIR does."""
    run_out: Path | None = None
    """File to write the final rankings to, as a TREC run."""


_FLAGS = {
    item.name: RETRIEVAL[:1] if item.name in _RETRIEVAL_ALONE else RETRIEVAL for item in fields(RetrievalTaskFlags)
}


def task_of(config: Any) -> str | None:
    """Return the task, which a --run alone implies, or None for one of another kind."""
    if config.task is None and config.run is not None:
        return RETRIEVAL[0]
    return config.task if config.task in RETRIEVAL_TASKS else None


def check_flags(config: Any) -> None:
    """Raise `UserError` for flags that do not fit the task, before any file is read."""
    task = task_of(config)
    refuse_flags(config, task or config.task, _FLAGS, RetrievalTaskFlags())
    if task is None:
        return
    refuse_scored_files(config, task)
    if config.model is None and (config.run is None or task == "reranking"):
        raise UserError("--model is missing: the folder of an embedder or a cross-encoder; or score a --run alone")
    needed = _FILES if config.model is not None else _FILES[2:]
    for name in needed if config.data is None else ():
        if getattr(config, name) is None:
            meaning = {"queries": "a file of queries", "documents": "a file of documents"}
            raise UserError(f"{flag(name)} is missing: {meaning.get(name, 'a file of judgements')}; or give --data")
    if config.model is None:
        others = [name for name in _FLAGS if name not in ("qrels", "split", "run", "metrics")]
        refuse_flags(config, "a run alone", dict.fromkeys(others, ("retrieval with a --model",)), RetrievalTaskFlags())
    elif task == "retrieval" and config.run is not None:
        raise UserError(f"--run {config.run}: holds rankings already; leave --model out, or name --task reranking")
    _check_values(config)


def _check_values(config: Any) -> None:
    defaults = RetrievalTaskFlags()
    for name, kinds in KINDS_OF_FLAGS.items():
        if config.vectors not in kinds and getattr(config, name) != getattr(defaults, name):
            raise UserError(f"{flag(name)} changes nothing without --vectors {' or '.join(kinds)}; leave it out")
    if config.pooling is not None and config.pooling not in POOLINGS[config.vectors]:
        raise UserError(
            f"--pooling {config.pooling}: --vectors {config.vectors} has {', '.join(POOLINGS[config.vectors])}"
        )
    for name, least in (("top", 1), ("rerank_top", 1), ("top_k", 1), ("query_length", 0), ("max_length", SHORTEST)):
        value = getattr(config, name)
        if value is not None and value < least:
            raise UserError(f"{flag(name)} {value} must be at least {least}")
    if config.rerank_top is not None and config.rerank is None:
        raise UserError(f"--rerank-top {config.rerank_top} is for --rerank; name a cross-encoder with it")
    if any(width < 1 for width in config.widths) or len(set(config.widths)) < len(config.widths):
        raise UserError(f"--widths {' '.join(map(str, config.widths))}: must be different numbers, at least 1")
    if config.plot is not None and len(config.widths) < 2:
        raise UserError(f"--plot {config.plot}: draws metrics over several --widths; name them")
    for name in ("rerank", "run_out", "out"):
        if config.widths and getattr(config, name) is not None:
            raise UserError(f"{flag(name)} is for one ranking, and --widths makes several; leave one of them out")
    with named("--metrics"):
        if config.top is not None and deepest(config.metrics) > config.top:
            raise UserError(f"{' '.join(config.metrics)}: --top {config.top} documents are too few; raise it")
        check_metrics(config.metrics)


def check_files(config: Any) -> None:
    """Raise `UserError` for what can be found wrong with files and folders before torch is imported."""
    values = check_model("--model", config.model)
    if config.model is not None and task_of(config) == "retrieval" and is_cross_encoder(values):
        raise UserError(f"--model {config.model}: is a cross-encoder, which has no vectors; give it as --rerank")
    for name, model, content in (
        ("--rerank", config.rerank, check_model("--rerank", config.rerank)),
        ("--model", config.model, values if ranks(config, values) else {}),
    ):
        if content:
            with named(name):
                check_labels(content, model)
    check_folder("--data", config.data)
    for name in (*_FILES, "run"):
        path = getattr(config, name)
        check_file(flag(name), path)
        if path is not None and name in _FILES[:2]:
            with named(flag(name)):
                check_kind(path)
    if config.data is not None:
        with named("--data"):
            find_beir(config.data, config.split)
    check_new_file("--run-out", config.run_out)
    if config.out is not None:
        check_output(config.out, (".jsonl",), config.overwrite, "--out")
    if config.plot is not None:
        check_output(config.plot, PICTURES, True, "--plot")


def is_cross_encoder(values: Mapping[str, Any]) -> bool:
    """Return True if a config.json is that of a sequence classifier."""
    return any(str(name).endswith(_CROSS_ENCODER) for name in values.get("architectures") or ())


def ranks(config: Any, values: Mapping[str, Any]) -> bool:
    """Return True if the model of a config.json ranks candidates itself."""
    return task_of(config) == "reranking" and config.vectors == "dense" and is_cross_encoder(values)
