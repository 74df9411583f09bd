"""Requests to a server, drawn from the schemas of its own OpenAPI document or damaged, and the check of an answer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

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
