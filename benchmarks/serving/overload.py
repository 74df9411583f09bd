"""A server at 120 % of its capacity for minutes, with idle and slow connections beside the load."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence

from fastbert.benchmarks.cpu.lineup import Result
from fastbert.benchmarks.serving import generator, models
from fastbert.benchmarks.serving.measuring import Lab, Measured, Target, one_round, rows_of, with_goal
from fastbert.benchmarks.serving.servers import Server
from fastbert.serving.config import ServeConfig

NAME, WORKLOAD = "fastbert int8", "overload"
EXCESS = 1.2
CLIENTS, IDLE, SLOW = 2048, 1000, 100
"""Connections: twice as many as requests that a server accepts, so that it refuses some."""
CAPACITY_CLIENTS = 512
FILL_SECONDS = 60.0
"""Seconds of the same load before the memory is read: queues and buffers fill."""
ALLOWED = {"200", "429", "503"}
GROWTH = 0.02  # of resident memory, from the first minute to the last
LONGEST = 2.0  # the 99th percentile, in times that the accepted requests of a full queue take
SAMPLE_SECONDS = 1.0


class Memory(threading.Thread):
    """Samples of a server's resident memory, one per second, until `stop`."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.samples: list[int] = list[int]()
        self.ended: threading.Event = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(SAMPLE_SECONDS):
            self.samples.append(self.server.resident())

    def stop(self) -> None:
        self.ended.set()
        self.join()

    def growth(self) -> float:
        """Return how much the median of the last minute is above that of the first, as a share; of shorter runs the
        last and the first tenth."""
        count = max(1, min(round(60 / SAMPLE_SECONDS), len(self.samples) // 10))
        first, last = statistics.median(self.samples[:count]), statistics.median(self.samples[-count:])
        return last / first - 1


def overload(lab: Lab, texts: Sequence[str], source: str, seconds: float) -> Result:
    """Send single sentences at a fixed rate above the measured capacity, for `seconds`, to MiniLM in int8."""
    model = models.minilm(lab.scratch, texts)
    with lab.servers(WORKLOAD, (NAME,), model) as servers:
        if NAME not in servers:
            return Result([], lab.absent_from(WORKLOAD))
        server = servers[NAME]
        path = generator.write_bodies(lab.scratch / "overload.jsonl", ({"inputs": text} for text in texts))
        target = Target("/embed", path, CAPACITY_CLIENTS)
        one_round(server, target, lab.seconds)
        capacity = one_round(server, target, max(lab.seconds, 5)).load.requests_per_second
        server.resume()

        def loaded(duration: float) -> generator.Load:
            return generator.generate(
                server.port, target.route, path, seconds=duration, warmup=5, rate=EXCESS * capacity, drain=30,
                connections=CLIENTS, idle=IDLE, slow=SLOW,
            )  # fmt: skip

        loaded(min(FILL_SECONDS, seconds / 10))
        memory, before = Memory(server), server.processor_seconds()
        memory.start()
        load = loaded(seconds)
        memory.stop()
        cores = (server.processor_seconds() - before) / (seconds + 5)
    (row,) = rows_of(
        WORKLOAD, {NAME: [Measured(load, cores)]}, clients={NAME: CLIENTS}, verdicts={}, tokens=0, texts=1,
        threads=lab.threads,
        note=f"{seconds:.0f} s at {EXCESS * capacity:,.0f} requests/s, {EXCESS:.0%} of the capacity; {source}; {IDLE:,}"
        f" idle and {SLOW} slow connections",
    )  # fmt: skip
    strange = sorted({*load.errors} - ALLOWED)
    growth = memory.growth()
    row.details.update(
        capacity=capacity,
        memory_growth=round(growth, 4),
        resident_bytes=memory.samples[:: max(1, len(memory.samples) // 60)],
        unsent=load.unsent,
        idle_closed=load.idle_closed,
        slow_answered=load.slow_answered,
        slow_closed=load.slow_closed,
    )
    statuses = ", ".join(f"{count:,} x {status}" for status, count in sorted(load.statuses.items()))
    row = with_goal(row, "nothing but 200, 429, 503", statuses, not strange)
    limit = LONGEST * ServeConfig().max_requests * seconds / max(1, load.statuses.get("200", 0))
    p99 = row.details["p99_ms"] / 1e3
    row = with_goal(row, f"<= {limit:.1f} s, twice the time of a full queue", f"p99 {p99:.2f} s", p99 <= limit)
    row = with_goal(row, f"< {GROWTH:.0%}", f"memory {growth:+.1%}", growth < GROWTH)
    return Result([row], lab.absent_from(WORKLOAD))
