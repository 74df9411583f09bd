"""The tasks of `fastbert evaluate` that score rankings: retrieval, reranking, and runs of any program."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbert.cli.checks import check_model, named
from fastbert.cli.counts import counted
from fastbert.cli.language_model_tasks import describe_machine
from fastbert.cli.ranking_flags import KINDS_OF_FLAGS, ranks, task_of
from fastbert.errors import UserError
from fastbert.io.atomic_write import atomic_write
from fastbert.io.log import logger
from fastbert.io.progress import Bars
from fastbert.tasks.metrics.retrieval import Judgements, RunScores, deepest, default_metrics, score_run
from fastbert.tasks.readers.documents import Texts, find_beir, read_texts
from fastbert.tasks.readers.judgements import check_run_ids, read_judgements, read_run, write_run

if TYPE_CHECKING:
    from fastbert.retrieval.scorers import Scorer

TOP = 100
"""Documents per query that are retrieved."""
RERANKING_METRICS = ("map", "mrr@10", "ndcg@10")


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """Queries, documents and judgements."""

    queries: Texts
    documents: Texts
    judgements: Judgements
    """Those of queries that have a text and a relevant document."""


def evaluate(config: Any, quiet: bool) -> dict[str, Any]:
    """Rank and score, print the figures, and return them."""
    began = time.perf_counter()
    modes: dict[str, Callable[[Any, Bars], dict[str, Any]]] = {"retrieval": _retrieval, "reranking": _reranking}
    with Bars(quiet) as bars:
        results = _run_alone(config) if config.model is None else modes[str(task_of(config))](config, bars)
    columns, summary = results.pop("columns"), results.pop("summary")
    print(_table(columns))
    print(f"{summary} in {time.perf_counter() - began:.1f} s")
    for name in ("out", "run_out", "plot"):
        if getattr(config, name) is not None:
            print(f"{name.replace('_', ' ')}: {getattr(config, name)}")
    return {"task": task_of(config), "model": config.model, **results, "seconds": round(time.perf_counter() - began, 3)}


def _judgements(config: Any) -> tuple[str, dict[str, dict[str, int]]]:
    """Return the file of judgements, and its content."""
    path = config.qrels if config.qrels is not None else find_beir(config.data, config.split).judgements
    with named("--qrels" if config.qrels is not None else "--data"):
        return str(path), read_judgements(path)


def _run_alone(config: Any) -> dict[str, Any]:
    path, judgements = _judgements(config)
    with named("--run"):
        run = read_run(config.run)
    with named(f"--run {config.run}:"):
        scores = score_run(run, judgements, config.metrics or default_metrics())
    _report_left_out(path, scores.without_relevant, "judged ", "no relevant document")
    _report_left_out(str(config.run), scores.unjudged, "", "no judgement")
    if scores.without_hits:
        logger.warning("%s: %s counted as 0", config.run, _lack(scores.without_hits, "judged ", "no hit"))
    _write_queries(config, scores)
    return {
        "run": str(config.run),
        "qrels": path,
        "queries": len(scores.queries),
        **scores.means,
        "columns": {"score": scores.means},
        "summary": f"{_queries(len(scores.queries))} of {config.run}",
    }


def _inputs(config: Any) -> _Inputs:
    """Read the files, and count what is left out."""
    beir = None if config.data is None else find_beir(config.data, config.split)
    path, judgements = _judgements(config)
    with named("--queries" if config.queries is not None else "--data"):
        queries = read_texts(config.queries if beir is None or config.queries is not None else beir.queries)
    with named("--documents" if config.documents is not None else "--data"):
        documents = read_texts(config.documents if beir is None or config.documents is not None else beir.documents)
    relevant = {query: judged for query, judged in judgements.items() if any(gain > 0 for gain in judged.values())}
    if not relevant:
        raise UserError(f"{path}: no query has a relevant document; judge some with a relevance of at least 1")
    _report_left_out(path, len(judgements) - len(relevant), "judged ", "no relevant document")
    scored = {query: judged for query, judged in relevant.items() if query in queries.index}
    if config.run_out is not None:  # before hours of ranking
        with named("--run-out:"):
            check_run_ids(scored, documents.ids)
    _report_left_out(queries.path, len(relevant) - len(scored), "judged ", "no text")
    _report_left_out(queries.path, sum(query not in judgements for query in queries.ids), "", "no judgement")
    if not scored:
        raise UserError(f"{path}: no query of {queries.path} has a relevant document; are the ids the same?")
    absent = {name for judged in scored.values() for name in judged if name not in documents.index}
    if absent:
        some = ", ".join(map(repr, sorted(absent)[:3])) + (", ..." if len(absent) > 3 else "")
        logger.warning(
            "%s: %s absent and cannot be found: %s", documents.path, _are(len(absent), "judged document"), some
        )
    return _Inputs(queries=queries, documents=documents, judgements=scored)


def _scorer(config: Any) -> Scorer[Any]:
    from fastbert.retrieval.scorers import SCORERS

    options: dict[str, Any] = {"query_prompt": config.query_prompt, "document_prompt": config.document_prompt}
    options |= {"max_length": config.max_length, "batch_tokens": config.batch_tokens}
    if config.vectors in KINDS_OF_FLAGS["pooling"]:
        options["pooling"] = config.pooling
    if config.vectors in KINDS_OF_FLAGS["normalize"]:
        options["normalize"] = config.normalize or None
    names = {"dense": ("similarity", "long"), "tokens": ("query_length",), "sparse": ("top_k",)}
    options |= {name: getattr(config, name) for name in names[config.vectors]}
    scorer: Scorer[Any] = SCORERS[config.vectors](config.model, device=config.device, dtype=_dtype(config), **options)
    return scorer


def _dtype(config: Any) -> Any:
    """Return the dtype: fp32 unless a different one is named, so that scores are the same everywhere."""
    return "fp32" if config.dtype == "auto" else config.dtype


def _retrieval(config: Any, bars: Bars) -> dict[str, Any]:
    inputs = _inputs(config)
    from fastbert.retrieval.runs import retrieve, to_run, truncated_views

    names, texts = list(inputs.judgements), inputs.documents.texts
    metrics = config.metrics or default_metrics(config.top or TOP)
    top = config.top or max(deepest(metrics), TOP if "map" in metrics else 1)
    scorer = _scorer(config)
    bars.message(scorer.how)
    update = bars.stage("embedding", len(names) + len(texts), "texts")
    views = {"views": truncated_views(config.widths)} if config.widths else {}
    # One more than is kept: the document with the query's id is dropped.
    rankings = retrieve(
        scorer,
        inputs.queries.of(names),
        texts,
        top + config.drop_same_id,
        **views,
        progress=lambda done: update(done, counted(done, "text"), counted=done),
    )
    runs = []
    for hits in rankings:
        run = to_run(hits, names, inputs.documents.ids, same_id=not config.drop_same_id)
        runs.append({query: dict(list(scores.items())[:top]) for query, scores in run.items()})
    _report_truncated(scorer)
    scores = [score_run(run, inputs.judgements, metrics) for run in runs]
    results = _described(config, inputs, scorer.how)
    if config.widths:
        by_width = {str(width): each.means for width, each in zip(config.widths, scores, strict=True)}
        if config.plot is not None:
            from fastbert.tasks.reports.widths import draw_widths

            draw_widths({int(width): means for width, means in by_width.items()}, config.plot)
        columns: dict[str, dict[str, float]] = {f"width {width}": means for width, means in by_width.items()}
        return results | {"widths": by_width, "columns": columns}
    columns = {"score": scores[0].means}
    if config.rerank is None:
        _write_outputs(config, runs[0], scores[0])
        return results | scores[0].means | {"columns": columns}
    run = _reranked(config, bars, config.rerank, inputs, runs[0], config.rerank_top)
    reranked = score_run(run, inputs.judgements, metrics)
    _write_outputs(config, run, reranked)
    columns = {"retrieved": scores[0].means, "reranked": reranked.means}
    return results | scores[0].means | {"rerank": config.rerank, "reranked": reranked.means, "columns": columns}


def _reranking(config: Any, bars: Bars) -> dict[str, Any]:
    inputs = _inputs(config)
    run: dict[str, dict[str, float]] | None = None
    if config.run is not None:
        with named("--run"):
            run = read_run(config.run)
    candidates = _candidates(config, inputs, run)
    metrics = config.metrics or RERANKING_METRICS
    columns = {}
    if run is not None:
        before = {query: {name: run[query][name] for name in ids} for query, ids in candidates.items()}
        columns["candidates"] = score_run(before, inputs.judgements, metrics).means
    if ranks(config, check_model("--model", config.model)):
        ranked = _reranked(config, bars, config.model, inputs, candidates, None, config.max_length)
        how = "a cross-encoder"
    else:
        from fastbert.retrieval.runs import score_candidates

        scorer = _scorer(config)
        how = scorer.how
        bars.message(how)
        total = len({name for ids in candidates.values() for name in ids})
        update = bars.stage("embedding", len(candidates) + total, "texts")
        ranked = score_candidates(
            scorer,
            inputs.queries,
            inputs.documents,
            candidates,
            lambda done: update(done, counted(done, "text"), counted=done),
        )
        _report_truncated(scorer)
    scores = score_run(ranked, inputs.judgements, metrics)
    _write_outputs(config, ranked, scores)
    results = _described(config, inputs, how) | scores.means
    if columns:
        results |= {"candidates": columns["candidates"]}
    return results | {"columns": {**columns, "reranked": scores.means}}


def _candidates(config: Any, inputs: _Inputs, run: dict[str, dict[str, float]] | None) -> dict[str, list[str]]:
    """Return the documents to rank for each query that has any."""
    known = inputs.documents.index
    source = inputs.judgements if run is None else run
    listed = {query: [name for name in source.get(query, ()) if name in known] for query in inputs.judgements}
    candidates = {query: ids for query, ids in listed.items() if ids}
    if run is not None:
        absent = sum(name not in known for query in inputs.judgements for name in run.get(query, ()))
        if absent:
            logger.warning("%s: %s absent and left out", config.run, _are(absent, "candidate"))
        if missing := len(listed) - len(candidates):
            logger.warning("%s: %s counted as 0", config.run, _lack(missing, "judged ", "no candidate"))
    elif alone := sum(all(gain > 0 for gain in judged.values()) for judged in inputs.judgements.values()):
        logger.warning(
            "of %s all judged documents are relevant, so that any ranking is perfect; give candidates by --run",
            _queries(alone),
        )
    if not candidates:
        raise UserError(f"--run {config.run}: holds no candidate of a judged query; are its ids those of the files?")
    return candidates


def _reranked(
    config: Any,
    bars: Bars,
    source: str,
    inputs: _Inputs,
    candidates: Mapping[str, Any],
    top: int | None,
    max_length: int | None = None,
) -> dict[str, dict[str, float]]:
    """Return the candidates of each query, at most `top` of them, as a cross-encoder ranks them."""
    from fastbert.reranking.cross_encoder import CrossEncoder
    from fastbert.retrieval.runs import rank_candidates

    ranker = CrossEncoder(source, device=config.device, dtype=_dtype(config))
    bars.message(f"{source}: {ranker.how}")
    chosen = {query: list(ids)[:top] for query, ids in candidates.items() if ids}
    update = bars.stage("ranking", sum(map(len, chosen.values())), "pairs")
    return rank_candidates(
        ranker,
        inputs.queries,
        inputs.documents,
        chosen,
        lambda done: update(done, counted(done, "pair"), counted=done),
        max_length=max_length,
        batch_tokens=config.batch_tokens,
    )


def _described(config: Any, inputs: _Inputs, how: str) -> dict[str, Any]:
    from fastbert.tasks.inference import choose_inference

    device = choose_inference(config.device, _dtype(config))[0]
    queries, documents = len(inputs.judgements), len(inputs.documents)
    return {
        "data": [inputs.queries.path, inputs.documents.path],
        "queries": queries,
        "documents": documents,
        "scoring": how,
        "machine": describe_machine(device, config.dtype),
        "summary": f"{_queries(queries)}, {counted(documents, 'document')}",
    }


def _write_outputs(config: Any, run: Mapping[str, Mapping[str, float]], scores: RunScores) -> None:
    _write_queries(config, scores)
    if config.run_out is not None:
        with named("--run-out:"):
            write_run(config.run_out, run)


def _write_queries(config: Any, scores: RunScores) -> None:
    """Write one object per query to --out."""
    if config.out is None:
        return
    with atomic_write(config.out) as partial, partial.open("w", encoding="utf-8") as file:
        for row, query in enumerate(scores.queries):
            values = {name: round(float(each[row]), 6) for name, each in scores.per_query.items()}
            file.write(json.dumps({"query": query, **values}, ensure_ascii=False) + "\n")


def _table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Return the metrics, one per line with a column per ranking; or one per column, of several widths."""
    names = list(next(iter(columns.values())))
    if len(columns) == 1:
        width = max(map(len, names))
        return "\n".join(f"{name:<{width}}  {value:>9.4f}" for name, value in next(iter(columns.values())).items())
    heads, rows = list(columns), names
    values = [[columns[head][name] for head in heads] for name in rows]
    if heads[0].startswith("width "):
        heads, rows, values = names, heads, [[means[name] for name in names] for means in columns.values()]
    first = max(map(len, rows))
    lines = [" " * first + "".join(f"  {head:>10}" for head in heads)]
    lines += [f"{row:<{first}}" + "".join(f"  {value:>10.4f}" for value in of_row) for row, of_row in zip(rows, values)]
    return "\n".join(lines)


def _report_left_out(source: str, number: int, kind: str, lacks: str) -> None:
    if number:
        logger.warning("%s: %s left out", source, _lack(number, kind, lacks))


def _report_truncated(scorer: Scorer[Any]) -> None:
    for side, counts in scorer.counts.items():
        if counts.truncated:
            logger.warning("%s side: %s", side, counts.describe_truncated())


def _queries(number: int, kind: str = "") -> str:
    return f"{number:,} {kind}{'query' if number == 1 else 'queries'}"


def _lack(number: int, kind: str, lacks: str) -> str:
    """Return "1 query has no hit and is", "2 judged queries have no hit and are"."""
    has, verb = ("has", "is") if number == 1 else ("have", "are")
    return f"{_queries(number, kind)} {has} {lacks} and {verb}"


def _are(number: int, noun: str) -> str:
    return f"{counted(number, noun)} {'is' if number == 1 else 'are'}"
