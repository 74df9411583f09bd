"""A server at 120 % of its capacity for minutes, with idle and slow connections beside the load."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence

from fastbert.benchmarks.cpu.lineup import Result
from fastbert.benchmarks.serving import generator, models
from fastbert.benchmarks.serving.measuring import Lab, Measured, Target, one_round, rows_of, with_goal
from fastbert.benchmarks.serving.servers import Server

NAME, WORKLOAD = "fastbert int8", "overload"
EXCESS = 1.2
CLIENTS, IDLE, SLOW = 512, 1000, 100
ALLOWED = {"200", "429", "503"}
GROWTH = 0.02  # of resident memory, from the first minute to the last
SAMPLE_SECONDS = 1.0


class Memory(threading.Thread):
    """Samples of a server's resident memory, one per second, until `stop`."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server, self.samples, self.ended = server, list[int](), threading.Event()

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
        target = Target("/embed", path, 64)
        one_round(server, target, lab.seconds)
        capacity = one_round(server, target, max(lab.seconds, 3)).load.requests_per_second
        server.resume()
        memory, before = Memory(server), server.processor_seconds()
        memory.start()
        load = generator.generate(
            server.port, target.route, path, seconds=seconds, warmup=5, rate=EXCESS * capacity, drain=30,
            connections=CLIENTS, idle=IDLE, slow=SLOW,
        )  # fmt: skip
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
    row = with_goal(row, "nothing but 200, 429, 503", f"statuses {', '.join(load.statuses)}", not strange)
    row = with_goal(row, f"< {GROWTH:.0%}", f"memory {growth:+.1%}", growth < GROWTH)
    return Result([row], lab.absent_from(WORKLOAD))
