"""The anchors of headings, as GitHub and MyST make them."""

from __future__ import annotations

import re

FENCED = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2`*[ ]*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)


def slug(heading: str) -> str:
    """Return the anchor of a heading, of its Markdown: lower case, without punctuation, hyphens for spaces."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors_of(text: str) -> list[str]:
    """Return the anchors of a page's headings in order; repeated ones are numbered."""
    seen: dict[str, int] = {}
    anchors = []
    for heading in HEADING.findall(FENCED.sub("", text)):
        anchor = slug(heading)
        anchors.append(f"{anchor}-{seen[anchor]}" if anchor in seen else anchor)
        seen[anchor] = seen.get(anchor, 0) + 1
    return anchors
