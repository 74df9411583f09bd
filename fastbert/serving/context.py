"""What all routes of a server share: models, scheduler, limits, metrics, and the state from start to end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import torch

from fastbert.errors import UserError
from fastbert.serving.batches import Limits
from fastbert.serving.config import BearerTokens, ServeConfig
from fastbert.serving.jobs import Job, Operation, Overloaded, TooLong, Unavailable
from fastbert.serving.kinds import load_served, parse_model
from fastbert.serving.metrics import Metrics
from fastbert.serving.scheduler import Scheduler
from fastbert.serving.served_model import ServedModel
from fastbert.tasks.rows import tokens_per_batch

State = Literal["starting", "ready", "stopping"]
Receive = Callable[[], Awaitable[Any]]
T = TypeVar("T")
WATCH_AFTER = 0.02
"""Seconds after which a request's connection is watched, so that short requests do not pay for it."""
MOST_APART = 64
"""Requests that wait for functions which need no batch; more are refused."""
MOST_REPEATED = 4
"""Characters to tokenize, in multiples of the largest body: the query of a ranking is tokenized with each text."""


class UnknownModel(UserError):
    """No model of that name is served."""


class WrongModel(UserError):
    """The model does not answer this route."""


def wrong_kind(served: ServedModel) -> WrongModel:
    """Return the error of a route that a model does not answer."""
    return WrongModel(f"model {served.name!r} is of the kind {served.kind}, which answers {', '.join(served.routes)}")


class ClientGone(Exception):
    """The client closed its connection before it was answered."""


class ServingContext:
    """One server. `models` are in the order of the command line; the first that has a route answers it by default."""

    def __init__(self, config: ServeConfig, sources: Sequence[str], tokens: BearerTokens | None = None) -> None:
        self.config = config
        self.tokens = tokens
        self.names: list[tuple[str, str]] = [parse_model(source) for source in sources]
        seen: set[str] = set()
        for name, source in self.names:
            if name in seen:
                raise UserError(
                    f"{source}: a second model is called {name!r}; give it another name, as in NAME={source}"
                )
            seen.add(name)
        self.models: dict[str, ServedModel] = {}
        self.state: State = "starting"
        self.metrics: Metrics = Metrics()
        self.started_at: float = time.time()
        self.scheduler: Scheduler = None  # type: ignore[assignment]  # made by load()
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set by the server
        self.body_bytes = 0
        """Bytes of the bodies of requests that are not answered."""
        self._apart = ThreadPoolExecutor(1, "fastbert-apart", torch.set_num_threads, (1,))
        self._apart_calls = 0
        self._pending: dict[asyncio.Future[None], tuple[float, Receive]] = {}
        self._watches = False
        self._watching: dict[asyncio.Future[None], asyncio.Task[None]] = {}

    # Start and end

    def load(self, progress: Callable[[str], None] = lambda line: None) -> None:
        """Load and warm all models; the server is ready then, unless it began to stop, which ends the loading after the
        model at hand. Raises what the loaders raise."""
        config = self.config
        for name, source in self.names:
            if self.state == "stopping":
                return
            served = load_served(name, source, device=config.device, dtype=config.dtype, max_length=config.max_length)
            self.models[name] = served
            progress(f"{name}: {served.kind}, {served.how}, up to {served.max_length} tokens")
        devices = {served.model.device.type for served in self.models.values()}
        device = "cuda" if "cuda" in devices else "cpu"
        cores = torch.get_num_threads()
        workers = config.workers or (1 if device == "cuda" else cores)
        threads = config.threads or max(1, cores // workers)
        batch_tokens = tokens_per_batch(device, config.batch_tokens)
        for served in self.models.values():
            served.batch_tokens = batch_tokens
        limits = Limits(
            batch_tokens=batch_tokens,
            max_queue_tokens=config.max_queue_tokens,
            max_queue_jobs=config.max_requests,
            max_seconds=config.request_timeout,
        )
        self.scheduler = Scheduler(limits, workers, threads, self.metrics.on_batch, self._finished)
        self.metrics.watch(self.scheduler)
        self._warm()
        self.scheduler.forget_rates()  # the first calls are slower than others
        if self.state == "starting":
            self.state = "ready"

    def _warm(self) -> None:
        """Compute each operation once for a short and for a long text."""
        for served in self.models.values():
            for operation in served.operations.values():
                for words in (2, served.max_length):
                    if self.state == "stopping":
                        return
                    example = _example(served, operation, words)
                    if example is None:
                        continue
                    done = threading.Event()
                    options: dict[str, Any] = {"truncate": True, "top_k": 1, "form": "json"}
                    job = Job(operation, example, 0, _setter(done), **options)
                    self.scheduler.submit(job)
                    done.wait()
                    if job.error is not None:
                        raise UserError(f"{served.source}: {job.error}") from job.error

    def _finished(self, jobs: Sequence[Job]) -> None:
        """Resolve jobs on the event loop; called on other threads."""
        if self.loop is None:
            for job in jobs:
                job.on_done(job)
        elif jobs:
            self.loop.call_soon_threadsafe(_resolve, jobs)

    # Requests

    def model_for(self, route: str, name: str | None) -> ServedModel:
        """Return the model that answers a route: that of a name, else the first that has it.

        Raises `UnknownModel`, `WrongModel`, and `Unavailable` while models are loaded."""
        if self.state == "starting":
            raise Unavailable("the models are being loaded; try again in some seconds")
        if name is not None:
            served = self.models.get(name)
            if served is None:
                raise UnknownModel(f"model {name!r} is not served here: choose {', '.join(map(repr, self.models))}")
            if route not in served.operations:
                raise wrong_kind(served)
            return served
        for served in self.models.values():
            if route in served.operations:
                return served
        kinds = ", ".join(f"{served.name} ({served.kind})" for served in self.models.values())
        raise WrongModel(f"no model answers /{route}: served are {kinds}")

    def check_count(self, count: int, what: str = "inputs") -> None:
        """Raise `TooLong` for more texts than a request may have."""
        if count > self.config.max_texts:
            raise TooLong(f"{what} has {count} items, and the limit is {self.config.max_texts}: send several requests")

    async def run(self, operation: Operation, inputs: Sequence[Any], receive: Receive, **options: Any) -> Job:
        """Return a job of these inputs when it is done. Raises its error; `ClientGone` if `receive`, that of ASGI,
        reports so before."""
        loop = self.loop
        characters, most = _characters(inputs), MOST_REPEATED * self.config.max_body_bytes
        if characters > most:  # a query counts with each of its texts
            raise TooLong(f"the texts have {characters} characters, and the limit is {most}: send several requests")
        if options.get("truncate", True) is None:
            options["truncate"] = self.config.long == "truncate"
        future: asyncio.Future[None] = loop.create_future()
        job = Job(
            operation, inputs, characters, _resolver(future), timeout=self.config.request_timeout, **options,
        )  # fmt: skip
        self.scheduler.submit(job)
        if not self._watches:
            self._watches = True
            loop.call_later(WATCH_AFTER, self._watch)
        self._pending[future] = job.queued_at, receive
        try:
            await future
        except BaseException:  # cancelled, or the client has gone
            self.scheduler.cancel(job)
            raise
        finally:
            self._pending.pop(future, None)
            task = self._watching.pop(future, None)
            if task is not None:
                task.cancel()
        if job.error is not None:
            raise job.error
        return job

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a function that needs no batch, called on one thread for all such functions.

        Raises `Overloaded` while many wait for it."""
        if self._apart_calls >= MOST_APART:
            raise Overloaded(f"{self._apart_calls} requests of this kind are waiting, the limit; try again later", 1.0)
        self._apart_calls += 1
        try:
            return await self.loop.run_in_executor(self._apart, function, *arguments)
        finally:
            self._apart_calls -= 1

    def close(self) -> None:
        """End the threads, once all accepted jobs are done."""
        self._apart.shutdown()
        if self.scheduler is not None:
            self.scheduler.close()

    def _watch(self) -> None:
        """Watch the connections of requests that have waited for some time, so that short ones do not pay for it."""
        before = time.perf_counter() - WATCH_AFTER
        for future, (since, receive) in self._pending.items():
            if since > before:
                break  # as do all behind it
            if future not in self._watching:
                self._watching[future] = self.loop.create_task(_gone(receive, future))
        self._watches = bool(self._pending)
        if self._watches:
            self.loop.call_later(WATCH_AFTER, self._watch)


def _setter(event: threading.Event) -> Callable[[Job], None]:
    return lambda _: event.set()


def _resolver(future: asyncio.Future[None]) -> Callable[[Job], None]:
    def resolve(_: Job) -> None:
        if not future.done():
            future.set_result(None)

    return resolve


async def _gone(receive: Receive, future: asyncio.Future[None]) -> None:
    while not future.done():
        message = await receive()
        if message["type"] == "http.disconnect":
            if not future.done():
                future.set_exception(ClientGone())
            return


def _resolve(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.on_done(job)


def _characters(inputs: Sequence[Any]) -> int:
    """Return the number of characters of texts, of those in pairs and lists, and of token ids."""
    total = 0
    for item in inputs:
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, tuple | list):
            is_ids = bool(item) and isinstance(item[0], int)
            total += len(item) if is_ids else sum(len(part) for part in item if isinstance(part, str))
    return total


def _example(served: ServedModel, operation: Operation, words: int) -> list[Any] | None:
    """Return inputs of an operation with so many words, None where one is not known."""
    text = " ".join(["a"] * words)
    if operation.name in ("rerank", "predict") and served.kind in ("reranker", "classifier"):
        return [(text, text if served.kind == "reranker" else None)]
    if operation.name == "fill_mask":
        mask = served.tokenizer.convert_ids_to_tokens([served.tokenizer.mask_token_id])[0]
        return [f"{mask} {' '.join(['a'] * max(1, words - 8))}"]
    if served.kind == "task":
        return None
    return [text]
