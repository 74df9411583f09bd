"""Write llms.txt (https://llmstxt.org): what the site is, and its pages with a line about each, for language models.

The Markdown of each page lies beside its HTML under the same name; llms-full.txt holds the guides and explanations in
one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from website.staging import Staged
from website.summaries import title_of

SUMMARY = "The engine to pre-train, fine-tune and serve BERT-family encoders: fast, exact and complete."
ABOUT = """\
fastbert is a Python package with a command line of the same name. The distribution is called `fastbert-engine`, the
import name is `fastbert`. It reads and writes Hugging Face folders; `fastbert.accelerate(model)` runs a model of
transformers, sentence-transformers or torch.nn on its kernels."""
# The section pages, in whose toctrees the pages of a section stand.
SECTIONS = {
    "Start": ("install.md", "quickstart.md"),
    "Tutorials": ("tutorials.md",),
    "How-to guides": ("guides.md",),
    "Reference": ("reference.md",),
    "Explanation": ("explanation.md",),
    "Optional": ("project.md",),
}
ENTRIES = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def write(staged: Staged, html: Path) -> None:
    """Write llms.txt, llms-full.txt, and the pages' Markdown, into a built site."""
    lines = ["# fastbert", "", f"> {SUMMARY}", "", ABOUT, ""]
    guides = []
    for title, pages in SECTIONS.items():
        lines += [f"## {title}", ""]
        for page in dict.fromkeys(place for first in pages for place in below(first, staged.pages)):
            text = staged.about[page]
            lines.append(f"- [{title_of(staged.pages[page])}]({page})" + (f": {text}" if text else ""))
            if title != "Reference":
                guides.append(staged.pages[page])
        lines.append("")
    (html / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
    (html / "llms-full.txt").write_text("\n\n".join(map(without_directives, guides)), encoding="utf-8")
    for place, text in staged.pages.items():
        (html / place).parent.mkdir(parents=True, exist_ok=True)
        (html / place).write_text(without_directives(text), encoding="utf-8")


def below(page: str, pages: dict[str, str]) -> Iterator[str]:
    """Yield a page and those of its toctrees, depth first; section pages, which only list others, are left out."""
    entries = [line for block in ENTRIES.findall(pages[page]) for line in block.splitlines()]
    names = [line.strip() for line in entries if line.strip() and not line.startswith(":")]
    if not names or "/" in page:
        yield page
    for name in names:
        pattern = (Path(page).parent / f"{name}.md").as_posix()
        for found in sorted(
            place for place in pages if Path(place).match(pattern) and place.count("/") == pattern.count("/")
        ):
            if found != page:
                yield from below(found, pages)


def without_directives(text: str) -> str:
    """Return a page's Markdown without what is for Sphinx alone: front matter, toctrees, and the fences of entries."""
    text = re.sub(r"\A---\n.*?^---\n+", "", text, flags=re.MULTILINE | re.DOTALL)
    text = ENTRIES.sub("", text)
    text = re.sub(r"^`{3,6}\{(?:py:\w+|option)\} (.*)$", r"**`\1`**", text, flags=re.MULTILINE)
    text = re.sub(r"^```\{program\} .*\n+```\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^`{5,6}$|^:(?:canonical|classmethod|staticmethod|type|value):.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\{py:obj\}`([^`<]+?) <[^`]*>`", r"`\1`", text)
    return re.sub(r"\n{3,}", "\n\n", text)
