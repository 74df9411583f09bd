"""Run a server: bind the port, load the models, answer, and drain on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
import uvicorn

from fastbert.errors import UserError
from fastbert.serving.config import BearerTokens, ServeConfig
from fastbert.serving.context import ServingContext
from fastbert.serving.http.app import DirectRoutes, make_app
from fastbert.serving.http.connection import connection_class, idle

BACKLOG = 2048
LINGER = 0.25
"""Seconds after SIGTERM in which requests on open connections still count as accepted."""
SWITCH_INTERVAL = 0.0005
"""Seconds after which Python takes turns between threads: a worker needs the interpreter between two kernels only."""
HANDSHAKE = 0.02
"""Seconds in which connections that clients have begun to open come up."""
_SO_ATTACH_FILTER = 26  # of linux/socket.h
# Return 0 bytes of a packet whose TCP flags are SYN without ACK, and all of others (linux/bpf_common.h).
_ONLY_SYN = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0x40000))


def serve(
    models: Sequence[str], config: ServeConfig | None = None, on_message: Callable[[str], None] = lambda line: None
) -> None:
    """Serve models until SIGTERM or SIGINT, and answer what was accepted before returning; the function behind
    `fastbert serve`.

    `models` are folders, names in the Hub's cache, or NAME=FOLDER. `on_message` receives lines for the terminal. Raises
    `UserError` for a port in use, a model that cannot be served, and files that cannot be read; `CheckpointError` for
    damaged ones.
    """
    config = config or ServeConfig()
    tokens = None if config.tokens_file is None else BearerTokens.read(config.tokens_file)
    context = ServingContext(config, models, tokens)
    listener = bind(config.host, config.port)
    try:
        _Server(context, listener, _address(listener), on_message).run_to_end()
    finally:
        listener.close()


@contextlib.contextmanager
def running(models: Sequence[str], config: ServeConfig | None = None) -> Generator[tuple[str, ServingContext]]:
    """Serve models from a thread of this process within the block; yields the address, such as http://127.0.0.1:8080,
    and the context. For notebooks and tests.

    Raises what `serve` raises, before the block is entered.
    """
    config = config or ServeConfig(port=0)
    tokens = None if config.tokens_file is None else BearerTokens.read(config.tokens_file)
    context = ServingContext(config, models, tokens)
    listener = bind(config.host, config.port)
    ready = threading.Event()
    server = _Server(context, listener, _address(listener), lambda line: None, ready)
    problems: list[BaseException] = []

    def run() -> None:
        try:
            server.run_to_end()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            problems.append(error)
        finally:
            ready.set()

    threads = torch.get_num_threads()
    thread = threading.Thread(target=run, name="fastbert-server")
    thread.start()
    try:
        ready.wait()
        if problems:
            raise problems[0]
        yield server.address, context
    finally:
        server.should_exit = True
        thread.join()
        torch.set_num_threads(threads)
        listener.close()


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises `UserError` for an address that is in use or does not exist."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--host {host}: is not an address of this machine ({error}); use 127.0.0.1 or 0.0.0.0"
        ) from None
    family, kind, protocol, _, address = infos[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        cure = "use --port with another one, or 0 for a free one" if port else "use another --host"
        raise UserError(f"--host {host} --port {port}: cannot be bound ({error.strerror}); {cure}") from None
    return listener


class _Server(uvicorn.Server):
    """uvicorn's server, which loads models while it answers /health, and loses nothing at its end."""

    def __init__(
        self,
        context: ServingContext,
        listener: socket.socket,
        address: str,
        on_message: Callable[[str], None],
        ready: threading.Event | None = None,
    ) -> None:
        self.context, self.listener, self.address, self.on_message = context, listener, address, on_message
        self.ready = ready or threading.Event()
        limits = context.config
        app: Any = make_app(context)
        config = uvicorn.Config(
            app if limits.cors else DirectRoutes(app),
            http=connection_class(limits.max_connections, limits.read_timeout),
            ws="none", lifespan="off", proxy_headers=False, log_config=None, access_log=False, server_header=False,
            timeout_keep_alive=max(1, int(limits.idle_timeout)),
            timeout_graceful_shutdown=max(1, int(limits.drain_timeout)),
        )  # fmt: skip
        super().__init__(config)
        self.problem: BaseException | None = None
        self._signalled = False

    def run_to_end(self) -> None:
        """Serve until a signal. Raises what loading the models raises."""
        previous = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        with self._signals():
            try:
                self.run(sockets=[self.listener])
            finally:
                sys.setswitchinterval(previous)
                self.context.close()
        if self.problem is not None:
            raise self.problem

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and load the models on another thread."""
        await super().startup(sockets)
        self.context.loop = asyncio.get_running_loop()
        self._background = [asyncio.create_task(self._load()), asyncio.create_task(self._tick())]

    async def _load(self) -> None:
        begin = time.perf_counter()
        try:
            await asyncio.to_thread(self.context.load, self.on_message)
        except Exception as error:  # noqa: BLE001 - raised again by run_to_end
            self.problem = error
            self.should_exit = True
            return
        if self.context.state != "ready":
            return
        # What is loaded stays until the end: the collector need not visit it.
        if threading.current_thread() is threading.main_thread():
            gc.collect()
            gc.freeze()
        self.ready.set()
        scheduler = self.context.scheduler
        workers, threads = scheduler.workers, scheduler.threads
        batches = f"{workers} worker{'s' * (workers > 1)} of {threads} thread{'s' * (threads > 1)}"
        self.on_message(
            f"ready on {self.address} after {time.perf_counter() - begin:.1f} s; {batches}; Ctrl-C stops the server"
        )

    async def _tick(self) -> None:
        while True:
            self.context.metrics.on_second()
            await asyncio.sleep(1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was accepted, tell clients to close their connections, and close them."""
        self.context.state = "stopping"
        if self.problem is None:
            self.on_message("stopping: accepted requests are answered")
        await self._stop_listening()
        # Answers ask clients to close; a request that is on its way to an idle connection is answered too.
        await asyncio.sleep(LINGER)
        deadline = time.perf_counter() + self.context.config.drain_timeout
        connections, tasks = self.server_state.connections, self.server_state.tasks
        # A connection stays until its answers are written, which a client may read slowly.
        while (connections or tasks) and time.perf_counter() < deadline:
            for connection in list(connections):
                if idle(connection) and not _has_bytes(connection.transport):
                    connection.shutdown()
            await asyncio.sleep(0.02)
        left = list(tasks)
        if left:
            self.on_message(f"{len(left)} requests were not answered within {self.context.config.drain_timeout:g} s")
            for task in left:
                task.cancel()  # answered with 503
            await asyncio.wait(left, timeout=1)
        for task in self._background:
            task.cancel()
        for connection in list(connections):
            connection.transport.close()
        await asyncio.sleep(0)

    async def _stop_listening(self) -> None:
        """Accept the connections that clients have opened and that the system still holds, and then no more."""
        await asyncio.sleep(0)
        _refuse_connections(self.listener)
        await asyncio.sleep(HANDSHAKE)
        accepted: list[socket.socket] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                accepted.append(self.listener.accept()[0])
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for connection in accepted:
            connection.setblocking(False)
            with contextlib.suppress(OSError):  # closed by the client
                await loop.connect_accepted_socket(self._connection, connection)

    def _connection(self) -> Any:
        kind: Any = self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state={}, _loop=self.context.loop)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone: `run_to_end` handles them for longer than uvicorn does."""
        yield

    @contextlib.contextmanager
    def _signals(self) -> Generator[None, None, None]:
        """Stop at SIGTERM and SIGINT, and at a second one at once; unlike uvicorn, do not die by the first signal."""
        if threading.current_thread() is not threading.main_thread():  # the caller sets should_exit
            yield
            return
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to stop, or end the process at once, with the exit code of a process that a signal ends."""
        if self._signalled:
            # Threads in native code cannot be interrupted, and an interpreter must not end before them.
            os._exit(128 + sig)
        self._signalled = self.should_exit = True


def _refuse_connections(listener: socket.socket) -> None:
    """Let the system drop the first packets of further clients, where it can: it would complete their handshakes until
    the socket is closed, and reset their connections then. Handshakes that have begun go on."""
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _ONLY_SYN))
    with contextlib.suppress(OSError):
        listener.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(_ONLY_SYN), ctypes.addressof(program))
        )  # fmt: skip


def _has_bytes(transport: Any) -> bool:
    """Return whether a connection has bytes to read, or the client has closed it."""
    file = transport.get_extra_info("socket")
    if file is None or file.fileno() < 0:
        return False
    if not hasattr(select, "poll"):
        return bool(select.select([file], [], [], 0)[0])
    poll = select.poll()
    poll.register(file.fileno(), select.POLLIN)
    return bool(poll.poll(0))
