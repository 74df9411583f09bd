"""Check a built site: every link, picture and script leads to a file of it and every anchor exists, and no page loads
anything from another host."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch"}


@dataclass
class Page(HTMLParser):
    """The anchors of a page, what it links, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "href" in values:
            kind = self.loads if RELATIONS.intersection(values.get("rel", "").split()) else self.links
            kind.append(values["href"])
        elif tag in LOADS and LOADS[tag] in values:
            self.loads.append(values[LOADS[tag]])


def read(file: Path) -> Page:
    """Return what a page holds."""
    page = Page()
    page.feed(file.read_text(encoding="utf-8"))
    return page


def mistakes(folder: Path) -> list[str]:
    """Return the broken links and the foreign resources of the pages of a folder, one per line."""
    pages = {file.resolve(): read(file) for file in sorted(folder.rglob("*.html"))}
    wrong = []
    for file, page in pages.items():
        name = file.relative_to(folder.resolve())
        for target in page.loads:
            if urlsplit(target).netloc or urlsplit(target).scheme not in ("", "data"):
                wrong.append(f"{name}: loads {target}")
        for target in [*page.links, *page.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not path.exists() or path.is_dir():
                wrong.append(f"{name}: {target} does not exist")
            elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].anchors:
                wrong.append(f"{name}: {target} has no such anchor")
    for file in sorted(folder.rglob("*.css")):
        text = file.read_text(encoding="utf-8")
        if "url(http" in text or "url(//" in text or "@import" in text:
            wrong.append(f"{file.relative_to(folder)}: loads from another host")
    return wrong
