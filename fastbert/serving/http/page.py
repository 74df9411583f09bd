"""The routes of the page at `/`: files of `fastbert/serving/page/`, held in memory and revalidated by their ETag.

The page needs nothing but this server: its policy refuses scripts, styles and requests of any other origin, inline
scripts and styles, and frames. Routes exist for the files of the folder alone, so no path is ever joined.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

FOLDER = Path(__file__).resolve().parents[1] / "page"
INDEX = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_routes() -> list[BaseRoute]:
    """Return the routes of the page for GET and HEAD: `/` and `/page/FILE` for each of its files.

    Another method on these paths is left to later routes, so `POST /` can belong to the API.
    """
    files = sorted(file for file in FOLDER.iterdir() if file.suffix in MEDIA_TYPES)
    return [_route("/" if file.name == INDEX else f"/page/{file.name}", file) for file in files]


def _route(path: str, file: Path) -> Route:
    """Return the route that answers `path` with a file, read now."""
    content = file.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": etag}
    sized = {**headers, "Content-Type": MEDIA_TYPES[file.suffix], "Content-Length": str(len(content))}

    async def answer(request: Request) -> Response:
        if _matches(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers=headers)
        # A HEAD request gets the length of the file without its bytes.
        return Response(b"" if request.method == "HEAD" else content, headers=sized)

    return Route(path, answer, methods=["GET"], name=file.name)


def _matches(if_none_match: str, etag: str) -> bool:
    """Return whether an If-None-Match header names the ETag, by the weak comparison of RFC 9110, section 13.1.2."""
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in tags or etag in tags
