"""What a server refuses before a model sees it, and what clients do that they should not."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from served_models import ask

from fastbert.errors import UserError
from fastbert.serving import context as serving_context
from fastbert.serving.config import BearerTokens, ServeConfig
from fastbert.serving.http import endpoint
from fastbert.serving.jobs import Job
from fastbert.serving.server import bind, running

TOKEN = "0123456789abcdef-one"
Served = tuple[str, Any]


@pytest.fixture(scope="module")
def strict(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with tokens, a small queue, short times and few connections."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"# of the tests\n{TOKEN}\n0123456789abcdef-two\n")
    tokens.chmod(0o600)
    config = ServeConfig(
        port=0, dtype="fp32", log="none", tokens_file=tokens, read_timeout=0.6, idle_timeout=1.0, max_queue_tokens=400,
        max_connections=12, cors=("https://example.org",),
    )  # fmt: skip
    with running([f"embedder={folders['embedder']}"], config) as served:
        yield served


def allowed(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_tokens(strict: Served, tmp_path: Path) -> None:
    address, _ = strict
    for headers in ({}, allowed("0123456789abcdef"), allowed(TOKEN + "x"), {"Authorization": TOKEN}):
        status, answer, names = ask(address, "/embed", {"inputs": "a"}, headers)
        assert (status, names["www-authenticate"]) == (401, "Bearer"), headers
        assert "bearer token" in answer["error"]
        assert TOKEN not in str(answer)
    assert ask(address, "/embed", {"inputs": "a"}, allowed())[0] == 200
    assert ask(address, "/embed", {"inputs": "a"}, allowed("0123456789abcdef-two"))[0] == 200
    assert ask(address, "/health")[0] == 200
    assert [ask(address, path)[0] for path in ("/info", "/metrics", "/stats", "/v1/models")] == [401] * 4
    path = tmp_path / "tokens"
    for text, mode, message in (
        ("short\n", 0o600, "a token of 5 characters"), ("#\n", 0o600, "holds no token"), (TOKEN, 0o644, "chmod 600"),
        ("ümlaut-is-not-a-token\n", 0o600, "cannot be read as ASCII"),
    ):  # fmt: skip
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(UserError, match=message):
            BearerTokens.read(path)


def test_origins(strict: Served) -> None:
    """A page of a listed origin may read answers, and no other."""
    address, _ = strict
    for origin, expected in (("https://example.org", "https://example.org"), ("https://example.com", None)):
        names = ask(address, "/health", None, {"Origin": origin})[2]
        assert names.get("access-control-allow-origin") == expected


def exchange(address: str, data: bytes, *, half_close: bool = False, wait: float = 5.0) -> bytes:
    """Send bytes, and return all that the server sends until it closes."""
    parts = urlsplit(address)
    received = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=wait) as connection:
        if data:
            connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            received += piece
    return received


HEAD = b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer " + TOKEN.encode()


def test_bad_connections(strict: Served) -> None:
    """Slow heads and bodies, endless heads, garbage and half-closed sockets end within the limits."""
    address, _ = strict
    begin = time.monotonic()
    assert b" 400 " in exchange(address, b"\x00\x01garbage\r\n\r\n")
    assert b" 431 " in exchange(address, b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 100_000)
    assert b" 408 " in exchange(address, b"POST /embed HTTP/1.1\r\nHost: x\r\n")
    assert b" 408 " in exchange(address, HEAD + b"\r\nContent-Length: 100\r\n\r\n{")
    assert exchange(address, b"") == b""  # nothing was sent
    answer = exchange(address, HEAD + b"\r\nContent-Length: 9000000\r\n\r\n{")
    assert b" 413 " in answer
    assert b"connection: close" in answer
    chunk = b"ffff\r\n" + b" " * 0xFFFF + b"\r\n"
    assert b" 413 " in exchange(address, HEAD + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 124)
    body = b'{"inputs": "a"}'
    whole = HEAD + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    exchange(address, whole, half_close=True)  # counts as a client that has gone
    assert time.monotonic() - begin < 30
    assert ask(address, "/embed", {"inputs": "a"}, allowed())[0] == 200


def test_offers_of_other_protocols_have_bodies(strict: Served) -> None:
    """Wherever the head is divided: the parser would take the body for the other protocol's."""
    address, _ = strict
    body = b'{"inputs": "a"}'
    head = HEAD + b"\r\nConnection: Upgrade\r\nUPGRADE : h2c\r\nContent-Length: %d\r\n\r\n" % len(body)
    begin, parts = head.index(b"UPGRADE") - 2, urlsplit(address)
    for cut in range(begin, begin + 13):
        with socket.create_connection((parts.hostname, parts.port), timeout=5) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(head[:cut])
            time.sleep(0.01)
            connection.sendall(head[cut:] + body)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 "), head[:cut]


def test_bodies_together_are_limited(strict: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    address, context = strict
    monkeypatch.setattr(endpoint, "MOST_BODIES", 0)
    status, answer, names = ask(address, "/embed", {"inputs": "a"}, allowed())
    assert (status, names["retry-after"]) == (503, "1")
    assert answer["error"].startswith("the requests at hand have more than 0 bytes")
    monkeypatch.undo()
    assert ask(address, "/embed", {"inputs": "a"}, allowed())[0] == 200
    assert context.body_bytes == 0


def test_calls_without_a_batch_are_limited(strict: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    address, _ = strict
    assert ask(address, "/tokenize", {"inputs": "a"}, allowed())[0] == 200
    monkeypatch.setattr(serving_context, "MOST_APART", 0)
    status, answer, names = ask(address, "/tokenize", {"inputs": "a"}, allowed())
    assert (status, names["retry-after"]) == (429, "1")
    assert "requests of this kind are waiting" in answer["error"]


def test_connections_are_counted(strict: Served) -> None:
    address, _ = strict
    parts = urlsplit(address)
    idle = [socket.create_connection((parts.hostname, parts.port), timeout=5) for _ in range(12)]
    try:
        time.sleep(0.1)
        assert b" 503 " in exchange(address, b"")
    finally:
        for connection in idle:
            connection.close()
    for _ in range(50):
        if ask(address, "/health")[0] == 200:
            break
        time.sleep(0.05)
    assert ask(address, "/embed", {"inputs": "a"}, allowed())[0] == 200


def test_full_queue(strict: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the queue holds is refused with the time to come back; what waits is answered."""
    address, context = strict
    operation = context.models["embedder"].operations["embed"]
    release, compute = threading.Event(), operation.vectors

    def slow(batch: Any) -> Any:
        release.wait(20)
        return compute(batch)

    monkeypatch.setattr(operation, "vectors", slow)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(address, "/embed", {"inputs": ["a b c d"] * 20}, allowed())))
        for _ in range(5)  # of 120 tokens
    ]
    for thread in threads:
        thread.start()
    for _ in range(200):
        if len(answers) == 2:
            break
        time.sleep(0.02)
    refused = list(answers)
    health = ask(address, "/health")[0]
    release.set()
    for thread in threads:
        thread.join()
    assert [status for status, _, _ in refused] == [429, 429]
    assert all(
        int(names["retry-after"]) >= 1 and "tokens are waiting" in answer["error"] for _, answer, names in refused
    )
    assert health == 200
    assert sorted(status for status, _, _ in answers) == [200, 200, 200, 429, 429]
    assert context.scheduler.queued_tokens == context.scheduler.jobs == 0


def test_clients_that_leave(strict: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a client that has gone is dropped before it is computed."""
    address, context = strict
    operation = context.models["embedder"].operations["embed"]
    release, compute, computed = threading.Event(), operation.vectors, []

    def slow(batch: Any) -> Any:
        release.wait(20)
        computed.append(len(batch))
        return compute(batch)

    monkeypatch.setattr(operation, "vectors", slow)
    parts = urlsplit(address)
    body = b'{"inputs": "a"}'
    request = HEAD + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    connections = []
    for _ in range(8):
        connection = socket.create_connection((parts.hostname, parts.port), timeout=5)
        connection.sendall(request)
        connections.append(connection)
        time.sleep(0.01)
    for connection in connections:
        connection.close()
    for _ in range(300):
        if not context.scheduler.jobs:
            break
        time.sleep(0.01)
    assert context.scheduler.jobs == 0, "the server still counts requests whose clients have gone"
    release.set()
    assert ask(address, "/embed", {"inputs": "a"}, allowed())[0] == 200
    assert sum(computed) < 8 + 1  # those that a worker had taken, and the last one
    assert context.scheduler.queued_tokens == 0


def test_late_requests(strict: Served) -> None:
    """A request that waited for too long is answered with 503."""
    _, context = strict
    done = threading.Event()
    operation = context.models["embedder"].operations["embed"]
    job = Job(operation, ["a"], 1, lambda _: None, timeout=-1.0, form="json", truncate=True)
    job.on_done = lambda _: done.set()
    context.scheduler.submit(job)
    assert done.wait(10)
    assert "waited" in str(job.error)


def test_addresses(folders: dict[str, Path]) -> None:
    taken = bind("127.0.0.1", 0)
    port = taken.getsockname()[1]
    try:
        with pytest.raises(UserError, match=f"--port {port}: cannot be bound .* use --port with a"):
            bind("127.0.0.1", port)
    finally:
        taken.close()
    with pytest.raises(UserError, match="is not an address of this machine"):
        bind("no.such.host.invalid", 0)
    with pytest.raises(UserError, match="second model"), running([str(folders["embedder"])] * 2):
        pass
    with pytest.raises(UserError, match="is not a name"), running([f"a b={folders['embedder']}"]):
        pass
    for options in ({"port": 70000}, {"max_texts": 0}, {"request_timeout": 0.0}, {"cors": ("example.org",)}):
        with pytest.raises(UserError, match=next(iter(options))):
            ServeConfig(**options)  # type: ignore[arg-type]


def test_a_folder_that_changes(folders: dict[str, Path], tmp_path: Path) -> None:
    """Weights are in memory: a file that is overwritten or cut does not change answers, nor end the process."""
    import shutil

    folder = shutil.copytree(folders["embedder"], tmp_path / "model")
    with running([f"model={folder}"], ServeConfig(port=0, dtype="fp32", log="none")) as (address, _):
        before = ask(address, "/embed", {"inputs": "a b"})[1]
        weights = folder / "model.safetensors"
        weights.write_bytes(os.urandom(weights.stat().st_size))
        assert ask(address, "/embed", {"inputs": "a b"})[1] == before
        os.truncate(weights, 0)
        shutil.rmtree(folder)
        assert ask(address, "/embed", {"inputs": "a b"})[1] == before
