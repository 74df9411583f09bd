"""The options of a server."""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from pathlib import Path

from fastbert.errors import UserError, require_whole


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Where a server listens, what it accepts, and how it computes. Errors in values raise `UserError`."""

    host: str = "127.0.0.1"
    port: int = 8080
    device: str = "auto"
    dtype: str = "auto"
    workers: int | None = None
    """Batches that are computed at a time; None: one per core, on a GPU one."""
    threads: int | None = None
    """Threads per worker; None: the cores divided by the workers."""
    batch_tokens: int | None = None
    """Tokens of a batch; None: 4,096, on a GPU 65,536."""
    max_length: int | None = None
    """Tokens per text; None: as many as the model reads."""
    long: str = "truncate"
    """Treatment of longer texts, unless the request says so: "truncate" or "error"."""
    max_body_bytes: int = 8_000_000
    max_texts: int = 1024
    """Texts per request."""
    max_queue_tokens: int = 262_144
    """Tokens that wait or are computed, those of a single request included."""
    max_requests: int = 1024
    """Requests that wait or are computed."""
    max_connections: int = 4096
    request_timeout: float = 30.0
    """Seconds that a request may wait in the queue."""
    read_timeout: float = 20.0
    """Seconds that a client may take to send a request."""
    idle_timeout: float = 75.0
    """Seconds after which a connection without a request is closed."""
    drain_timeout: float = 30.0
    """Seconds in which accepted requests are answered after SIGTERM."""
    tokens_file: Path | None = None
    """File of bearer tokens, one per line."""
    cors: tuple[str, ...] = ()
    """Origins whose pages may read answers."""
    log: str = "all"
    """Requests that are logged: "all", "errors" or "none"."""

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_texts", "max_queue_tokens", "max_requests", "max_connections"):
            require_whole(name, getattr(self, name), 1)
        for name in ("workers", "threads", "batch_tokens"):
            require_whole(name, getattr(self, name), 1, optional=True)
        require_whole("max_length", self.max_length, 3, optional=True)
        if not 0 <= self.port <= 65535:
            raise UserError(f"port={self.port} must be from 0 to 65535")
        for name in ("request_timeout", "read_timeout", "idle_timeout", "drain_timeout"):
            if not 0 < getattr(self, name) < 86_400:
                raise UserError(f"{name}={getattr(self, name)} must be more than 0 seconds and less than a day")
        if self.long not in ("truncate", "error"):
            raise UserError(f"long={self.long!r} must be 'truncate' or 'error'")
        if self.log not in ("all", "errors", "none"):
            raise UserError(f"log={self.log!r} must be 'all', 'errors' or 'none'")
        for origin in self.cors:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise UserError(f"cors={origin} must be an origin such as https://example.org, or *")


@dataclass(frozen=True)
class BearerTokens:
    """The digests of the tokens that clients may show; comparing takes the same time for every token."""

    digests: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> BearerTokens:
        """Read a file of tokens, one per line; empty lines and lines that begin with # are skipped. Raises `UserError`
        for a file without tokens, and for one that others than its owner can read."""
        try:
            text = path.read_bytes().decode("ascii")
            mode = path.stat().st_mode
        except FileNotFoundError:
            raise UserError(f"--tokens-file {path}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--tokens-file {path}: cannot be read as ASCII text ({error})") from None
        if os.name == "posix" and mode & 0o077:
            raise UserError(f"--tokens-file {path}: others than its owner can read it; run `chmod 600 {path}`")
        tokens = [line.strip() for line in text.splitlines()]
        tokens = [token for token in tokens if token and not token.startswith("#")]
        if not tokens:
            raise UserError(f"--tokens-file {path}: holds no token; write one per line")
        for token in tokens:
            if len(token) < 16 or any(character.isspace() for character in token):
                raise UserError(
                    f"--tokens-file {path}: a token of {len(token)} characters; use 16 or more without spaces, such as"
                    ' of `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
                )
        return cls(tuple(_digest(token.encode()) for token in tokens))

    def allows(self, authorization: bytes | None) -> bool:
        """Return whether the value of an Authorization header is "Bearer " and one of the tokens."""
        scheme, _, token = (authorization or b"").partition(b" ")
        shown_digest = _digest(token.strip())
        matches = [hmac.compare_digest(shown_digest, digest) for digest in self.digests]
        return any(matches) and scheme.lower() == b"bearer"


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
