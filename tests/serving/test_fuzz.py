"""Whatever clients send, a server answers in JSON, with no status above 499 but 503, and keeps serving."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from served_models import ask, sources

from fastbert.serving.config import ServeConfig
from fastbert.serving.server import running

Served = tuple[str, Any]
STATUSES = {200, 400, 404, 405, 408, 413, 415, 422, 424, 429, 431, 503}
TEXTS = (
    "",
    " ",
    "a",
    "a b c",
    "good [MASK] film",
    "[MASK]",
    "a\x00b",
    "\ud800",
    "é\u0301\U0001f600",
    "\u202e",
    "a" * 999,
)
MODELS = ("embedder", "reranker", "classifier", "tagger", "reader", "masked", "splade", "colbert", "nobody", "a b/../c")
NUMBERS = (0, -1, 1, 5, 2**31, 2**63, 2**64, 10**400, -(10**30), 0.5, 1e308, float("nan"), float("inf"), -0.0)
PLAIN = (None, True, False, [], {}, [[]], [{}], [None], {"": None})


class Bodies:
    """Draws bodies of requests from the schemas of the server's own OpenAPI document: right ones, and wrong ones."""

    def __init__(self, document: dict[str, Any], seed: int) -> None:
        self.document, self.random = document, random.Random(seed)
        self.paths = [path for path, methods in document["paths"].items() if "post" in methods]

    def schema(self, path: str) -> Any:
        return self.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]

    def draw(self, path: str) -> bytes:
        """Return a body for a path: one in ten is not JSON."""
        body = self.written(self.value(self.schema(path), 0))
        damage = self.random.random()
        if damage < 0.02:
            return body[: self.random.randrange(len(body) + 1)]
        if damage < 0.04:
            at = self.random.randrange(len(body) + 1)
            return body[:at] + self.random.randbytes(self.random.randrange(1, 4)) + body[at:]
        if damage < 0.05:
            depth = self.random.choice((10, 300, 5000))
            opening, closing = self.random.choice(((b"[", b"]"), (b'{"inputs":', b"}")))
            return b'{"inputs":' + opening * depth + b"1" + closing * depth + b"}"
        return body

    def value(self, schema: Any, depth: int, name: str = "") -> Any:
        """Return a value of a schema, or now and then of none."""
        pick = self.random
        if pick.random() < 0.04:
            return self.anything(depth)
        if "$ref" in schema:
            return self.value(self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], depth, name)
        if "anyOf" in schema:
            return self.value(pick.choice(schema["anyOf"]), depth, name)
        if "enum" in schema:
            return pick.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object":
            properties, required = schema.get("properties", {}), schema.get("required", ())
            return {
                key: self.value(part, depth + 1, key)
                for key, part in properties.items()
                if pick.random() < (0.97 if key in required else 0.3)
            }
        if kind == "array":
            many = pick.random() < 0.02 and depth < 3
            count = pick.choice((100, 1500)) if many else pick.randrange(4)
            return [self.value(schema.get("items", {}), depth + 1) for _ in range(count)]
        if kind == "integer":
            return pick.choice(NUMBERS[:8]) if pick.random() < 0.2 else pick.randrange(1, 40)
        if kind == "boolean":
            return pick.random() < 0.5
        if kind == "null":
            return None
        if kind == "string":
            return pick.choice(MODELS) if name == "model" else self.text()
        return self.anything(depth)

    def anything(self, depth: int) -> Any:
        pick = self.random
        kind = pick.randrange(5 if depth < 4 else 3)
        if kind == 0:
            return self.text()
        if kind == 1:
            return pick.choice(NUMBERS)
        if kind == 2:
            return pick.choice(PLAIN)
        if kind == 3:
            return [self.anything(depth + 1) for _ in range(pick.randrange(4))]
        return {self.text()[:20]: self.anything(depth + 1) for _ in range(pick.randrange(3))}

    def text(self) -> str:
        pick = self.random
        if pick.random() < 0.7:
            return pick.choice(TEXTS)
        if pick.random() < 0.05:
            return pick.choice("aé\x01 ") * pick.choice((3000, 70_000))
        return "".join(chr(pick.choice((97, 32, 0, 0x300, 0xFFFF, 0x1F600, 0x2028))) for _ in range(pick.randrange(30)))

    def written(self, value: Any) -> bytes:
        """Return a value as JSON that is not always valid: NaN, lone surrogates, and now and then a key twice."""
        raw = json.dumps(value, ensure_ascii=self.random.random() < 0.5).encode(errors="surrogatepass")
        if self.random.random() < 0.03 and raw.startswith(b'{"'):
            raw = b"{" + raw[1:-1] + b"," + raw[1:]
        return raw


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def check(path: str, sent: bytes, status: int, kind: str | None, answer: bytes) -> None:
    """Check an answer: valid JSON, a known status, and for errors one line in the path's form."""
    where = f"{path} {sent[:300]!r} -> {status} {answer[:300]!r}"
    assert status in STATUSES, where
    assert kind == "application/json", where
    value = json.loads(answer.decode(), parse_constant=refuse_constant)
    if status == 200:
        return
    if path.startswith("/v1/"):
        message = value["error"]["message"]
    elif path.startswith("/v2/"):
        message = value["message"]
    else:
        message = value["error"]
        assert value.keys() == {"error", "error_type"}, where
    assert message, where
    assert len(message.splitlines()) == 1, where
    assert len(message) <= 400, where


def settled(context: Any) -> bool:
    """Wait for the queue to be empty; return whether it is, with all threads alive."""
    scheduler = context.scheduler
    for _ in range(500):
        if not scheduler.jobs:
            break
        time.sleep(0.01)
    assert scheduler.jobs == scheduler.queued_tokens == scheduler._waiting_tokens == 0
    assert not scheduler._order
    assert not scheduler._untokenized
    threads = [*scheduler._threads, *(tokenizer._thread for tokenizer in scheduler._tokenizers)]
    return all(thread.is_alive() for thread in threads)


def fuzz_bodies(served: Served, count: int, seed: int) -> dict[int, int]:
    """Send bodies on connections that are kept; return how many answers had each status."""
    address, context = served
    bodies = Bodies(ask(address, "/openapi.json")[1], seed)
    pick, counts = bodies.random, dict.fromkeys(STATUSES, 0)
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    for _ in range(count):
        path = pick.choice(bodies.paths)
        body = bodies.draw(path)
        prefix = f"/models/{quote(pick.choice(MODELS))}" if pick.random() < 0.2 and "/v" not in path else ""
        kind = pick.choice(("text/plain", "", "application/x+json")) if pick.random() < 0.02 else "application/json"
        try:
            connection.request("POST", prefix + path, body, {"Content-Type": kind})
            response = connection.getresponse()
        except (ConnectionError, http.client.HTTPException) as problem:
            raise AssertionError(f"{prefix}{path} {body[:300]!r}: {problem!r}") from problem
        answer = response.read()
        check(path, body, response.status, response.getheader("content-type"), answer)
        counts[response.status] += 1
    connection.close()
    assert settled(context)
    assert ask(address, "/health")[0] == 200
    return {status: number for status, number in counts.items() if number}


def heads(pick: random.Random) -> Iterator[bytes]:
    """Yield requests as bytes, the more damaged the later."""
    methods = ("GET", "POST", "HEAD", "PUT", "OPTIONS", "DELETE", "PATCH", "CONNECT", "get", "\x00")
    targets = (
        "/", "/embed", "/health", "/models/a%0Ab/embed", "/%ff", "/nowhere%0d%0ax:%20y", "//", "*", "http://x/embed",
        "/models//embed", "/embed?a=b", "/" + "x" * 9000, "/é", "/page/../app.py", "/models/embedder", "",
    )  # fmt: skip
    body = b'{"inputs": "a"}'
    lengths = (b"15", b"0", b"-1", b"99999999999999999999", b"1e3", b"15\r\nContent-Length: 16", b"")
    extras = (
        b"", b"Expect: 100-continue\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Connection: close\r\n",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"X: \xff\xfe\r\n", b": \r\n", b"Content-Encoding: gzip\r\n",
        b"Transfer-Encoding: chunked\r\n", b"Authorization: Bearer \x80\r\n", b"If-None-Match: *\r\n",
    )  # fmt: skip
    while True:
        head = f"{pick.choice(methods)} {pick.choice(targets)} HTTP/{pick.choice(('1.1', '1.1', '1.0', '2.0', '9'))}"
        data = head.encode() + b"\r\nHost: x\r\nContent-Type: application/json\r\n" + pick.choice(extras)
        data += b"Content-Length: " + pick.choice(lengths) + b"\r\n\r\n" + body
        if pick.random() < 0.3:
            at = pick.randrange(len(data))
            data = data[:at] + pick.randbytes(pick.randrange(1, 9)) + data[at + pick.randrange(9) :]
        if pick.random() < 0.1:
            data = pick.randbytes(pick.randrange(1, 2000))
        yield data * pick.choice((1, 1, 2, 5))


def fuzz_sockets(served: Served, count: int, seed: int) -> None:
    """Send bytes, and leave in several ways: half-closed, reset, closed, or after the answer."""
    address, context = served
    parts = urlsplit(address)
    pick = random.Random(seed)
    requests = heads(pick)
    for _ in range(count):
        data, leaves = next(requests), pick.choice(("reads", "half", "reset", "closes"))
        with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
            connection.sendall(data[: pick.randrange(len(data) + 1)] if pick.random() < 0.2 else data)
            if leaves == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif leaves == "half":
                connection.shutdown(socket.SHUT_WR)
            elif leaves == "reads":
                connection.settimeout(0.02)
                try:
                    answer = connection.recv(65536)
                except (TimeoutError, ConnectionResetError):
                    answer = b""  # it waits for more, or has refused what it got
                assert not answer or answer.startswith(b"HTTP/1.1 "), (data[:300], answer[:300])
                assert b"HTTP/1.1 5" not in answer.replace(b"HTTP/1.1 503", b""), (data[:300], answer[:300])
    assert settled(context)
    assert ask(address, "/embed", {"inputs": "a"})[0] == 200


@pytest.fixture(autouse=True)
def no_complaint(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No exception reaches the log: each one is an answer."""
    yield
    records = [record for record in caplog.get_records("call") if record.exc_info]
    assert not records, records[0].exc_text or records[0].getMessage()


def test_bodies(server: Served, seed: int) -> None:
    counts = fuzz_bodies(server, 600, seed)
    assert counts[200] > 100
    assert counts[422] > 50


def test_sockets(server: Served, seed: int) -> None:
    fuzz_sockets(server, 150, seed)


def exchange(address: str, data: bytes) -> bytes:
    """Send bytes; return what comes until the server closes the connection."""
    parts = urlsplit(address)
    received = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(data)
        while piece := connection.recv(65536):
            received += piece
    return received


def test_several_requests_in_one_piece(server: Served) -> None:
    """Pipelined requests are answered in their order, whatever their methods; not all are read at once."""
    address, _ = server
    body = b'{"inputs": "a"}'
    post = b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n" + body
    others = [b"%b /health HTTP/1.1\r\nHost: x\r\n\r\n" % method for method in (b"HEAD", b"GET")]
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = exchange(address, b"".join([post, *others, post, *others]) * 50 + last)
    statuses = [line.split()[1] for line in answer.split(b"\r\n") if b"HTTP/1.1 " in line]
    assert len(statuses) == 301
    assert set(statuses) <= {b"200", b"405"}


def test_what_is_around_a_body_is_limited(server: Served) -> None:
    """Trailers and extensions of chunks, which no limit of the body counts."""
    address, _ = server
    head = b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    body = b'{"inputs": "a"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    ends: tuple[tuple[bytes, bytes], ...] = (
        (b"0\r\n\r\n", b" 200 "),
        (b"0\r\nx: y\r\n\r\n", b" 200 "),
        (b"0\r\n" + b"x: y\r\n" * 50_000, b" 431 "),
        (b"0;" + b"x" * 300_000, b" 431 "),
    )
    for end, expected in ends:
        answer = exchange(address, head + b"Connection: close\r\n\r\n" + chunks + end)
        assert expected in answer.partition(b"\r\n")[0], (end[:20], answer)
    many = b"".join(b"1\r\n \r\n" for _ in range(50_000))
    assert b" 200 " in exchange(address, head + b"Connection: close\r\n\r\n" + many + chunks + b"0\r\n\r\n")


def test_answers_that_are_not_read(folders: dict[str, Path]) -> None:
    """A client that does not read its answer loses it, after the time that an idle connection may be open."""
    config = ServeConfig(port=0, dtype="fp32", log="none", idle_timeout=1.0)
    body = json.dumps({"inputs": ["a b c d e f g h " * 5] * 600, "truncate": True}).encode()
    with running([f"embedder={folders['embedder']}"], config) as (address, _), contextlib.ExitStack() as stack:
        parts = urlsplit(address)
        connections = []
        for end in ("", "Connection: close\r\n"):
            head = f"POST /embed_all HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{end}Content-Length:"
            connection = stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=30))
            connection.sendall(f"{head} {len(body)}\r\n\r\n".encode() + body)
            connections.append((connection, bytearray(connection.recv(1000))))
        time.sleep(3.5)
        for connection, received in connections:
            with contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(1 << 20):
                    received += piece
            size = int(received.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            assert len(received) < size


@pytest.fixture
def apart(folders: dict[str, Path]) -> Iterator[Served]:
    """A server for the long runs."""
    config = ServeConfig(port=0, dtype="fp32", log="none", max_texts=64, max_body_bytes=200_000)
    with running(sources(folders), config) as served:
        yield served


@pytest.mark.slow
def test_many_bodies(apart: Served) -> None:
    begin = time.monotonic()
    totals: dict[int, int] = {}
    for seed in range(1, 101):
        for status, count in fuzz_bodies(apart, 1000, seed).items():
            totals[status] = totals.get(status, 0) + count
        fuzz_sockets(apart, 20, seed)
    print(f"{totals} in {time.monotonic() - begin:.0f} s")


@pytest.mark.slow
def test_schemathesis(apart: Served) -> None:
    """The OpenAPI document says what is accepted and answered."""
    schemathesis = pytest.importorskip("schemathesis")
    import hypothesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks: list[Callable[..., Any]] = [
        not_a_server_error, response_schema_conformance, status_code_conformance, content_type_conformance,
    ]  # fmt: skip
    document = schemathesis.openapi.from_url(f"{apart[0]}/openapi.json")

    for result in document.get_all_operations():

        @hypothesis.settings(max_examples=300, suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(case=result.ok().as_strategy())
        def conforms(case: Any) -> None:
            case.call_and_validate(checks=checks)

        conforms()
