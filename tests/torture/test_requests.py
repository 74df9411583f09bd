"""Hostile requests to a server that runs in this process: bodies, damaged heads, slow and leaving clients, chunks."""

from __future__ import annotations

import contextlib
import gc
import http.client
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from garbage import leave_out_old_objects
from torture.campaign import Campaign
from torture.scorecard import scored
from torture.server_requests import MODELS, STATUSES, Bodies, check, heads

pytest.importorskip("fastapi", reason="needs fastapi: pip install 'fastbert-engine[serve]'")

from served_models import ask, sources, toy_folders

from fastbert.serving.config import ServeConfig
from fastbert.serving.server import running

MOST_BYTES = 200_000
WAITING = 12
"""Slow clients at a time, which have sent a part of their request."""
LONGEST = 2.0
"""Seconds of the processor, of client and server together, after which a request counts as a hang."""
GROWTH = 48 << 20
"""Bytes that a part of a campaign may add to the process, once the first part has filled all caches."""
HEAD = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%b\r\n\r\n"
GOOD = {
    "/embed": {"inputs": ["a b c", "d e"]},
    "/rerank": {"query": "a b", "texts": ["a b c", "f g h"]},
    "/predict": {"inputs": "a b c"},
}


@pytest.fixture(autouse=True)
def no_complaint(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No exception reaches the log: each one is an answer."""
    yield
    records = [record for record in caplog.get_records("call") if record.exc_info]
    assert not records, records[0].exc_text or records[0].getMessage()


class Clients:
    """Sends requests by their numbers, most of them on one connection that is kept."""

    def __init__(self, address: str, context: Any) -> None:
        self.address, self.context = address, context
        self.bodies = Bodies(ask(address, "/openapi.json")[1], 0)
        self.host = urlsplit(address).netloc
        self.kept = http.client.HTTPConnection(self.host, timeout=60)
        self.slow: list[tuple[int, socket.socket, str, bytes, bytes]] = []
        self.figures = dict.fromkeys(("answered", "refused", "raw", "slow", "chunked"), 0.0)
        self.good = self.answers()
        self.parts = 0

    def answers(self) -> dict[str, Any]:
        """Return the answers to good requests."""
        answers = {}
        for path, body in GOOD.items():
            status, answers[path], _ = ask(self.address, path, body)
            assert status == 200, (path, answers[path])
        return answers

    def send(self, number: int) -> None:
        """Send the request of a number, and check its answer if it waits for one."""
        pick = self.bodies.random = random.Random(f"request {number}")
        kind = pick.random()
        if kind < 0.85:
            self.post(pick)
        elif kind < 0.93:
            self.raw(pick)
        elif kind < 0.97:
            self.chunked(pick)
        else:
            self.dribble(number, pick)

    def drawn(self, pick: random.Random) -> tuple[str, bytes]:
        path = pick.choice(self.bodies.paths)
        prefix = f"/models/{quote(pick.choice(MODELS))}" if pick.random() < 0.2 and "/v" not in path else ""
        return prefix + path, self.bodies.draw(path)

    def post(self, pick: random.Random) -> None:
        """A body on the kept connection."""
        path, body = self.drawn(pick)
        kind = pick.choice(("text/plain", "", "application/x+json")) if pick.random() < 0.02 else "application/json"
        try:
            self.kept.request("POST", path, body, {"Content-Type": kind})
            self.answer(path, body, self.kept.getresponse())
        except (ConnectionError, http.client.HTTPException) as problem:
            raise AssertionError(f"{path} {body[:300]!r}: {problem!r}") from problem

    def answer(self, path: str, body: bytes, response: http.client.HTTPResponse) -> None:
        content = response.read()
        bare = path.partition("/models/")[2].partition("/")[2] if path.startswith("/models/") else path
        check(f"/{bare.lstrip('/')}", body, response.status, response.getheader("content-type"), content)
        assert response.status in STATUSES
        self.figures["answered" if response.status == 200 else "refused"] += 1

    def connect(self) -> socket.socket:
        host, _, port = self.host.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def raw(self, pick: random.Random) -> None:
        """Send bytes, and leave in several ways: half-closed, reset, closed, or after the answer."""
        data, leaves = next(heads(pick)), pick.choice(("reads", "half", "reset", "closes"))
        self.figures["raw"] += 1
        with self.connect() as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data[: pick.randrange(len(data) + 1)] if pick.random() < 0.2 else data)
            if leaves == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif leaves == "half":
                connection.shutdown(socket.SHUT_WR)
            elif leaves == "reads":
                connection.settimeout(0.02)
                with contextlib.suppress(TimeoutError):  # it waits for more
                    answer = connection.recv(65536)
                    assert not answer or answer.startswith(b"HTTP/1.1 "), (data[:300], answer[:300])
                    assert b"HTTP/1.1 5" not in answer.replace(b"HTTP/1.1 503", b""), (data[:300], answer[:300])

    def chunked(self, pick: random.Random) -> None:
        """A body in chunks of any size, with extensions, on a connection of its own."""
        path, body = self.drawn(pick)
        self.figures["chunked"] += 1
        pieces, at = [], 0
        while at < len(body):
            size = pick.choice((1, 7, 100, 5000, 100_000)) if len(pieces) < 50 else len(body)
            piece = body[at : at + size]
            extension = b";x=" + b"y" * pick.randrange(20) if pick.random() < 0.2 else b""
            pieces.append(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece))
            at += size
        data = HEAD % (path.encode(), b"Transfer-Encoding: chunked") + b"".join(pieces) + b"0\r\n\r\n"
        with self.connect() as connection:
            self.finish(connection, path, body, data)

    def finish(self, connection: socket.socket, path: str, body: bytes, data: bytes) -> None:
        """Send the rest of a request and check its answer; a body that is too large may be answered before it ends."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
        response = http.client.HTTPResponse(connection, method="POST")
        try:
            response.begin()
        except (ConnectionError, http.client.HTTPException) as problem:
            if len(body) <= MOST_BYTES:
                raise AssertionError(f"{path} {body[:300]!r}: {problem!r}") from problem
            return
        self.answer(path, body, response)

    def dribble(self, number: int, pick: random.Random) -> None:
        """A client that sends a part of its request and the rest when others have come."""
        path, body = self.drawn(pick)
        self.figures["slow"] += 1
        data = HEAD % (path.encode(), b"Content-Length: %d" % len(body)) + body
        at = pick.randrange(1, len(data))
        connection = self.connect()
        connection.sendall(data[:at])
        self.slow.append((number, connection, path, body, data[at:]))
        if len(self.slow) > WAITING:
            self.end_slow()

    def end_slow(self) -> None:
        number, connection, path, body, rest = self.slow.pop(0)
        with connection:
            try:
                self.finish(connection, path, body, rest)
            except AssertionError as problem:
                raise AssertionError(f"slow request {number}: {problem}") from problem

    def settle(self) -> None:
        """End what is open, and check that the server is idle, whole, and right."""
        while self.slow:
            self.end_slow()
        self.kept.close()
        scheduler = self.context.scheduler
        for _ in range(1000):
            if not scheduler.jobs:
                break
            time.sleep(0.01)
        assert scheduler.jobs == scheduler.queued_tokens == scheduler._waiting_tokens == 0
        assert not scheduler._order
        assert not scheduler._untokenized
        threads = [*scheduler._threads, *(tokenizer._thread for tokenizer in scheduler._tokenizers)]
        assert all(thread.is_alive() for thread in threads)
        assert self.answers() == self.good, "good requests are answered as at the start"


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def handles() -> int:
    """Return the number of open descriptors; connections that were left are closed within seconds."""
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """A server of a model of every kind, and clients of it."""
    folders = toy_folders(tmp_path_factory.mktemp("hostile"), 0)
    config = ServeConfig(
        port=0, dtype="fp32", log="none", max_texts=64, max_body_bytes=MOST_BYTES, idle_timeout=5.0, read_timeout=600.0
    )  # a busy machine is no slow client
    with running(sources(folders), config) as (address, context):
        yield Clients(address, context)


@scored(
    row=17, unit="requests", short=500, full=100_000, chunk=5_000,
    goal="none crashes or hangs the server, gets a status above 499 but 503, or keeps memory, threads or handles",
)  # fmt: skip
def test_requests_to_the_server(campaign: Campaign, clients: Clients) -> None:
    """Whatever clients send is answered in JSON, with no status above 499 but 503, and good requests as before."""

    def send(numbers: range) -> dict[str, float]:
        clients.figures = dict.fromkeys(clients.figures, 0.0)
        clients.settle()
        leave_out_old_objects()
        memory, descriptors, threads, longest = resident(), handles(), threading.active_count(), 0.0
        for number in numbers:
            begin = time.process_time()
            try:
                clients.send(number)
            except Exception as problem:
                raise AssertionError(f"request {number}: {problem}") from problem
            longest = max(longest, time.process_time() - begin)
            assert longest < LONGEST, f"request {number} took {longest:.1f} s of the processor"
        clients.settle()
        end = time.monotonic() + 60
        while handles() > descriptors + 2 and time.monotonic() < end:
            time.sleep(0.2)
        assert handles() <= descriptors + 2, f"{descriptors} descriptors before, {handles()} afterwards"
        assert threading.active_count() <= threads + 2, threading.enumerate()
        gc.collect()
        growth = resident() - memory
        first, clients.parts = not clients.parts, clients.parts + 1
        assert first or growth < GROWTH, f"{growth:,} bytes more in {len(numbers)} requests"
        return {
            **clients.figures,
            "largest_growth_bytes": 0 if first else growth,
            "longest_processor_seconds": round(longest, 3),
            "largest_resident_bytes": resident(),
        }

    figures = campaign.run(send)
    assert figures["answered"] > 0.1 * figures["refused"] or campaign.full
