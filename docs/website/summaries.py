"""The title of a page, and a line about it: that of docs/README.md, else its first sentence."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
LISTED = re.compile(r"^- \[[^\]]*\]\(([^)#]+\.md)\):? (.*(?:\n  .*)*)", re.MULTILINE)


def listed() -> dict[Path, str]:
    """Return the lines of docs/README.md by the file of the page."""
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    return {(DOCS / name).resolve(): plain(about) for name, about in LISTED.findall(text)}


def title_of(text: str) -> str:
    """Return the title of a page."""
    match = re.search(r"^# (.+)$", text, re.MULTILINE)
    return match[1].replace("`", "") if match else ""


def first_sentence(text: str) -> str:
    """Return the first sentence of a page below its title as plain text."""
    body = re.sub(r"^```.*?^```$", "", text.partition("\n# ")[2] or text, flags=re.MULTILINE | re.DOTALL)
    paragraphs = [part for part in body.split("\n\n")[1:] if re.match(r"[A-Za-z`*\[]", part)]
    return re.split(r"(?<=[.!?:])(?<! al\.) ", plain(paragraphs[0]))[0].rstrip(":") if paragraphs else ""


def plain(text: str) -> str:
    """Return Markdown on one line without links and emphasis."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)|\*\*|\\", r"\1", " ".join(text.split()))
