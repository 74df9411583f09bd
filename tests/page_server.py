"""A server that answers the page's requests with plausible fixed answers, for its tests and for work on the page.

`PYTHONPATH=. python tests/page_server.py [PORT]` serves it until Ctrl-C. What the page sent is kept in `requests`.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fastbert.serving.http.page import page_routes

Answer = Callable[[dict[str, Any]], Any]

KINDS = {
    "masked-lm": ["/fill_mask", "/tokenize", "/attention"],
    "embedding": ["/embed", "/similarity", "/tokenize", "/attention"],
    "reranker": ["/rerank", "/predict", "/tokenize", "/attention"],
    "classifier": ["/predict", "/tokenize", "/attention"],
    "tagger": ["/predict", "/token_classification", "/tokenize", "/attention"],
    "task": ["/predict", "/tokenize", "/attention"],
    "sparse": ["/embed_sparse"],
}
LAYERS, HEADS = 4, 6


def model(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    """Return a model's entry of `/info`."""
    described = {"architecture": "bert", "dtype": "float32", "max_input_length": 512, "routes": KINDS[kind]}
    mask = "[MASK]" if kind == "masked-lm" else None
    return {"name": name, "kind": kind, **described, "mask_token": mask, "labels": None, **fields}


MODELS = [
    model("bert-base-uncased", "masked-lm"),
    model("roberta-base", "masked-lm", architecture="roberta", mask_token="<mask>"),
    model("all-MiniLM-L6-v2", "embedding", max_input_length=256),
    model("ms-marco-MiniLM-L6-v2", "reranker", dtype="int8"),
    model("sentiment", "classifier", labels=["negative", "neutral", "positive"]),
    model("ner", "tagger", labels=["O", "PER", "LOC", "ORG"]),
]
NAMES = {"Marie Curie": "PER", "Pierre Curie": "PER", "Warsaw": "LOC", "University of Paris": "ORG", "Zoë": "PER"}
WORDS = ("capital", "heart", "centre", "pride", "city", "birthplace", "cradle", "jewel", "seat", "##s", "star",
         "crown", "north", "soul", "center", "home", "image", "name", "king", "rest")  # fmt: skip


class Refusal(Exception):
    """An error of the server, with its status."""

    def __init__(self, status: int, message: str, error_type: str = "Validation") -> None:
        super().__init__(message)
        self.status, self.message, self.error_type = status, message, error_type


class PageServer:
    """The state of the server; tests change it between two requests of the page."""

    def __init__(self) -> None:
        self.models = MODELS
        self.token: str | None = None
        self.version = "0.1.0"
        self.slow_texts: dict[str, float] = {}  # seconds before a request with that text is answered
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.polls = 0
        self.answers: dict[str, Answer] = {
            "fill_mask": self.fill_mask,
            "similarity": self.similarity,
            "rerank": self.rerank,
            "predict": self.predict,
            "token_classification": self.token_classification,
            "tokenize": lambda body: [pieces(text) for text in body["inputs"]],
            "attention": attention,
        }
        self.app = Starlette(
            routes=[
                *page_routes(),
                Route("/info", self.info),
                Route("/stats", self.stats),
                Route("/{route}", self.post, methods=["POST"]),
            ],
            exception_handlers={Refusal: refuse},
        )

    def check(self, request: Request) -> None:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            raise Refusal(401, "missing or unknown bearer token: send 'Authorization: Bearer TOKEN'")

    async def info(self, request: Request) -> Response:
        self.check(request)
        return JSONResponse({"model_id": self.models[0]["name"], "version": self.version, "models": self.models})

    async def stats(self, request: Request) -> Response:
        self.check(request)
        self.polls += 1
        history = [[200 + 60 * math.sin(i / 6), 30_000 + 9000 * math.sin(i / 5) * math.cos(i)] for i in range(60)]
        rates = {"requests_per_second": history[-1][0], "tokens_per_second": history[-1][1]}
        totals = {"uptime_seconds": 8000.5, "requests": 48_210, "tokens": 7_304_112}
        return JSONResponse({**totals, **rates, "queued_tokens": 128, "running_requests": 3, "history": history})

    async def post(self, request: Request) -> Response:
        self.check(request)
        route, body = request.path_params["route"], await request.json()
        self.requests.append((route, body))
        for text, seconds in self.slow_texts.items():
            if text in str(body):
                await asyncio.sleep(seconds)
        return JSONResponse(self.answers[route](body))

    def fill_mask(self, body: dict[str, Any]) -> Any:
        named = next((entry for entry in self.models if entry["name"] == body.get("model")), self.models[0])
        answers = []
        for text in body["inputs"]:
            blanks = text.count(named["mask_token"])
            if blanks == 0:
                raise Refusal(422, f"inputs: no {named['mask_token']} in the text; put one where a word is missing")
            answers.append([self.candidates(text, blank, body["top_k"]) for blank in range(blanks)])
        return answers

    def candidates(self, text: str, blank: int, top_k: int) -> list[dict[str, Any]]:
        shares = [0.86 * 0.31**i / (1 + blank) for i in range(top_k)]
        words = WORDS[blank:] + WORDS[:blank]
        rows = zip(shares, words, strict=False)
        return [{"score": share, "token": 7, "token_str": word, "sequence": text} for share, word in rows]

    def similarity(self, body: dict[str, Any]) -> Any:
        sentences = body["inputs"]["sentences"]
        if not all(sentences):
            raise Refusal(422, "inputs.sentences[0] is empty")
        return [scatter(text) * 1.4 - 0.4 for text in sentences]

    def rerank(self, body: dict[str, Any]) -> Any:
        if not body["texts"]:
            raise Refusal(422, "texts is empty; send at least one")
        scores = [{"index": i, "score": scatter(text) ** 2} for i, text in enumerate(body["texts"])]
        return sorted(scores, key=lambda entry: -entry["score"])

    def predict(self, body: dict[str, Any]) -> Any:
        if body.get("model") == "stars":
            return [[{"label": "LABEL_0", "score": 3.25}] for _ in body["inputs"]]
        shares = {"positive": 0.941, "neutral": 0.052, "negative": 0.007}
        return [[{"label": label, "score": score} for label, score in shares.items()] for _ in body["inputs"]]

    def token_classification(self, body: dict[str, Any]) -> Any:
        return [entities(text) for text in body["inputs"]]


async def refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return JSONResponse({"error": error.message, "error_type": error.error_type}, status_code=error.status)


def scatter(text: str, key: int = 0) -> float:
    """Return a number between 0 and 1 that depends on the text alone."""
    return zlib.crc32(f"{key} {text}".encode()) / 2**32


def entities(text: str) -> list[dict[str, Any]]:
    spans = [
        {"entity_group": group, "score": 0.9 + scatter(name) / 10, "word": name, "start": m.start(), "end": m.end()}
        for name, group in NAMES.items()
        for m in re.finditer(re.escape(name), text)
    ]
    return sorted(spans, key=lambda span: span["start"])


def pieces(text: str) -> list[dict[str, Any]]:
    """Cut a text into pieces of at most five characters, as WordPiece writes them."""
    tokens: list[dict[str, Any]] = [{"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None}]
    for word in re.finditer(r"\w+|[^\w\s]", text.lower()):
        for start in range(word.start(), word.end(), 5):
            stop = min(start + 5, word.end())
            mark = "" if start == word.start() else "##"
            piece = mark + text.lower()[start:stop]
            number = 1000 + zlib.crc32(piece.encode()) % 29_000
            tokens.append({"id": number, "text": piece, "special": False, "start": start, "stop": stop})
    return [*tokens, {"id": 102, "text": "[SEP]", "special": True, "start": None, "stop": None}]


def attention(body: dict[str, Any]) -> dict[str, Any]:
    layer, head = body["layer"] % LAYERS, body["head"]
    tokens = [{key: token[key] for key in ("id", "text", "special")} for token in pieces(body["inputs"])]
    rows = []
    for i in range(len(tokens)):
        near = [2 * scatter(f"{i} {j}", 10 * layer + (head or 0)) - abs(i - j) / 2 for j in range(len(tokens))]
        weights = [math.exp(2 * score) for score in near]
        weights[-1] += sum(weights) / 3
        rows.append([weight / sum(weights) for weight in weights])
    return {"tokens": tokens, "layers": LAYERS, "heads": HEADS, "layer": layer, "head": head, "attention": rows}


@contextmanager
def serving(state: PageServer, port: int = 0) -> Iterator[str]:
    """Serve in a thread; the value is the page's address."""
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(state.app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


if __name__ == "__main__":
    with serving(PageServer(), int(sys.argv[1]) if len(sys.argv) > 1 else 8080) as address:
        print(f"{address}/ (Ctrl-C ends it)", flush=True)
        threading.Event().wait()
