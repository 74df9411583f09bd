"""A server of files in memory: over HTTP, with ranges and failures on demand, and as much of S3 as reading needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

# What happens to a file of which the name contains one of these words.
FORBIDDEN, BREAKING, UNSIZED = "forbidden", "breaking", "unsized"


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve files by their paths, "bucket/folder/name", and yield the server's address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            if "Content_Length" not in headers and UNSIZED not in self.path:
                self.send_header("Content-Length", str(len(body)))
            if UNSIZED in self.path:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command == "GET":
                with suppress(ConnectionError):  # a reader that has seen enough
                    self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            path, query = unquote(parts.path).strip("/"), parse_qs(parts.query)
            if "list-type" in query:
                self.answer(200, listing(path, files, query.get("prefix", [""])[0], query.get("delimiter", [""])[0]))
                return
            if FORBIDDEN in path:
                self.answer(403)
                return
            if path not in files:
                self.answer(404)
                return
            body = files[path]
            if BREAKING in path and self.command == "GET":
                self.answer(200, body[: len(body) // 2], Content_Length=str(len(body)))
                self.close_connection = True
                return
            first, last = 0, len(body) - 1
            ranged = self.headers.get("Range")
            if ranged and UNSIZED not in path:
                begin, _, end = ranged.removeprefix("bytes=").partition("-")
                first, last = int(begin), min(int(end or last), last)
                self.answer(206, body[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(body)}")
            elif UNSIZED in path:
                self.answer(200, body)
            else:
                self.answer(200, body, Accept_Ranges="bytes", Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT", ETag='"x"')

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def listing(bucket: str, files: Mapping[str, bytes], prefix: str, delimiter: str) -> bytes:
    """Answer ListObjectsV2."""
    keys = sorted(path.removeprefix(f"{bucket}/") for path in files if path.startswith(f"{bucket}/{prefix}"))
    folders = []
    if delimiter:
        inside = [key for key in keys if delimiter in key[len(prefix) :]]
        folders = sorted({prefix + key[len(prefix) :].split(delimiter)[0] + delimiter for key in inside})
        keys = [key for key in keys if key not in inside]
    stamp = "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;x&quot;</ETag>"
    contents = "".join(
        f"<Contents><Key>{key}</Key>{stamp}<Size>{len(files[f'{bucket}/{key}'])}</Size></Contents>" for key in keys
    )
    common = "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in folders)
    head = f"<Name>{bucket}</Name><Prefix>{prefix}</Prefix><KeyCount>{len(keys) + len(folders)}</KeyCount>"
    body = f"{head}<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{contents}{common}"
    return f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{body}</ListBucketResult>'.encode()
