"""Servers in processes of their own, and clients that send requests while signals end these."""

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
