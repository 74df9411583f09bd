"""`fastbert serve`: answer requests over HTTP with one model or several."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from fastbert.cli.checks import check_source
from fastbert.errors import require_package
from fastbert.flags import MACHINE, MODEL, rare, require, required

if TYPE_CHECKING:
    from fastbert.serving.config import ServeConfig

EXAMPLES = (
    "fastbert serve sentence-transformers/all-MiniLM-L6-v2",
    "fastbert serve embed=runs/embedder/model rerank=runs/ranker --port 9000 --dtype int8",
)
NETWORK, LIMITS = "Network", "Limits"


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The models."""

    GROUP: ClassVar = MODEL

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = required(
        "the folder of a model, or its name in the Hub's cache", name="MODEL", default=()
    )
    """Folders of models, or their names in the Hub's cache: embedders, cross-encoders, classifiers, taggers, masked
    language models. NAME=FOLDER chooses the name that clients use (default: the folder's)."""
    max_length: int | None = None
    """Tokens per text (default: as many as the model reads)."""
    long: Literal["truncate", "error"] = "truncate"
    """Longer texts are truncated, and counted in the metrics, or refused, unless the request says `truncate`."""


@dataclass(frozen=True, kw_only=True)
class _Network:
    """The address, and who may ask."""

    GROUP: ClassVar = NETWORK

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every one of this machine."""
    port: int = 8080
    """Port to listen on; 0 chooses a free one."""
    tokens_file: Path | None = None
    """File of bearer tokens, one per line, of which clients must show one; only its owner may read it."""
    cors: tuple[str, ...] = rare(())
    """Origins whose pages may read answers, such as https://example.org (default: none)."""
    log: Literal["all", "errors", "none"] = "all"
    """Requests that are logged to stderr, as lines of JSON without texts."""


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """What is accepted; everything else is refused with one line of JSON."""

    GROUP: ClassVar = LIMITS

    max_texts: int = 1024
    """Texts per request."""
    max_body_bytes: int = rare(8_000_000)
    """Bytes of a request's body."""
    max_queue_tokens: int = 262_144
    """Tokens that wait or are computed; more are answered with 429."""
    max_requests: int = rare(1024)
    """Requests that wait or are computed; more are answered with 429."""
    max_connections: int = rare(4096)
    """Open connections; more are answered with 503."""
    request_timeout: float = rare(30.0)
    """Seconds that a request may wait in the queue; then it is answered with 503."""
    read_timeout: float = rare(20.0)
    """Seconds that a client may take to send a request."""
    idle_timeout: float = rare(75.0)
    """Seconds after which a connection without requests is closed."""
    drain_timeout: float = rare(30.0)
    """Seconds in which accepted requests are answered after SIGTERM."""


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """How batches are computed."""

    GROUP: ClassVar = MACHINE

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Auto uses a GPU if there is one."""
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Dtype of the weights; auto is the faster of fp32 and bf16; int8, on CPUs, is faster still and less exact."""
    workers: int | None = rare(None)
    """Batches that are computed at a time (default: one per core, on a GPU one)."""
    threads: int | None = rare(None)
    """Threads per worker (default: the cores divided by the workers)."""
    batch_tokens: int | None = rare(None)
    """Tokens per batch (default: 4096, on a GPU 65536); answers do not depend on it."""


@dataclass(frozen=True, kw_only=True)
class Config(_Machine, _Limits, _Network, _Model):
    """Serve models over HTTP, in the formats of text-embeddings-inference, OpenAI, Cohere and Hugging Face's inference
    API, with a page at / for people. Requests are batched by tokens; an answer does not depend on its batch."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    require(config, "models")
    for name in ("fastapi", "uvicorn", "prometheus_client"):
        require_package(name, f"`fastbert serve` needs the package {name}: `pip install 'fastbert-engine[serve]'`")
    for model in config.models:
        _, separator, source = model.partition("=")
        check_source("MODEL", source if separator else model)
    _options(config)
    if config.tokens_file is not None:
        from fastbert.serving.config import BearerTokens

        BearerTokens.read(config.tokens_file)
    if config.tokens_file is None and config.host not in ("127.0.0.1", "localhost", "::1"):
        sys.stderr.write(f"fastbert: --host {config.host} without --tokens-file: anyone who reaches it may use it\n")


def _options(config: Config) -> ServeConfig:
    from fastbert.serving.config import ServeConfig

    return ServeConfig(**{name: value for name, value in vars(config).items() if name != "models"})


def run(config: Config, *, quiet: bool = False) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    from fastbert.serving.server import serve

    def show(line: str) -> None:
        if not quiet:
            print(line, flush=True)

    serve(config.models, _options(config), show)
    return 0
