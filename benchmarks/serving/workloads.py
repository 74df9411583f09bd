"""The workloads of the serving benchmark: each starts its servers, compares their outputs, and measures in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastbert.benchmarks.cpu import embed_contender, rerank_contender
from fastbert.benchmarks.cpu.lineup import Result, Verdict, compare, is_own
from fastbert.benchmarks.harness.measure import ContenderFailed, Row, Timing
from fastbert.benchmarks.serving import models
from fastbert.benchmarks.serving.generator import Load, write_bodies
from fastbert.benchmarks.serving.measuring import (
    P99_LIMIT,
    Lab,
    Measured,
    Target,
    in_turns,
    most_clients,
    one_round,
    rows_of,
    with_goal,
)
from fastbert.benchmarks.serving.servers import CONTENDERS, Server

OWN = tuple(name for name in CONTENDERS if is_own(name))
COMPARED = 64  # texts
BATCH = 64  # texts per request
SIZES = {1: 64, 8: 16, BATCH: 4}  # clients that saturate a server, by texts per request
PAIRS = 100
# The goals of the project: ratios of requests, shares of time, milliseconds.
OVER_PEERS = {"sentence-transformers": 3.0, "infinity": 2.0}
BATCH_TOKENS, LIBRARY_SHARE, OVERHEAD_MS, RERANK_MS = 11_400, 0.15, 0.3, 1000.0


def single(lab: Lab, texts: Sequence[str], source: str) -> Result:
    """Single sentences to MiniLM: requests per second with at most 32 clients and 200 ms at the 99th percentile."""
    workload = "single"
    model = models.minilm(lab.scratch, texts)
    work = embed_contender.workload(source, texts, model)
    reference = lab.reference("embed", model, texts[:COMPARED])
    with lab.servers(workload, list(CONTENDERS), model) as servers:
        targets: dict[str, Target] = {}
        for name, server in servers.items():
            target = Target(server.contender.route, _bodies(lab, server, texts, 1), 32)
            try:
                _warm(server, target, lab.seconds)
                targets[name] = target._replace(clients=most_clients(server, target, min(lab.seconds, 2)))
            except ContenderFailed as error:
                lab.drop(workload, name, str(error))
        rows = _embedding_rows(
            lab,
            workload,
            {name: servers[name] for name in targets},
            targets,
            reference,
            texts,
            each=1,
            tokens=work.tokens / work.texts,
            note=f"MiniLM, {source}, {work.tokens / work.texts:.1f} tokens each, p99 <= {P99_LIMIT:.0f} ms",
        )
    return lab.result(_over_peers(rows), workload)


def batches(lab: Lab, texts: Sequence[str], source: str) -> Result:
    """Requests of 64 sentences to a model of bge-small's shape: tokens per second."""
    workload = f"batch{BATCH}"
    model = models.random_embedder(lab.scratch / "bge-small", models.BGE_SMALL, texts)
    work = embed_contender.workload(source, texts, model)
    reference = lab.reference("embed", model, texts[:COMPARED])
    with lab.servers(workload, ("fastbert bf16", "fastbert int8"), model) as servers:
        targets = {
            name: Target(server.contender.route, _bodies(lab, server, texts, BATCH), SIZES[BATCH])
            for name, server in servers.items()
        }
        rows = _embedding_rows(
            lab,
            workload,
            servers,
            targets,
            reference,
            texts,
            each=BATCH,
            tokens=work.tokens / work.texts * BATCH,
            note=f"bge-small's shape, {BATCH} texts per request, {source}, {work.tokens / work.texts:.1f} tokens each",
        )

    def judged(row: Row) -> Row:
        speed = row.tokens_per_second or 0.0
        met = speed >= BATCH_TOKENS
        return with_goal(row, f">= {BATCH_TOKENS:,}", f"{speed:,.0f} tokens/s", met) if row.dtype == "int8" else row

    return lab.result([judged(row) for row in rows], workload)


def library(lab: Lab, texts: Sequence[str], source: str) -> Result:
    """A saturated server beside `model.embed` of the same texts in a process of its own, in turns."""
    model = models.minilm(lab.scratch, texts)
    work = embed_contender.workload(source, texts, model)
    mean = work.tokens / work.texts
    result = Result()
    for each, clients in SIZES.items():
        workload = f"library, {each} text{'s' * (each > 1)}"
        for name in ("fastbert bf16", "fastbert int8"):
            with lab.servers(workload, (name,), model) as servers, lab.library("embed", name, model, texts) as alone:
                if name not in servers:
                    continue
                server = servers[name]
                target = Target("/embed", _bodies(lab, server, texts, each), clients)
                _warm(server, target, lab.seconds)
                measures: dict[str, Callable[[], Measured]] = {
                    name: partial(one_round, server, target, lab.seconds),
                    f"{name}, model.embed": partial(_alone, alone, len(texts) / each),
                }
                results = in_turns(measures, lab.rounds, partial(lab.drop, workload))
            if len(results) == 2:
                result.rows += _library_rows(lab, workload, name, results, clients, each, mean * each)
        result.absent += lab.absent_from(workload)
    return result


def empty(lab: Lab, texts: Sequence[str], source: str) -> Result:
    """The time of a request apart from the model's: /health, and one word to a model of one small layer."""
    workload, name, word = "empty", "fastbert fp32", ["word"]
    model = models.random_embedder(lab.scratch / "empty", models.EMPTY, texts)
    rows: list[Row] = []
    with lab.servers(workload, (name,), model) as servers:
        for server in servers.values():
            bodies = _bodies(lab, server, word, 1)
            targets = {
                f"{workload}, {route}, {clients} client{'s' * (clients > 1)}": Target(route, body, clients)
                for clients in (1, 32)
                for route, body in (("/health", None), ("/embed", bodies))
            }
            _warm(server, Target("/embed", bodies, 1), lab.seconds)
            for title, target in targets.items():
                results = in_turns(
                    {name: partial(one_round, server, target, lab.seconds)}, lab.rounds, partial(lab.drop, workload)
                )
                cost = _model_ms(lab, name, model, word * target.clients) if target.bodies else 0.0
                rows += [_overhead_row(lab, title, row, cost) for row in _plain_rows(lab, title, results, target)]
    return Result(rows, lab.absent_from(workload))


def rerank(lab: Lab, texts: Sequence[str], source: str) -> Result:
    """One request of a query and 100 texts of 256 tokens to a cross-encoder of MiniLM-L6's shape: its latency."""
    workload = "rerank"
    model = lab.scratch / "cross-encoder"
    rerank_contender.write_model(model)
    work = rerank_contender.workloads(model, PAIRS)[0]
    query, *passages = work.arrays["texts"].tobytes().decode().split("\n")
    reference = lab.reference("rerank", model, [query, *passages])
    body = {"query": query, "texts": passages, "raw_scores": True}
    path = write_bodies(lab.scratch / "rerank.jsonl", [body])
    with lab.servers(workload, ("fastbert bf16", "fastbert int8"), model) as servers:
        target = Target("/rerank", path, 1)

        def scores(server: Server) -> np.ndarray:
            ranked = sorted(server.post("/rerank", body), key=lambda item: item["index"])
            values = np.asarray([[item["score"] for item in ranked]], np.float32)
            return values - values.mean()

        verdicts = _verdicts(lab, workload, servers, scores, reference)
        results = in_turns(
            {name: partial(_one_at_a_time, servers[name], target, lab.seconds) for name in verdicts},
            lab.rounds,
            partial(lab.drop, workload),
        )
        rows = rows_of(
            workload,
            results,
            clients=dict.fromkeys(results, 1),
            verdicts=verdicts,
            tokens=work.tokens,
            texts=PAIRS,
            threads=lab.threads,
            note=f"MiniLM-L6's shape, {PAIRS} pairs of {rerank_contender.LONGEST} tokens per request",
        )

    def judged(row: Row) -> Row:
        seconds = row.details["p50_ms"] / 1e3
        met = row.details["p50_ms"] <= RERANK_MS
        return with_goal(row, "<= 1 s", f"{seconds:.2f} s", met) if row.dtype == "int8" else row

    return lab.result([judged(row) for row in rows], workload)


WORKLOADS: Mapping[str, Callable[[Lab, Sequence[str], str], Result]] = {
    "single": single,
    f"batch{BATCH}": batches,
    "library": library,
    "empty": empty,
    "rerank": rerank,
}


def _bodies(lab: Lab, server: Server, texts: Sequence[str], each: int) -> Path:
    """Write the bodies of requests of so many texts in a contender's form."""
    name = f"{server.name.replace(' ', '-').replace(',', '')}-{each}-{len(texts)}.jsonl"
    whole = range(0, max(len(texts) - each, 0) + 1, each)  # no request is shorter
    return write_bodies(lab.scratch / name, (server.contender.body(texts[first : first + each]) for first in whole))


def _warm(server: Server, target: Target, seconds: float) -> None:
    one_round(server, target, max(seconds / 2, 0.2))


def _in_turns(
    lab: Lab, workload: str, servers: Mapping[str, Server], targets: Mapping[str, Target]
) -> dict[str, list[Measured]]:
    measures = {name: partial(one_round, servers[name], target, lab.seconds) for name, target in targets.items()}
    return in_turns(measures, lab.rounds, partial(lab.drop, workload))


def _one_at_a_time(server: Server, target: Target, seconds: float) -> Measured:
    """Measure with one client whose rate follows from the median latency: few requests end within a round."""
    measured = one_round(server, target, seconds)
    p50 = measured.load.latency_ms["p50"]
    return measured._replace(load=replace(measured.load, requests_per_second=1e3 / p50 if p50 else 0.0))


def _verdicts(
    lab: Lab,
    workload: str,
    servers: Mapping[str, Server],
    values_of: Callable[[Server], np.ndarray],
    reference: tuple[str, np.ndarray],
) -> dict[str, Verdict]:
    """Compare the servers' values with the reference's; one that fails is left out."""
    verdicts = {}
    for name, server in servers.items():
        server.resume()
        try:
            verdicts[name] = compare(reference[1], values_of(server), server.contender.dtype, reference[0])
        except ContenderFailed as error:
            lab.drop(workload, name, str(error))
        server.pause()
    return verdicts


def _embedding_rows(
    lab: Lab,
    workload: str,
    servers: Mapping[str, Server],
    targets: Mapping[str, Target],
    reference: tuple[str, np.ndarray],
    texts: Sequence[str],
    *,
    each: int,
    tokens: float,
    note: str,
) -> list[Row]:
    """Compare the vectors of the first texts, then measure."""
    verdicts = _verdicts(lab, workload, servers, lambda server: server.embed(texts[:COMPARED], each), reference)
    results = _in_turns(lab, workload, servers, {name: targets[name] for name in verdicts})
    return rows_of(
        workload,
        results,
        clients={name: target.clients for name, target in targets.items()},
        verdicts=verdicts,
        tokens=tokens,
        texts=each,
        threads=lab.threads,
        note=note,
    )


def _over_peers(rows: Iterable[Row]) -> list[Row]:
    """Return the rows, fastbert's fastest one with its rate relative to each peer in its best setting."""
    rows = sorted(rows, key=lambda row: row.median_ms)
    best = next((row for row in rows if is_own(row.contender) and row.agrees), None)
    for peer, goal in OVER_PEERS.items() if best is not None else ():
        other = next((row for row in rows if row.contender.startswith(peer) and row.agrees), None)
        if best is None or other is None:
            continue
        ratio = other.median_ms / best.median_ms
        judged = with_goal(best, f">= {goal:g}x", f"{ratio:.2f}x {other.contender}", ratio >= goal)
        rows[rows.index(best)] = best = judged
    return rows


def _alone(contender: Any, requests: float) -> Measured:
    """Time `model.embed` of all texts once, as the rate of so many requests."""
    timing = Timing(*contender.call("time"))
    milliseconds = timing.seconds * 1e3
    latency = dict.fromkeys(("p50", "p90", "p99", "p99.9", "max"), None)
    load = Load(
        requests=round(requests), requests_per_second=requests / timing.seconds, seconds=timing.seconds,
        statuses={}, latency_ms=latency, unanswered=0, unsent=0, bytes_read=0, idle_closed=0, slow_answered=0,
        slow_closed=0, processor_seconds=0.0,
    )  # fmt: skip
    return Measured(load, timing.processor_seconds / (milliseconds / 1e3))


def _library_rows(
    lab: Lab,
    workload: str,
    name: str,
    results: Mapping[str, Sequence[Measured]],
    clients: int,
    each: int,
    tokens: float,
) -> list[Row]:
    note = f"MiniLM, {each} text{'s' * (each > 1)} per request"
    (own, alone) = (
        replace(row, contender=contender)
        for contender, rounds in results.items()
        for row in rows_of(
            workload,
            {name: rounds},
            clients={name: clients},
            verdicts={},
            tokens=tokens,
            texts=each,
            threads=lab.threads,
            note=note,
        )
    )
    loss = 1 - alone.median_ms / own.median_ms
    share = own.details["generator_share"]
    value = f"{loss:.1%} below model.embed, generator {share:.1%}"
    return [with_goal(own, f"<= {LIBRARY_SHARE:.0%}", value, loss <= LIBRARY_SHARE), alone]


def _plain_rows(lab: Lab, title: str, results: Mapping[str, Sequence[Measured]], target: Target) -> list[Row]:
    return rows_of(
        title,
        results,
        clients=dict.fromkeys(results, target.clients),
        verdicts={},
        tokens=0,
        texts=1,
        threads=lab.threads,
        note="one layer of the tiny preset" if target.bodies else "no model",
    )


def _model_ms(lab: Lab, name: str, folder: Path, texts: Sequence[str]) -> float:
    """Return the milliseconds of `model.embed` per text, of all texts together."""
    with lab.library("embed", name, folder, texts) as alone:
        for _ in range(50):
            alone.call("time")
        seconds = statistics.median(Timing(*alone.call("time")).seconds for _ in range(200))
    return seconds * 1e3 / len(texts)


def _overhead_row(lab: Lab, title: str, row: Row, model_ms: float) -> Row:
    """Return the row with its time apart from the model's: of a latency with one client, else per request."""
    spent = row.details["p50_ms"] if row.details["clients"] == 1 else row.median_ms
    overhead = spent - model_ms
    details = {**row.details, "model_ms": float(f"{model_ms:.4g}"), "overhead_ms": float(f"{overhead:.4g}")}
    value = f"overhead {overhead:.3f} ms, model {model_ms:.3f} ms"
    return with_goal(replace(row, details=details), f"<= {OVERHEAD_MS:g} ms", value, overhead <= OVERHEAD_MS)
