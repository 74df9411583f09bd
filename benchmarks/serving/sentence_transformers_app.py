"""sentence-transformers behind FastAPI, as a careful user writes it: a contender of the serving benchmark.

    python -m fastbert.benchmarks.serving.sentence_transformers_app FOLDER --port 8080 --batching

The model is loaded once. Without --batching every request is encoded in a thread of Starlette's pool; with it one
thread encodes the texts of all waiting requests together, which `encode` sorts by length and pads.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer
from starlette.concurrency import run_in_threadpool

MOST_TEXTS = 256  # per call of `encode`


class Request(BaseModel):
    """Texts to embed."""

    inputs: str | list[str]

    def texts(self) -> list[str]:
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


def encode(model: Any, texts: list[str], batch: int) -> list[list[float]]:
    """Return the vectors of texts."""
    vectors: list[list[float]] = model.encode(texts, batch_size=batch, show_progress_bar=False).tolist()
    return vectors


def simple_app(model: Any, batch: int) -> FastAPI:
    """Return an application that encodes each request on its own."""
    app = FastAPI()

    @app.post("/embed")
    def embed(request: Request) -> list[list[float]]:
        return encode(model, request.texts(), batch)

    return app


def batching_app(model: Any, batch: int) -> FastAPI:
    """Return an application that encodes waiting requests together."""
    queue: asyncio.Queue[tuple[list[str], asyncio.Future[list[list[float]]]]] = asyncio.Queue()

    async def work() -> None:
        while True:
            waiting = [await queue.get()]
            while not queue.empty() and sum(len(texts) for texts, _ in waiting) < MOST_TEXTS:
                waiting.append(queue.get_nowait())
            vectors = await run_in_threadpool(encode, model, [text for texts, _ in waiting for text in texts], batch)
            for texts, future in waiting:
                if not future.cancelled():
                    future.set_result(vectors[: len(texts)])
                del vectors[: len(texts)]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(work())
        yield
        worker.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/embed")
    async def embed(request: Request) -> list[list[float]]:
        future: asyncio.Future[list[list[float]]] = asyncio.get_running_loop().create_future()
        queue.put_nowait((request.texts(), future))
        return await future

    return app


def health() -> dict[str, str]:
    """Return an empty object: the server is ready as soon as it listens."""
    return {}


def main() -> None:
    """Serve until the process is told to end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batching", action="store_true")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    model = SentenceTransformer(flags.folder, device="cpu", model_kwargs={"dtype": getattr(torch, flags.dtype)})
    app = (batching_app if flags.batching else simple_app)(model, flags.batch)
    app.add_api_route("/health", health)
    uvicorn.run(app, port=flags.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
