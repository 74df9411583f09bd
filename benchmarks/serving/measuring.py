"""Measure servers under load in turns, and describe the results as rows."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu.contender import environment
from fastbert.benchmarks.cpu.embed_contender import WARMING_TEXTS, EmbedLineup, text_arrays
from fastbert.benchmarks.cpu.lineup import REFERENCES, Absent, Result, Verdict, with_ratios
from fastbert.benchmarks.harness.command_line import Say
from fastbert.benchmarks.harness.isolation import Isolated
from fastbert.benchmarks.harness.measure import ContenderFailed, Row, Timing, make_rows
from fastbert.benchmarks.serving import generator
from fastbert.benchmarks.serving.generator import Load
from fastbert.benchmarks.serving.servers import CONTENDERS, Server, absent

CLIENTS = (32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
P99_LIMIT = 200.0  # milliseconds


@dataclass(frozen=True, kw_only=True)
class Lab:
    """Hold the cores, the duration of a round, the temporary files and the results of all workloads."""

    names: Sequence[str]
    """The selected contenders."""
    threads: int
    """Cores that a server and the generator share."""
    rounds: int
    seconds: float
    """Seconds per round."""
    scratch: Path
    infinity: Path | None
    say: Say
    absent: list[Absent] = field(default_factory=list)

    @contextmanager
    def servers(self, workload: str, names: Sequence[str], folder: Path, *flags: str) -> Iterator[dict[str, Server]]:
        """Start the selected ones of these contenders with a model, and pause them; a failure is recorded."""
        running: dict[str, Server] = {}
        with ExitStack() as closing:
            for name in [name for name in names if name in self.names]:
                reason = absent(name, self.infinity)
                if reason is not None:
                    self.drop(workload, name, reason)
                    continue
                scratch = self.scratch / workload.replace(" ", "-") / name.replace(" ", "-").replace(",", "")
                try:
                    server = Server(name, folder, self.threads, scratch, infinity=self.infinity, flags=flags)
                except ContenderFailed as error:
                    self.drop(workload, name, str(error))
                    continue
                running[name] = server
                closing.callback(server.close)
                server.pause()
            try:
                yield running
            finally:
                for server in running.values():  # they stop at the same time
                    server.ask_to_end()

    def drop(self, workload: str, name: str, reason: str) -> None:
        """Record that a contender is left out."""
        self.say(f"{name}: left out of {workload}: {reason}")
        self.absent.append(Absent(workload, name, CONTENDERS[name].dtype, reason))

    @contextmanager
    def library(self, kind: str, name: str, folder: Path, texts: Sequence[str]) -> Iterator[Isolated]:
        """Yield a contender without a server, in a process of its own that has read these texts."""
        scratch = self.scratch / "library" / name.replace(" ", "-")
        scratch.mkdir(parents=True, exist_ok=True)
        path = scratch / "workload.npz"
        np.savez(path, **text_arrays(texts, texts[:WARMING_TEXTS]))  # type: ignore[arg-type]
        arguments = {"kind": kind, "name": name, "folder": str(folder), "threads": self.threads}
        contender = Isolated(
            EmbedLineup.class_path, {**arguments, "scratch": str(scratch)}, environment(self.threads, scratch)
        )
        try:
            contender.call("load")
            contender.call("open", path=str(path))
            yield contender
        finally:
            contender.close()

    def reference(self, kind: str, folder: Path, texts: Sequence[str]) -> tuple[str, np.ndarray]:
        """Return the name and the values of the contender without a server that all are compared with."""
        name = next(name for name in REFERENCES[kind] if peers.missing(kind, name) is None)
        path = self.scratch / "values.npy"
        with self.library(kind, name, folder, texts) as contender:
            contender.call("save", path=str(path))
        values: np.ndarray = np.load(path)
        return name, values

    def result(self, rows: Sequence[Row], workload: str) -> Result:
        """Return rows, their times relative to fastbert's, with the contenders that were left out of the workload."""
        return Result(with_ratios(rows), self.absent_from(workload))

    def absent_from(self, workload: str) -> list[Absent]:
        """Return the contenders that were left out of a workload."""
        return [contender for contender in self.absent if contender.workload == workload]


class Measured(NamedTuple):
    """One round: the answers, and how many cores the server and other processes used."""

    load: Load
    cores: float
    others: float = 0.0


class Target(NamedTuple):
    """Name a route, the file of bodies that it is sent (None: GET), and the number of clients."""

    route: str
    bodies: Path | None
    clients: int


def one_round(server: Server, target: Target, seconds: float) -> Measured:
    """Resume a server, send it requests for `seconds` after a warm-up, and pause it."""
    warmup = min(0.5, seconds / 2)
    server.resume()
    try:
        began, before, busy = time.monotonic(), server.processor_seconds(), busy_seconds()
        load = generator.generate(
            server.port, target.route, target.bodies, seconds=seconds, warmup=warmup, connections=target.clients
        )
        used = server.processor_seconds() - before
        others = busy_seconds() - busy - used - load.processor_seconds
        elapsed = time.monotonic() - began
    finally:
        server.pause()
    return Measured(load, used / elapsed, max(others, 0.0) / elapsed)


def busy_seconds() -> float:
    """Return the seconds that all cores of this machine have been busy."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    user, nice, system, _, _, *interrupts = map(int, words[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def most_clients(server: Server, target: Target, seconds: float, limit: float = P99_LIMIT) -> int:
    """Return the most clients, of `CLIENTS` and at most the target's, at which p99 is within `limit` milliseconds."""
    for clients in CLIENTS:
        if clients <= target.clients:
            p99 = one_round(server, target._replace(clients=clients), seconds).load.latency_ms["p99"]
            if p99 is not None and p99 <= limit:
                return clients
    return 1


def in_turns(
    measures: Mapping[str, Callable[[], Measured]], rounds: int, failed: Callable[[str, str], None]
) -> dict[str, list[Measured]]:
    """Return `rounds` rounds of each contender, taken in turns A B A B; one that fails is passed to `failed`."""
    results: dict[str, list[Measured]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name in list(results):
            try:
                measured = measures[name]()
                if not measured.load.requests_per_second:
                    raise ContenderFailed(f"answered no request within a round: {measured.load.errors or 'too slow'}")
                results[name].append(measured)
            except ContenderFailed as error:
                failed(name, str(error))
                del results[name]
    return results


def rows_of(
    workload: str,
    results: Mapping[str, Sequence[Measured]],
    *,
    clients: Mapping[str, int],
    verdicts: Mapping[str, Verdict],
    tokens: float,
    texts: int,
    threads: int,
    note: str,
) -> list[Row]:
    """Return a row per contender: `median_ms` is the time per request at its rate, `tokens` and `texts` are those of a
    request."""
    timings = {
        name: [Timing(1 / load.requests_per_second, cores / load.requests_per_second) for load, cores, _ in rounds]
        for name, rounds in results.items()
    }
    rows = make_rows(
        workload,
        timings,
        dtype={name: CONTENDERS[name].dtype for name in results},
        threads=threads,
        differences={name: verdicts[name].max_abs_difference for name in results if name in verdicts},
        outputs={name: verdicts[name].outputs if name in verdicts else "not compared" for name in results},
    )
    return [
        replace(
            row,
            tokens_per_second=float(f"{tokens / row.median_ms * 1e3:.5g}") if tokens else None,
            details={
                "workload": note,
                "rounds": row.details["rounds"],
                **load_details([measured.load for measured in results[row.contender]], threads),
                "other_cores": round(statistics.median(measured.others for measured in results[row.contender]), 2),
                "clients": clients[row.contender],
                "texts_per_second": float(f"{texts / row.median_ms * 1e3:.5g}"),
                **(verdicts[row.contender].details if row.contender in verdicts else {}),
            },
        )
        for row in rows
    ]


def load_details(loads: Sequence[Load], cores: int) -> dict[str, Any]:
    """Return the medians of several rounds: rate, latencies, the generator's share; and all errors."""
    details: dict[str, Any] = {
        "requests_per_second": float(f"{statistics.median(load.requests_per_second for load in loads):.5g}"),
        "generator_share": round(statistics.median(load.share(cores) for load in loads), 4),
    }
    for name in ("p50", "p90", "p99", "p99.9", "max"):
        values = [value for load in loads if (value := load.latency_ms[name]) is not None]
        details[f"{name}_ms"] = float(f"{statistics.median(values):.4g}") if values else None
    errors: dict[str, int] = {}
    for load in loads:
        for status, count in load.errors.items():
            errors[status] = errors.get(status, 0) + count
    if errors:
        named = ", ".join(f"{count} x {status}" for status, count in errors.items())
        details |= {"errors": errors, "note": f"errors: {named}"}
    return details


def with_goal(row: Row, goal: str, value: str, met: bool) -> Row:
    """Return the row with a goal and whether it was met, in its note; `meets_goal` is of all its goals."""
    notes = [str(row.details["note"])] if "note" in row.details else []
    note = "; ".join([*notes, f"{value} ({'meets' if met else 'misses'} the goal {goal})"])
    meets = met and row.details.get("meets_goal", True)
    return replace(row, details={**row.details, "note": note, "meets_goal": meets})
