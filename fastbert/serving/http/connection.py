"""A connection: uvicorn's, with limits of time and size on what is not a request's body, and of the number of
connections; and with bodies beside offers of another protocol, which uvicorn loses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sized
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fastbert.serving.http.errors import HttpError, plain_body

MOST_HEAD = 1 << 16
"""Bytes of a request's first line and headers; the same for what is around the chunks of its body."""
CHUNK_HEAD = 16
"""Bytes that a chunk's size and line ends may take beside that."""
DISCARD_SECONDS = 2.0
"""Seconds in which the rest of a refused request is read and thrown away."""
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)
_SPLIT = b"\r\nupgrade:"


class _Flow(FlowControl):
    """Reads no more while requests wait for the answer to an earlier one of their connection."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class _Corked:
    """A transport of one answer: writes its head and body at once, so that a client wakes up once, and nothing after
    the connection was closed or refused. `is_whole` is false for answers without a body."""

    __slots__ = ("_connection", "_head", "_is_whole", "_transport")

    def __init__(self, connection: Any, is_whole: bool) -> None:
        self._connection, self._is_whole = connection, is_whole
        self._transport: asyncio.Transport = connection.transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._connection.closing is not None or self._transport.is_closing():
            return
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head + data if data else head)
        elif self._is_whole and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
        elif data:
            self._transport.write(data)

    def close(self) -> None:
        if self._head is not None:
            self.write(b"")
        self._connection.close_answered()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def connection_class(max_connections: int, read_timeout: float) -> type[asyncio.Protocol]:
    """Return the class of a server's connections."""

    class Connection(HttpToolsProtocol):
        """One connection."""

        _read_timer: asyncio.TimerHandle | None = None
        closing: asyncio.TimerHandle | None = None
        _head_bytes = 0
        _held_back = b""
        """The end of what was received of a head: it may be the beginning of an offer of another protocol."""
        _in_head = True
        """Whether the next byte belongs to a head, or to none yet."""
        _around_body = _expected = 0
        """Bytes around the chunks of the present body; those of the present call that are no part of them."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.flow = _Flow(transport, self.pipeline)
            if len(self.connections) > max_connections:
                message = f"{max_connections} connections are open, the limit of this server; try again later"
                self._refuse(503, "Overloaded", message, b"retry-after: 1\r\n")
                return
            self._start_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_request()
            if self.closing is not None:
                self.closing.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing() or self.parser is None or self.closing is not None:
                return
            received = len(data)
            data, self._held_back = self._held_back + data, b""
            if self._in_head:
                self._head_bytes += received
                # A body may follow the head in one piece.
                if self._head_bytes > MOST_HEAD and b"\r\n\r\n" not in data:
                    self._refuse(431, "Validation", f"the request's head is larger than {MOST_HEAD} bytes")
                    return
                data, self._held_back = _split_upgrade(_without_upgrade(data))
                if not data:
                    return
            self._expected = 0
            super().data_received(data)
            if not self._in_head:
                self._around_body += max(0, len(data) - self._expected)
                if self._around_body > MOST_HEAD:
                    self._refuse(431, "Validation", f"more than {MOST_HEAD} bytes are around the chunks of the body")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._start_request()

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._in_head:  # no trailer
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_head, self._head_bytes = False, 0
            self._around_body, self._expected = 0, 1 << 30  # the head's bytes are counted
            super().on_headers_complete()
            if self.cycle is not None:
                self.cycle.transport = _Corked(self, self.scope["method"] != "HEAD")  # type: ignore[assignment]

        def on_chunk_header(self) -> None:
            self._expected += CHUNK_HEAD

        def on_body(self, body: bytes) -> None:
            self._expected += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._in_head, self._head_bytes = True, 0
            self._end_request()
            super().on_message_complete()

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
            if self.transport.is_closing() or self.closing is not None:
                return
            if self.pipeline:  # the connection is not read while an earlier request is answered
                self._read_timer = self.loop.call_later(read_timeout, self._on_slow_request)
            elif self._in_head and not self._head_bytes:
                self.transport.close()
            elif self._in_head or not self.cycle.response_started:
                self._refuse(408, "Validation", f"the request did not arrive within {read_timeout:g} seconds")
            else:
                self._discard_rest()

        def _refuse(self, status: int, kind: str, message: str, more: bytes = b"") -> None:
            """Answer without a request, and close."""
            self._end_request()
            if self.transport.is_closing() or self.closing is not None:
                return
            body = plain_body(HttpError(status, kind, message))
            head = (
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n"
            )
            self.transport.write(head % (status, HTTPStatus(status).phrase.encode(), len(body), more) + body)
            self._discard_rest()

        def close_answered(self) -> None:
            """Close after an answer."""
            if self.cycle.more_body:
                self._discard_rest()
            else:
                self.transport.close()
                self.closing = self.loop.call_later(self.timeout_keep_alive, self._end_unread)

        def timeout_keep_alive_handler(self) -> None:
            self.transport.close()
            self._end_unread()

        def _end_unread(self, size: int | None = None) -> None:
            """Drop a connection whose client has read nothing of its answer since `size` bytes were left."""
            left = self.transport.get_write_buffer_size()
            if left == size:
                self.transport.abort()
            elif left:
                self.closing = self.loop.call_later(self.timeout_keep_alive, self._end_unread, left)

        def _discard_rest(self) -> None:
            """Close once the client has, or soon: to close while it sends would reset the connection, and the client
            might not read its answer."""
            if self.transport.is_closing() or self.closing is not None:
                return
            self.closing = self.loop.call_later(DISCARD_SECONDS, self.transport.close)
            self.flow.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()

    return Connection


def _without_upgrade(data: bytes) -> bytes:
    """Return a request without its offer of another protocol, such as h2c: the parser skips its body otherwise."""
    head, end, rest = data.partition(b"\r\n\r\n")
    shorter = _UPGRADE.sub(b"\r\nx-upgrade:", head)
    return data if shorter is head else shorter + end + rest


def _split_upgrade(data: bytes) -> tuple[bytes, bytes]:
    """Divide what was received of a head in front of a line that may become the offer of another protocol."""
    line = data.rfind(b"\r")
    may_be = line >= 0 and b"\r\n\r\n" not in data and _SPLIT.startswith(data[line:].lower().rstrip(b" \t"))
    return (data[:line], data[line:]) if may_be else (data, b"")


def idle(connection: Any) -> bool:
    """Return whether a connection has no request that is to be answered."""
    return connection.cycle is None or connection.cycle.response_complete
