"""The title of a page, and a line about it: that of a README, else its first sentence."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
LISTED = re.compile(r"^(?:-|\d+\.) \[[^\]]*\]\(([^)#]+\.md)\):? (.*(?:\n  +\S.*)*)", re.MULTILINE)


def listed() -> dict[Path, str]:
    """Return the lines of docs/README.md and of its folders' by the file of the page; those of a folder come first."""
    lines = {}
    for readme in (DOCS / "README.md", *sorted(DOCS.glob("*/README.md"))):
        for name, about in LISTED.findall(readme.read_text(encoding="utf-8")):
            lines[(readme.parent / name).resolve()] = plain(about)
    return lines


def title_of(text: str) -> str:
    """Return the title of a page."""
    match = re.search(r"^# (.+)$", text, re.MULTILINE)
    return match[1].replace("`", "") if match else ""


def first_sentence(text: str) -> str:
    """Return the first sentence of a page below its title as plain text."""
    body = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    body = re.split(r"^# .*$", body, maxsplit=1, flags=re.MULTILINE)[-1]
    paragraphs = [part for part in body.strip().split("\n\n") if re.match(r"[A-Za-z`*\[]", part)]
    return re.split(r"(?<=[.!?])(?<! al\.) ", plain(paragraphs[0]))[0].rstrip(":") if paragraphs else ""


def plain(text: str) -> str:
    """Return Markdown on one line without links and emphasis."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)|\*\*|\\", r"\1", " ".join(text.split()))
