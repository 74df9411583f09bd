"""`fastbert serve` answers every request that it has accepted, whatever signal ends it and whenever."""

from __future__ import annotations

import http.client
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

PATIENCE = 60.0
"""Seconds to wait for a process, which a busy machine delays."""


class Process:
    """A server in a process of its own."""

    def __init__(self, *arguments: str, code: str = "from fastbert.cli import main; raise SystemExit(main())") -> None:
        command = [sys.executable, "-c", code, "serve", *arguments, "--port", "0", "--log", "none"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.popen = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.put(line)
        self.lines.put("")

    def line_with(self, words: str) -> str:
        """Wait for a line of the output."""
        lines = []
        deadline = time.monotonic() + PATIENCE
        while not lines or lines[-1]:
            lines.append(self.lines.get(timeout=max(0, deadline - time.monotonic())))
            if words in lines[-1]:
                return lines[-1]
        raise AssertionError(f"the server ended: {lines}, {self.ended()}")

    def address(self) -> tuple[str, int]:
        """Wait until the server is ready; return its address."""
        parts = urlsplit(self.line_with("ready on ").partition("ready on ")[2].split()[0])
        assert parts.hostname
        assert parts.port
        return parts.hostname, parts.port

    def ended(self) -> tuple[int, float, str]:
        """Wait for the end; return the exit code, the seconds that it took, and what is on stderr."""
        begin = time.monotonic()
        code = self.popen.wait(PATIENCE)
        seconds = time.monotonic() - begin
        self._reader.join()
        assert self.popen.stderr is not None
        return code, seconds, self.popen.stderr.read()


@contextmanager
def serving(*arguments: str, **options: str) -> Iterator[Process]:
    """A server, which does not survive the block."""
    process = Process(*arguments, **options)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait()


class Client(threading.Thread):
    """Sends one request after another, on connections that are kept as long as the server keeps them."""

    def __init__(self, address: tuple[str, int], seed: int, stop: threading.Event) -> None:
        super().__init__()
        self.address, self.random, self.stop = address, random.Random(seed), stop
        self.statuses: list[int] = []
        self.lost: list[str] = []
        self.refused = False

    def run(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self.stop.is_set():
            if connection is None:
                connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE)
                try:
                    connection.connect()
                except ConnectionError:
                    self.refused = True
                    return
            if self.request(connection) or self.random.random() < 0.2:
                connection.close()
                connection = None
            elif self.random.random() < 0.2:
                time.sleep(self.random.random() * 0.02)

    def request(self, connection: http.client.HTTPConnection) -> bool:
        """Send a request and read its answer; return whether the server closes the connection."""
        texts = ["a b c d e f g"] * self.random.choice((1, 1, 1, 40))
        body = json.dumps({"inputs": texts}).encode()
        try:
            connection.request("POST", "/embed", body, {"Content-Type": "application/json"})
        except ConnectionError:
            return True  # the server had closed the idle connection before it got the request
        begin = time.monotonic()
        try:
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.lost.append(f"{error!r} after {len(self.statuses)} answers, {time.monotonic() - begin:.3f} s")
            return True
        self.statuses.append(response.status)
        if response.status == 200:
            assert len(answer) == len(texts)
        else:
            assert answer["error"]
        return response.will_close


def drained(folder: Path, seed: int, number: signal.Signals = signal.SIGTERM) -> list[int]:
    """End a server while clients send requests; return the statuses of the answers."""
    with serving(f"toy={folder}") as process:
        address = process.address()
        stop = threading.Event()
        clients = [Client(address, 100 * seed + index, stop) for index in range(8)]
        for client in clients:
            client.start()
        time.sleep(0.3 + random.Random(seed).random() * 0.1)
        process.popen.send_signal(number)
        code, seconds, stderr = process.ended()
        stop.set()
        for client in clients:
            client.join()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=PATIENCE)
    statuses = [status for client in clients for status in client.statuses]
    assert [lost for client in clients for lost in client.lost] == []
    assert (code, stderr) == (0, "")
    assert seconds < 10
    assert set(statuses) <= {200, 429, 503}
    assert statuses.count(200) > 8
    return statuses


@pytest.fixture(scope="module")
def folder(folders: dict[str, Path]) -> Path:
    return folders["embedder"]


def test_nothing_is_lost(folder: Path) -> None:
    drained(folder, 0)


@pytest.mark.slow
def test_nothing_is_lost_in_many_runs(folder: Path) -> None:
    total = 0
    for seed in range(1, 51):
        total += len(drained(folder, seed, signal.SIGINT if seed % 5 == 0 else signal.SIGTERM))
    print(f"{total} requests were answered in 50 runs")


# The server with a model whose batches take as long as the test's environment says, or that is loaded slowly.
SLOW = """
import os, time
from fastbert.cli import main
from fastbert.serving import context
from fastbert.serving.operations.embeddings import Embed

run, load = Embed.run, context.load_served


def slow(self, pieces):
    if warm:
        time.sleep(float(os.environ["SECONDS"]))
    return run(self, pieces)


def slow_load(*arguments, **options):
    print("loading", flush=True)
    time.sleep(float(os.environ["LOAD_SECONDS"]))
    return load(*arguments, **options)


warm = []
warm_up = context.ServingContext._warm
context.ServingContext._warm = lambda self: (warm_up(self), warm.append(True))
Embed.run, context.load_served = slow, slow_load
raise SystemExit(main())
"""


def send(address: tuple[str, int], results: list[Any]) -> threading.Thread:
    """Send a request on a thread, which adds the status, or the error."""
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    connection.request("POST", "/embed", b'{"inputs": "a"}', {"Content-Type": "application/json"})

    def receive() -> None:
        try:
            results.append(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            results.append(repr(error))

    thread = threading.Thread(target=receive)
    thread.start()
    return thread


@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)], ids=["SIGINT", "twice"])
def test_a_long_batch(folder: Path, signals: tuple[signal.Signals, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """One signal waits for the batch that is computed; the second one does not, and says so by its exit code."""
    twice = len(signals) == 2
    monkeypatch.setenv("SECONDS", "20" if twice else "1.5")
    monkeypatch.setenv("LOAD_SECONDS", "0")
    with serving(f"toy={folder}", code=SLOW) as process:
        address = process.address()
        results: list[Any] = []
        thread = send(address, results)
        time.sleep(0.3)
        process.popen.send_signal(signals[0])
        process.line_with("stopping")
        if twice:
            process.popen.send_signal(signals[1])
        code, seconds, stderr = process.ended()
        thread.join()
    assert stderr == ""
    if twice:
        assert code == 128 + signal.SIGTERM
        assert seconds < 5
        assert results != [200]
    else:
        assert code == 0
        assert results == [200]


def test_an_answer_that_is_read_slowly(folder: Path) -> None:
    """What was computed before the signal is written to its end."""
    with serving(f"toy={folder}") as process:
        address = process.address()
        body = json.dumps({"inputs": ["a b c d e f g h " * 5] * 600, "truncate": True}).encode()
        head = f"POST /embed_all HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(PATIENCE)
            connection.connect(address)
            connection.sendall(f"{head}\r\n\r\n".encode() + body)
            received = bytearray(connection.recv(2000))
            process.popen.send_signal(signal.SIGTERM)
            process.line_with("stopping")
            time.sleep(0.6)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            while piece := connection.recv(1 << 20):
                received += piece
        assert process.ended()[0] == 0
    start, _, answer = bytes(received).partition(b"\r\n\r\n")
    assert len(answer) == int(start.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]) > 5_000_000
    assert answer.endswith(b"]]]")


@pytest.mark.parametrize("count", [1, 2])
def test_while_models_are_loaded(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends a server that is not ready yet: at once the second time, else once the model is there."""
    monkeypatch.setenv("SECONDS", "0")
    monkeypatch.setenv("LOAD_SECONDS", "20" if count == 2 else "1")
    with serving(f"toy={folder}", code=SLOW) as process:
        process.line_with("loading")
        process.popen.send_signal(signal.SIGTERM)
        process.line_with("stopping")
        if count == 2:
            process.popen.send_signal(signal.SIGTERM)
        code, seconds, stderr = process.ended()
    assert (code, stderr) == (0 if count == 1 else 128 + signal.SIGTERM, "")
    assert seconds < 10
