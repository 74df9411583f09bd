"""A server of files over HTTP and in S3's dialect, which also writes and removes them, in a thread; it fails as a test
tells it to."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

CODES = {403: "AccessDenied", 404: "NoSuchKey", 503: "SlowDown"}


@dataclass
class Faults:
    """What goes wrong, until it is changed back."""

    status: Callable[[str], int] = lambda name: 200
    """The status of a request for a file, by its name."""
    write_status: Callable[[str], int] = lambda name: 200
    """The status of a request to write a file, by its name; files are written or not, never in part."""
    change: Callable[[str, bytes], bytes] = lambda name, content: content
    """The bytes that are sent in place of a part of a file."""
    is_cut: Callable[[str], bool] = lambda name: False
    """True closes the connection after half of the answer."""
    tells_size: Callable[[str], bool] = lambda name: True
    """False leaves out the length of the answer."""
    supports_ranges: bool = True
    seconds: float = 0.0
    """Before each answer."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """The name and the range of each request."""
    written: list[str] = field(default_factory=list)
    """The paths of the files that were written, in order."""

    def first(self, times: int, status: int, kind: str = "tokens") -> None:
        """Fail the first requests for files with a word in their name."""
        left = [times]

        def answer(name: str) -> int:
            if kind not in name or not left[0]:
                return 200
            left[0] -= 1
            return status

        self.status = answer


@contextmanager
def serving(folder: Path, prefix: str = "/") -> Iterator[tuple[str, Faults]]:
    """Serve the files of a folder below a prefix of the path; yields the address of the server, and its faults."""
    faults = Faults()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            query = parse_qs(urlsplit(self.path).query)
            if "list-type" in query:
                body = listing(folder, prefix.strip("/"), query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
                self._send(200, body, len(body))
                return
            name, requested = Path(path).name, self.headers.get("Range")
            faults.requests.append((name, requested))
            time.sleep(faults.seconds)
            file, status = folder / path.removeprefix(prefix), faults.status(name)
            if status == 200 and not (path.startswith(prefix) and file.is_file()):
                status = 404
            if status != 200:
                self._send_code(status)
                return
            begin, size = 0, file.stat().st_size
            if requested and faults.supports_ranges:
                first, _, last = requested.removeprefix("bytes=").partition("-")
                begin, status = int(first), 206
                size = int(last) + 1 - begin if last else size
            with file.open("rb") as opened:
                opened.seek(begin)
                content = opened.read(size)
            content = faults.change(name, content)
            announced = len(content) if faults.tells_size(name) else None
            self._send(status, content[: len(content) // 2] if faults.is_cut(name) else content, announced)

        def do_PUT(self) -> None:
            path = unquote(urlsplit(self.path).path)
            content, status = self.rfile.read(int(self.headers["Content-Length"])), faults.write_status(path)
            if status == 200 and not path.startswith(prefix):
                status = 404
            if status == 200:
                file = folder / path.removeprefix(prefix)
                file.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.NamedTemporaryFile(dir=folder.parent, delete=False) as partial:
                    partial.write(content)
                os.replace(partial.name, file)
                faults.written.append(path.removeprefix(prefix))
            self._send_code(status)

        def do_DELETE(self) -> None:
            file = folder / unquote(urlsplit(self.path).path).removeprefix(prefix)
            file.unlink(missing_ok=True)
            with suppress(OSError):  # S3 has no folders; it holds other files
                while file.parent != folder:
                    file = file.parent
                    file.rmdir()
            self._send_code(204)

        def _send_code(self, status: int) -> None:
            code = "NoSuchBucket" if self.command == "PUT" and status == 404 else CODES.get(status, "Error")
            body = b"" if status < 300 else f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            self._send(status, body, len(body))

        def _send(self, status: int, body: bytes, announced: int | None) -> None:
            self.send_response(status)
            if announced is None:
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(announced))
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("ETag", '"x"')
            self.end_headers()
            if self.command != "HEAD":
                with suppress(ConnectionError):  # a reader that needs no more
                    self.wfile.write(body)
            if len(body) != announced:
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{prefix.rstrip('/')}", faults
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def listing(folder: Path, bucket: str, prefix: str, delimiter: str) -> bytes:
    """Answer S3's ListObjectsV2 for the files of a folder."""
    files = {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    keys = sorted(key for key in files if key.startswith(prefix))
    deeper = [key for key in keys if delimiter and delimiter in key[len(prefix) :]]
    folders = sorted({prefix + key[len(prefix) :].split(delimiter)[0] + delimiter for key in deeper})
    stamp = "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;x&quot;</ETag>"
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key>{stamp}<Size>{files[key]}</Size></Contents>"
        for key in keys
        if key not in deeper
    )
    common = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders)
    head = (
        f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(keys)}</KeyCount><MaxKeys>1000</MaxKeys>"
    )
    body = f"{head}<IsTruncated>false</IsTruncated>{contents}{common}"
    return f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{body}</ListBucketResult>'.encode()
