"""Copy the pages of docs/, and those outside that belong on the site, into one folder for Sphinx.

GitHub shows the pages where they are; on the site the README of a folder is its index.md, CHANGELOG.md is changelog.md,
and records and other files that pages link lie in `files/`. Links are rewritten accordingly. A file is written only if
its text has changed, so that Sphinx rebuilds only what it must.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from website import summaries
from website.slugs import FENCED

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages outside docs/, and where they stand on the site. The landing page takes the place of both READMEs.
OUTSIDE = {
    **{path.name: f"{path.stem.lower().replace('_', '-')}.md" for path in sorted(ROOT.glob("*.md"))},
    "README.md": "index.md",
    "docs/README.md": "index.md",
    "docs/search.md": "vector-search.md",  # search.html is the site's own
    "benchmarks/results/README.md": "records.md",
    "benchmarks/speedrun/README.md": "speedrun.md",
}
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
WIDE = 1000  # pixels of a diagram that is not scaled down
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)


@dataclass
class Staged:
    """The folder that Sphinx reads: pages by name, and the other files that they link."""

    folder: Path
    pages: dict[str, str] = field(default_factory=dict)
    """The Markdown of each page by its path in the folder."""
    files: set[str] = field(default_factory=set)
    about: dict[str, str] = field(default_factory=dict)
    """A line about each page."""

    def write(self) -> None:
        """Write what has changed, and remove what is gone."""
        for name, text in self.pages.items():
            self._write(name, text.encode())
        for path in sorted(self.folder.rglob("*"), reverse=True):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and name not in self.pages and name not in self.files:
                path.unlink()
            elif path.is_dir() and not any(path.iterdir()):
                path.rmdir()

    def copy(self, source: Path, name: str) -> None:
        """Copy a file that is not a page."""
        self.files.add(name)
        self._write(name, source.read_bytes())

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def sources() -> dict[Path, str]:
    """Return the pages of the project with their place on the site; the landing page's is docs/index.md."""
    pages = {path: place_of(path) for path in sorted(DOCS.rglob("*.md"))}
    pages |= {ROOT / name: place for name, place in OUTSIDE.items()}
    return {path: place for path, place in pages.items() if place != "index.md" or path == DOCS / "index.md"}


def place_of(path: Path) -> str:
    """Return where a file of the project stands on the site."""
    name = path.relative_to(ROOT).as_posix()
    if name in OUTSIDE:
        return OUTSIDE[name]
    if path.is_relative_to(DOCS) and path.suffix in (".md", ".png", ".svg", ".jpg"):
        name = path.relative_to(DOCS).as_posix()
        return re.sub(r"(^|/)README\.md$", r"\1index.md", name)
    return f"files/{name}"


def stage(folder: Path, generated: dict[str, str]) -> Staged:
    """Return the staged pages of the project, with generated ones; call `write` to write them."""
    staged = Staged(folder)
    for source, place in sources().items():
        staged.pages[place] = relinked(source, place, staged, source.read_text(encoding="utf-8"))
    staged.pages.update(generated)
    for place in list(staged.pages):
        folder_of_page = Path(place).parent.as_posix()
        if folder_of_page != "." and f"{folder_of_page}/index.md" not in staged.pages:
            staged.pages[f"{folder_of_page}/index.md"] = f"# {folder_of_page.title()}\n"
    lines = {place_of(path): line for path, line in summaries.listed().items()}
    staged.about = {place: lines.get(place) or summaries.first_sentence(text) for place, text in staged.pages.items()}
    front = "---\nmyst:\n  html_meta:\n    description: {}\n---\n\n"
    staged.pages = {
        place: front.format(json.dumps(staged.about[place])) + with_toctree(place, text, staged)
        for place, text in staged.pages.items()
    }
    return staged


def with_toctree(place: str, text: str, staged: Staged) -> str:
    """Return a page whose toctrees name what there is: of `:glob:` ones, entries that match no page are left out.

    A toctree that is to be seen becomes a list of links with a line about each. A folder's index without a toctree
    lists the folder's pages.
    """
    # Section pages stand at the root, and name pages as they are called in docs/.
    renamed = {name[5:-3]: new[:-3] for name, new in OUTSIDE.items() if name.startswith("docs/") and "/" not in place}

    def list_entries(match: re.Match[str]) -> str:
        lines = [renamed.get(line, line) for line in match[1].splitlines()]
        if ":glob:" in lines:
            lines = [line for line in lines if not line or line[0] == ":" or any(_matching(line, place, staged))]
        toctree = "\n".join(["```{toctree}", *lines, "```"])
        if ":hidden:" in lines:
            return toctree
        pages = [page for line in lines if line and line[0] != ":" for page in _matching(line, place, staged)]
        links = [f"- [{summaries.title_of(staged.pages[page])}]({page}): {staged.about[page]}" for page in pages]
        return "\n".join([*links, "", toctree.replace("{toctree}", "{toctree}\n:hidden:")])

    if place.endswith("/index.md") and "{toctree}" not in text:
        return f"{text}\n```{{toctree}}\n:hidden:\n:glob:\n\n*\n```\n"
    return TOCTREE.sub(list_entries, text)


def _matching(pattern: str, place: str, staged: Staged) -> list[str]:
    """Return the pages that an entry of a page's toctree names."""
    wanted = (Path(place).parent / f"{pattern}.md").as_posix()
    return sorted(page for page in staged.pages if fnmatch(page, wanted))


def relinked(source: Path, place: str, staged: Staged, text: str) -> str:
    """Return the text of a page with its links changed to the site's places; files that it links are copied."""

    def change(match: re.Match[str]) -> str:
        target, hash_sign, anchor = match[1].partition("#")
        if not target or re.match(r"\w+:", target):
            return match[1]
        path = (source.parent / target).resolve()
        if path.is_dir():
            path = path / "README.md"
        name = place_of(path)
        if path.suffix != ".md":
            staged.copy(path, name)
        return os.path.relpath(name, Path(place).parent) + hash_sign + anchor

    def draw(match: re.Match[str]) -> str:
        picture = diagram(match[1])
        staged.copy(picture, place_of(picture))
        link = os.path.relpath(place_of(picture), Path(place).parent)
        alt = "Diagram; the text around it says the same"
        width = re.search(r'<svg[^>]* width="(\d+)"', picture.read_text(encoding="utf-8"))
        wide = " wide" if width and int(width[1]) > WIDE else ""
        return f"````{{container}} diagram{wide}\n```{{image}} {link}\n:alt: {alt}\n```\n````"

    text = MERMAID.sub(draw, COMMENT.sub("", text))
    return outside_code(text, lambda prose: LINK.sub(change, prose))


def diagram(text: str) -> Path:
    """Return the picture of a mermaid diagram, which `node docs/website/diagrams.mjs` draws; GitHub draws its own."""
    return DOCS / "images" / "diagrams" / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.svg"


def links(text: str) -> list[str]:
    """Return the targets of the links of a page."""
    return [target for part, is_prose in _parts(text) if is_prose for target in LINK.findall(part)]


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to the prose of a page, not to code blocks and not to code in lines."""
    return "".join(change(part) if is_prose else part for part, is_prose in _parts(text))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    for part, is_prose in _split(text, FENCED):
        if not is_prose:
            yield part, False
        else:
            # Code may stand in the text of a link, so a link's target is prose again.
            yield from _split(part, CODE)


def _split(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
    end = 0
    for match in pattern.finditer(text):
        yield text[end : match.start()], True
        yield match[0], False
        end = match.end()
    yield text[end:], True
