"""`fastbert serve` answers every request that it has accepted, whatever signal ends it.

Signals at random moments under load are a check of the scorecard: tests/torture/test_server_signals.py.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from draining import PATIENCE, serving


@pytest.fixture(scope="module")
def folder(folders: dict[str, Path]) -> Path:
    return folders["embedder"]


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
