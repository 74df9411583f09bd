"""Local paths and URLs, and what the errors of file systems mean."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from fastbert.errors import UserError
from fastbert.io.locations import filesystem, is_remote, is_transient, join, local_path, reason_of


class Answer(Exception):
    """As aiohttp and requests raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status}, message='no'")
        self.status = status


class ClientError(Exception):
    """As botocore raises it."""

    def __init__(self, status: int) -> None:
        super().__init__("An error occurred")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class NoCredentialsError(Exception):
    """As botocore raises it."""


def test_locations() -> None:
    remote = ("s3://bucket/shards", "https://host/a?b=c", "memory://x", "zip://a.zip::s3://bucket/b")
    assert all(map(is_remote, remote))
    local = ("shards", "/data/shards", "file:///data/shards", "C:shards", Path("a:b"), None)
    assert not any(map(is_remote, local))
    assert local_path("file:///data/shards") == local_path("/data/shards") == Path("/data/shards")
    assert join("s3://bucket/shards/", "a.bin") == "s3://bucket/shards/a.bin"
    assert join(Path("shards"), "a.bin") == "shards/a.bin"
    with pytest.raises(UserError, match="s3:/bucket: is a URL with one slash; write two"):
        is_remote(Path("s3://bucket"))


@pytest.mark.parametrize(
    ("error", "transient", "reason"),
    [
        (FileNotFoundError(2, "No such file"), False, "not found"),
        (Answer(404), False, "not found"),
        (PermissionError("Forbidden"), False, "access denied; check the credentials"),
        (Answer(403), False, "access denied (status 403); check the credentials"),
        (ClientError(401), False, "access denied (status 401); check the credentials"),
        (Answer(416), False, "the server answered with status 416"),
        (Answer(429), True, "the server answered with status 429"),
        (ClientError(503), True, "the server answered with status 503"),
        (ConnectionResetError(104, "Connection reset"), True, "ConnectionResetError: [Errno 104] Connection reset"),
        (TimeoutError(), True, "TimeoutError"),
        (OSError("first line\n  second"), True, "OSError: first line second"),
        (NoCredentialsError("Unable to locate credentials"), False, "NoCredentialsError: Unable to locate credentials"),
        (ValueError("Invalid bucket"), False, "ValueError: Invalid bucket"),
    ],
)
def test_errors_of_file_systems(error: Exception, transient: bool, reason: str) -> None:
    assert is_transient(error) == transient
    assert reason_of(error) == reason


def test_what_cannot_be_opened_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^gibberish://x: fsspec knows no gibberish://; check the address$"):
        filesystem("gibberish://x")
    for scheme in ("s3", "http"):  # perhaps loaded before
        monkeypatch.delitem(import_module("fsspec.registry")._registry, scheme, raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)  # from an earlier test
    with pytest.raises(UserError, match=r"^s3://x/y: s3:// needs the package s3fs: `pip install s3fs`$"):
        filesystem("s3://x/y")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    with pytest.raises(UserError, match="needs the package aiohttp"):
        filesystem("http://x/y")
