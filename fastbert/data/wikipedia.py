"""Read the articles of a Wikipedia dump (`pages-articles`, XML, also compressed) as text, as a stream.

Pages outside the main namespace and redirects are skipped. As in the BERT paper, only passages of text are kept: no
headings, lists, tables, templates, references or captions. Wikitext is parsed by mwparserfromhell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from xml.parsers import expat

from fastbert.data.text_lines import Progress, byte_blocks
from fastbert.errors import CorpusError, require_package
from fastbert.io.sources import Source
from fastbert.io.text import whole_characters

_BLOCK_BYTES = 1 << 18
# The largest articles have 2 million characters.
_MAX_PAGE_CHARS = 1 << 26
_ARTICLES = "0"  # the main namespace
_WIKITEXT = ("wikitext", "")
_TEXTLESS_TAGS = frozenset(
    [
        "table",
        "ref",
        "references",
        "gallery",
        "math",
        "chem",
        "ce",
        "score",
        "timeline",
        "imagemap",
        "graph",
        "syntaxhighlight",
        "source",
        "pre",
        "code",
        "section",
        "templatedata",
        "templatestyles",
        "hiero",
        "inputbox",
        "categorytree",
        "mapframe",
        "maplink",
        "script",
        "style",
    ]
)
_LIST_MARKUP = ("*", "#", ":", ";")
_LIST = "\x00"  # begins a line of a list
_REDIRECT = re.compile(r"\s*#\s*redirect", re.IGNORECASE)
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*")
_MAGIC_WORD = re.compile(r"__[A-Z]+__")
_EMPTY_BRACKETS = re.compile(r"\(\s*(?:[;,]\s*)*\)|\[\s*\]")
_SPACES = re.compile(r"\s+")
_SPACE_BEFORE_STOP = re.compile(r" (?=[,.;:!?)](?:\s|$))")


def wikipedia_texts(file: Source, key: str = "", report: Progress | None = None) -> Iterator[str]:
    """Yield the text of each article with any, one paragraph per line; `key` is not used.

    `report` is called with the position in the file on disk. Raises CorpusError for a file that is not an intact dump,
    and without mwparserfromhell.
    """
    message = (
        f"{file}: reading a Wikipedia dump needs the package mwparserfromhell: `pip install 'fastbert-engine[data]'`"
    )
    parse = require_package("mwparserfromhell", message).parse
    dump = _Dump(file)
    for block in byte_blocks(file, _BLOCK_BYTES, report):
        yield from filter(None, (_text(parse(page), dump.namespaces) for page in dump.feed(block)))
    yield from filter(None, (_text(parse(page), dump.namespaces) for page in dump.feed(b"", is_last=True)))


def is_dump(file: Source) -> bool:
    """Return whether an XML file begins like a dump. Raises CorpusError for one that cannot be read."""
    head = b"".join(islice(byte_blocks(file, 4096), 1))
    return b"<mediawiki" in head


class _Dump:
    """Parse a dump, block by block, into the wikitext of articles."""

    def __init__(self, file: Source) -> None:
        self.file = file
        self.namespaces = {"file", "image", "category"}  # in lower case: links into them are not text
        self._pages: list[str] = []
        self._page: dict[str, str] = {}
        self._path: list[str] = []
        self._chars: list[str] | None = None  # of the element being read, if its text matters
        self._size = 0
        self._parser = expat.ParserCreate(namespace_separator="|")
        self._parser.buffer_text = True
        self._parser.buffer_size = 1 << 16
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.StartDoctypeDeclHandler = self._refuse_doctype  # entities could expand without bounds

    def feed(self, block: bytes, is_last: bool = False) -> Iterable[str]:
        """Return the articles that end in the next block."""
        try:
            self._parser.Parse(block, is_last)
        except expat.ExpatError as error:
            line = f"{self.file}, line {error.lineno}"
            raise CorpusError(f"{line}: not an intact XML file ({error}); copy or download it again") from None
        pages, self._pages = self._pages, []
        return pages

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition("|")[2]
        if not self._path and name != "mediawiki":
            raise CorpusError(f"{self.file}: is XML of <{name[:40]}>, not a Wikipedia dump (<mediawiki>); convert it")
        self._path.append(name)
        if name == "page":
            self._page = {}
        elif name == "redirect":
            self._page["redirect"] = "yes"
        elif self._path[1:] in (["page", "ns"], ["page", "revision", "text"], ["page", "revision", "model"]) or (
            self._path[1:] == ["siteinfo", "namespaces", "namespace"] and attributes.get("key") != _ARTICLES
        ):
            self._chars, self._size = [], 0

    def _characters(self, text: str) -> None:
        if self._chars is None:
            return
        self._chars.append(text)
        self._size += len(text)
        if self._size > _MAX_PAGE_CHARS:
            line = self._parser.CurrentLineNumber
            raise CorpusError(
                f"{self.file}, line {line}: a page of more than {_MAX_PAGE_CHARS >> 20} million characters"
            )

    def _end(self, name: str) -> None:
        name = self._path.pop()
        if self._chars is not None:
            text, self._chars = "".join(self._chars), None
            if name == "namespace":
                self.namespaces.add(text.strip().lower())
            else:
                self._page[name] = text  # of the last revision
        if name == "page" and self._is_article():
            self._pages.append(self._page["text"])

    def _is_article(self) -> bool:
        page = self._page
        return (
            page.get("ns", _ARTICLES).strip() == _ARTICLES
            and "redirect" not in page
            and page.get("model", "").strip() in _WIKITEXT
            and bool(page.get("text"))
            and not _REDIRECT.match(page["text"])
        )

    def _refuse_doctype(self, *names: object) -> None:
        raise CorpusError(f"{self.file}: declares a document type, which dumps do not; name an intact dump")


def _text(article: Any, namespaces: set[str]) -> str:
    """Return the passages of an article, one per line."""
    pieces: list[str] = []
    _collect(article, namespaces, pieces)
    lines = []
    for line in "".join(pieces).split("\n"):
        if _LIST in line:
            continue
        line = _SPACES.sub(" ", _EMPTY_BRACKETS.sub("", _MAGIC_WORD.sub("", line)))
        line = _SPACE_BEFORE_STOP.sub("", line).strip()
        if any(map(str.isalpha, line)):
            lines.append(line)
    return "\n".join(lines)


def _collect(code: Any, namespaces: set[str], pieces: list[str]) -> None:
    """Append the text of a parsed wikitext's nodes."""
    for node in code.nodes:
        match type(node).__name__:
            case "Text":
                pieces.append(node.value)
            case "HTMLEntity":
                pieces.append(_character(node))
            case "Heading":
                pieces.append("\n")
            case "Wikilink":
                _collect_link(node, namespaces, pieces)
            case "ExternalLink" if node.title is not None:
                _collect(node.title, namespaces, pieces)
            case "Tag":
                _collect_tag(node, namespaces, pieces)


def _character(entity: Any) -> str:
    try:
        return whole_characters(str(entity.normalize()))
    except (ValueError, OverflowError):  # &#99999999;
        return ""


def _collect_link(link: Any, namespaces: set[str], pieces: list[str]) -> None:
    title = str(link.title).strip()
    prefix, colon, _ = title.partition(":")
    if colon and prefix and (prefix.strip().lower() in namespaces or _LANGUAGE.fullmatch(prefix)):
        return  # a picture, a category, the article in another language
    if link.text is not None:
        _collect(link.text, namespaces, pieces)
    else:
        pieces.append(title.removeprefix(":"))


def _collect_tag(tag: Any, namespaces: set[str], pieces: list[str]) -> None:
    name = str(tag.tag).strip().lower()
    if tag.wiki_markup in _LIST_MARKUP:
        pieces.append(_LIST)
    elif name in ("br", "p", "div", "blockquote", "hr"):
        pieces.append("\n")
    if name not in _TEXTLESS_TAGS and tag.contents is not None and not tag.self_closing:
        _collect(tag.contents, namespaces, pieces)
