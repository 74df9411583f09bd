"""Check a built site: every link, picture and script leads to a file of it and every anchor exists, and no page loads
anything from another host."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch"}
# Attributes may hold a >; comments and the code of scripts and styles may hold what looks like an element.
ATTRIBUTES = r"""((?:[^>"']++|"[^"]*"|'[^']*')*+)"""
HIDDEN = re.compile(rf"<!--.*?-->|(<(script|style)\b{ATTRIBUTES}>).*?(?=</\2\s*>)", re.DOTALL | re.IGNORECASE)
START = re.compile(rf"<([a-zA-Z][\w:-]*){ATTRIBUTES}>")
ATTRIBUTE = re.compile(r"""([^\s"'>/=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?""")


@dataclass
class Page:
    """The anchors of a page, what it links, and what it loads."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def add(self, tag: str, values: dict[str, str]) -> None:
        """Add what an element holds."""
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
    for tag, attributes in START.findall(HIDDEN.sub(r"\1", file.read_text(encoding="utf-8"))):
        if attributes:
            page.add(tag.lower(), {n.lower(): unescape(a or b or c) for n, a, b, c in ATTRIBUTE.findall(attributes)})
    return page


def mistakes(folder: Path) -> list[str]:
    """Return the broken links and the foreign resources of the pages of a folder, one per line."""
    root = folder.resolve()
    pages = {str(file): read(file) for file in sorted(root.rglob("*.html"))}
    is_file = cache(os.path.isfile)
    wrong = []
    for file, page in pages.items():
        parent = os.path.dirname(file)
        name = os.path.relpath(file, root)
        for target in page.loads:
            if urlsplit(target).netloc or urlsplit(target).scheme not in ("", "data"):
                wrong.append(f"{name}: loads {target}")
        for target in [*page.links, *page.loads]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = os.path.normpath(os.path.join(parent, unquote(parts.path))) if parts.path else file
            if not is_file(path):
                wrong.append(f"{name}: {target} does not exist")
            elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].anchors:
                wrong.append(f"{name}: {target} has no such anchor")
    for file in sorted(folder.rglob("*.css")):
        text = file.read_text(encoding="utf-8")
        if "url(http" in text or "url(//" in text or "@import" in text:
            wrong.append(f"{file.relative_to(folder)}: loads from another host")
    return wrong
