"""A connection: uvicorn's, with limits of time and size on a request's head, and of the number of connections."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fastbert.serving.http.errors import HttpError, plain_body

MOST_HEAD = 1 << 16
"""Bytes of a request's first line and headers."""


class _Corked:
    """A transport that writes an answer's head and body at once, so that a client wakes up once."""

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head + data if data else head)
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
        elif data:
            self._transport.write(data)

    def flush(self) -> None:
        """Write a head that no body followed."""
        if self._head is not None:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def connection_class(max_connections: int, read_timeout: float) -> type[asyncio.Protocol]:
    """Return the class of a server's connections."""

    class Connection(HttpToolsProtocol):
        """One connection."""

        _read_timer: asyncio.TimerHandle | None = None
        _head_bytes = 0
        _in_head = True

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                message = f"{max_connections} connections are open, the limit of this server; try again later"
                self._refuse(503, "Overloaded", message, b"retry-after: 1\r\n")
                return
            self._start_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_request()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing() or self.parser is None:
                return
            if self._in_head:
                self._head_bytes += len(data)
                # A body may follow the head in one piece.
                if self._head_bytes > MOST_HEAD and b"\r\n\r\n" not in data:
                    self._refuse(431, "Validation", f"the request's head is larger than {MOST_HEAD} bytes")
                    return
            super().data_received(data)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._start_request()

        def on_headers_complete(self) -> None:
            self._in_head, self._head_bytes = False, 0
            super().on_headers_complete()
            if self.cycle is not None:
                self.cycle.transport = _Corked(self.transport)  # type: ignore[assignment]

        def on_message_complete(self) -> None:
            self._end_request()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            self.cycle.transport.flush()  # type: ignore[attr-defined]
            super().on_response_complete()

        def send_400_response(self, msg: str) -> None:
            self._refuse(400, "Validation", "the request is not valid HTTP/1.1")

        def _start_request(self) -> None:
            self._in_head = True
            if self._read_timer is None:
                self._read_timer = self.loop.call_later(read_timeout, self._on_slow_request)

        def _end_request(self) -> None:
            if self._read_timer is not None:
                self._read_timer.cancel()
                self._read_timer = None

        def _on_slow_request(self) -> None:
            self._read_timer = None
            if self.transport.is_closing():
                return
            begun = self._head_bytes or not self._in_head
            # A request that was answered before its body had arrived needs no second answer.
            if begun and (self.cycle is None or not self.cycle.response_started):
                self._refuse(408, "Validation", f"the request did not arrive within {read_timeout:g} seconds")
            else:
                self.transport.close()

        def _refuse(self, status: int, kind: str, message: str, more: bytes = b"") -> None:
            """Answer without a request, and close."""
            self._end_request()
            if self.transport.is_closing():
                return
            body = plain_body(HttpError(status, kind, message))
            head = (
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n"
            )
            self.transport.write(head % (status, HTTPStatus(status).phrase.encode(), len(body), more) + body)
            self.transport.close()

    return Connection


def idle(connection: Any) -> bool:
    """Return whether a connection has no request that is to be answered."""
    return connection.cycle is None or connection.cycle.response_complete
