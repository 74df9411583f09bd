"""The benchmark of servers: the load generator against a tiny server, clients within a latency, rows, wrong options."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("the load generator uses epoll", allow_module_level=True)

from fastbert.benchmarks import bench_serving
from fastbert.benchmarks.bench_serving import Options
from fastbert.benchmarks.cpu.lineup import Result, Verdict
from fastbert.benchmarks.serving import generator, measuring, report, workloads
from fastbert.benchmarks.serving.generator import Load, generate, write_bodies
from fastbert.benchmarks.serving.measuring import Measured, Target
from fastbert.benchmarks.serving.servers import free_port
from fastbert.errors import UserError

STALL_SECONDS = 0.15


class TinyServer:
    """Answers by path: /ok with a length, /chunked in chunks, /busy every second request with 429, /stall the third
    request late, /close every third with a closed connection. Keeps what it was sent."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.heads: list[bytes] = []
        self.connections = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
                self.bodies.append(await reader.readexactly(int(lines.get(b"Content-Length", b"0"))))
                self.heads.append(head)
                if not await self.answer(head.split()[1], writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    async def answer(self, path: bytes, writer: asyncio.StreamWriter) -> bool:
        count = len(self.bodies)
        if path == b"/chunked":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
            await writer.drain()
            writer.write(b"0\r\n\r\n")
            return True
        if path == b"/stall" and count == 3:
            await asyncio.sleep(STALL_SECONDS)
        status = b"429 Too Many Requests" if path == b"/busy" and count % 2 == 0 else b"200 OK"
        closes = path == b"/close" and count % 3 == 0
        close = b"Connection: close\r\n" if closes else b""
        writer.write(b"HTTP/1.1 " + status + b"\r\n" + close + b"Content-Length: 2\r\n\r\nok")
        return not closes


@contextmanager
def serving(tiny: TinyServer) -> Iterator[int]:
    """Run the server in a thread of its own; yield its port."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(tiny.handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if generator.find_compiler() is None:
        pytest.skip("no C++ compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        generator.build()
        yield


def test_the_generator_is_compiled_once() -> None:
    program = generator.build()
    built = program.stat().st_mtime_ns
    assert generator.build() == program
    assert program.stat().st_mtime_ns == built


@pytest.mark.parametrize("path", ["/ok", "/chunked", "/close"])
def test_a_closed_loop_counts_every_answer(path: str, tmp_path: Path) -> None:
    tiny = TinyServer()
    bodies = write_bodies(tmp_path / "bodies.jsonl", [{"inputs": "one"}, {"inputs": "zwei ä"}])
    with serving(tiny) as port:
        load = generate(port, path, bodies, seconds=0.3, connections=3, header="Authorization: Bearer x")
    assert load.statuses == {"200": load.requests}
    assert load.requests == len(tiny.bodies) > 10
    # The last ones came later; the rate is rounded.
    assert load.requests - 4 <= load.requests_per_second * 0.3 <= load.requests + 1
    assert (load.errors, load.unanswered) == ({}, 0)
    assert {json.loads(body)["inputs"] for body in tiny.bodies} == {"one", "zwei ä"}
    assert all(b"\r\nAuthorization: Bearer x\r\n" in head for head in tiny.heads)
    assert load.bytes_read >= 40 * load.requests
    assert 0 < load.share(1) < 1
    p50, p99, longest = (load.latency_ms[name] for name in ("p50", "p99", "max"))
    assert p50 is not None
    assert p99 is not None
    assert longest is not None
    assert 0 < p50 <= p99 <= longest < 400
    assert (tiny.connections > 3) == (path == "/close")


def test_error_statuses_are_counted_apart_and_warm_up_is_not() -> None:
    tiny = TinyServer()
    with serving(tiny) as port:
        load = generate(port, "/busy", None, seconds=0.2, warmup=0.1, connections=2)
    assert load.errors == {"429": load.statuses["429"]}
    assert load.statuses["200"] == pytest.approx(load.statuses["429"], abs=3)
    assert 0 < load.requests < len(tiny.bodies)
    assert tiny.heads[0].startswith(b"GET /busy HTTP/1.1\r\n")


def test_a_stall_counts_for_every_request_that_was_due_in_it() -> None:
    with serving(TinyServer()) as port:
        load = generate(port, "/stall", None, seconds=0.4, rate=100, connections=1, idle=5, slow=2)
    assert load.requests == 40
    # 15 requests were due while the only connection waited: their median waited half of it.
    p90 = load.latency_ms["p90"]
    assert p90 is not None
    assert p90 > 0.5 * STALL_SECONDS * 1e3
    assert (load.unsent, load.idle_closed, load.slow_closed) == (0, 0, 0)


def test_a_server_that_is_down_is_an_error() -> None:
    load = generate(free_port(), "/ok", None, seconds=0.1, connections=2)
    assert load.requests_per_second == 0
    assert load.errors == {"closed": load.requests}
    assert load.latency_ms["p99"] is None
    with pytest.raises(UserError, match="--bodies /none: no such file"):
        generate(1, "/ok", Path("/none"), seconds=0.1)


def load_of(rate: float, p99: float, **statuses: int) -> Load:
    return Load(
        requests=100, requests_per_second=rate, seconds=1.0, statuses=statuses or {"200": 100},
        latency_ms=dict.fromkeys(("p50", "p90", "p99", "p99.9", "max"), p99), unanswered=0, unsent=0, bytes_read=0,
        idle_closed=0, slow_answered=0, slow_closed=0, processor_seconds=0.1,
    )  # fmt: skip


def test_clients_are_reduced_until_the_latency_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_round(server: Any, target: Target, seconds: float) -> Measured:
        return Measured(load_of(100, 15.0 * target.clients), 1.0)

    monkeypatch.setattr(measuring, "one_round", one_round)
    assert measuring.most_clients(None, Target("/", None, 32), 1.0) == 12  # type: ignore[arg-type]
    assert measuring.most_clients(None, Target("/", None, 8), 1.0) == 8  # type: ignore[arg-type]
    assert measuring.most_clients(None, Target("/", None, 8), 1.0, limit=1) == 1  # type: ignore[arg-type]


def test_rows_are_medians_and_name_errors_and_goals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results = {
        "fastbert int8": [Measured(load_of(rate, 20.0), 1.5) for rate in (400, 500, 900)],
        "sentence-transformers fp32": [Measured(load_of(100, 180.0, **{"200": 98, "503": 2}), 1.9)],
        "infinity torch fp32": [Measured(load_of(400, 150.0), 1.9)],
    }
    rows = workloads._over_peers(
        measuring.rows_of(
            "single", results, clients=dict.fromkeys(results, 32), tokens=30, texts=1, threads=2, note="toy",
            verdicts={"fastbert int8": Verdict("close", 0.1, {})},
        )
    )  # fmt: skip
    own, other = (next(row for row in rows if row.contender == name) for name in list(results)[:2])
    assert (own.median_ms, own.tokens_per_second, own.threads_used) == (2.0, 15000.0, 1.5)
    assert (own.details["requests_per_second"], own.details["generator_share"]) == (500.0, 0.05)
    assert "5.00x sentence-transformers fp32 (meets the goal >= 3x)" in own.details["note"]
    assert "1.25x infinity torch fp32 (misses the goal >= 2x)" in own.details["note"]
    assert other.details["errors"] == {"503": 2}
    report.show(Result(rows, []))
    printed = capsys.readouterr().out
    assert printed.index("fastbert int8") < printed.index("infinity")
    assert "errors: 2 x 503" in printed
    bench_serving.publish(Result(rows, []), Options(threads=2), tmp_path / "rows.json", None)
    record = json.loads((tmp_path / "rows.json").read_text())
    assert (record["benchmark"], len(record["rows"])) == ("serving", 3)


def test_a_rate_follows_from_the_latency_of_long_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "one_round", lambda *_: Measured(load_of(0, 800.0), 1.0))
    load = workloads._one_at_a_time(None, Target("/rerank", None, 1), 0.5).load  # type: ignore[arg-type]
    assert load.requests_per_second == 1.25


def test_a_contender_without_an_answer_is_left_out() -> None:
    failures: list[str] = []
    measures = {"good": lambda: Measured(load_of(1, 1), 1), "dead": lambda: Measured(load_of(0, 1, closed=9), 1)}
    results = measuring.in_turns(measures, 2, lambda name, reason: failures.append(f"{name}: {reason}"))
    assert {name: len(rounds) for name, rounds in results.items()} == {"good": 2}
    assert failures == ["dead: answered no request within a round: {'closed': 9}"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "tiny"}, "--model: the models of this benchmark are fixed"),
        ({"isolate": False}, "--no-isolate"),
        ({"seconds": 0.0}, "--seconds 0.0 must be positive"),
        ({"infinity": Path("/none")}, "--infinity /none: no bin/infinity_emb in it"),
        ({"contenders": ("nobody",)}, "no contender has 'nobody' in its name"),
        ({"workloads": ("overload",)}, "no workload has 'overload' in its name"),
    ],
)
def test_wrong_options_are_named(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Options(**options)


def test_without_minilm_a_vocabulary_is_learned_that_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fastbert.benchmarks.serving import models
    from fastbert.embeddings.folder import load_embedder

    def absent() -> Path:
        raise UserError("no model")

    monkeypatch.setattr(models, "minilm_folder", absent)
    texts = ["one sentence of a few words", "and another sentence"] * 20
    folders = [models.random_embedder(tmp_path / name, models.EMPTY, texts) for name in ("first", "second")]
    for folder in folders:
        model, tokenizer, _ = load_embedder(folder)
        assert model.embed(texts[:2], tokenizer).shape == (2, models.EMPTY.hidden_size)
