"""Clients that pipeline, chunk, do not read or follow the OpenAPI document; tests/torture sends hostile requests."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from served_models import sources

from fastbert.serving.config import ServeConfig
from fastbert.serving.server import running

Served = tuple[str, Any]


@pytest.fixture(autouse=True)
def no_complaint(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No exception reaches the log: each one is an answer."""
    yield
    records = [record for record in caplog.get_records("call") if record.exc_info]
    assert not records, records[0].exc_text or records[0].getMessage()


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
    """A server for the long run."""
    config = ServeConfig(port=0, dtype="fp32", log="none", max_texts=64, max_body_bytes=200_000)
    with running(sources(folders), config) as served:
        yield served


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
