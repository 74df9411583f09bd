"""A Sphinx extension: code that names a command or a public name of Python links its entry in the reference, and
signatures and tables are such that screen readers read them."""

from __future__ import annotations

import re
from functools import cache
from itertools import count
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

from website import navigation

COMMAND = re.compile(r"fastbert ([a-z][\w-]*)(?: [\w-]+)?")
# A signature over several lines is a <dl> without terms, which screen readers announce as a broken list.
PARAMETERS = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>')
EMPTY_HEAD = re.compile(r"<th [^>]*>\s*(?:<p></p>)?\s*</th>")
SIDE_BY_SIDE = re.compile(r'<table class="side-by-side">.*?</table>', re.DOTALL)
PYTHON = re.compile(r"(fastbert(?:\.\w+)+|[A-Z]\w+(?:\.\w+)?|\w+)(?:\(\.*\))?")


def link_names(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Wrap the code of a page in links, except in titles, signatures and links."""
    objects = app.env.domains["py"].objects  # type: ignore[attr-defined]
    commands = {name.partition("/")[2] for name in app.env.found_docs if name.startswith("commands/")}
    own = _own_name(docname, objects)
    for node in list(doctree.findall(nodes.literal)):
        if _is_inside(node, (nodes.reference, nodes.title, addnodes.pending_xref, addnodes.desc_signature)):
            continue
        target = _target(node.astext(), docname, commands, objects, own)
        if target is not None and target != (docname, ""):
            node.replace_self(_reference(app, docname, node, *target))


def mend_html(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Make the parameters of signatures lines of text instead of lists, and empty heads of columns plain cells; label
    the cells of tables with two pieces of code."""

    def change(match: re.Match[str]) -> str:
        lines = match[1].replace("<dd>", '<span class="sig-parameter">').replace("</dd>", "</span>")
        return f'<span class="sig-parameters">{lines}</span>'

    if "body" in context:
        body = EMPTY_HEAD.sub("<td></td>", PARAMETERS.sub(change, context["body"]))
        context["body"] = SIDE_BY_SIDE.sub(_labelled, body)


def _labelled(table: re.Match[str]) -> str:
    """Return a table whose cells name their column, for phones, where they stand one above the other."""
    heads = re.findall("<th>(.*?)</th>", table[0])
    cells = count()
    return re.sub("<td", lambda _: f'<td data-label="{heads[next(cells) % len(heads)]}"', table[0])


class English(SearchEnglish):
    """English for the search, each word stemmed once instead of once per page."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.stem = cache(super().stem)  # type: ignore[method-assign]


def connect_navigation(app: Sphinx) -> None:
    """Lay out the sidebar's tree once, where pages are written as HTML."""
    if app.builder.format == "html" and app.builder.name == "html":
        navigation.connect(app)


def _own_name(docname: str, objects: Any) -> str:
    """Return the package that a page of the reference documents; its names are linked without it."""
    return docname.partition("/")[2] if docname.startswith("api/") else ""


def _target(text: str, docname: str, commands: set[str], objects: Any, own: str) -> tuple[str, str] | None:
    match = COMMAND.fullmatch(text)
    if match and match[1] in commands:
        return f"commands/{match[1]}", ""
    match = PYTHON.fullmatch(text)
    if match is None:
        return None
    names = [match[1]]
    if own and len(match[1]) > 3:
        names += [f"{own}.{match[1]}", f"fastbert.{match[1]}"]
    elif match[1][0].isupper():
        names += [f"fastbert.{match[1]}"]
    for name in names:
        if name.startswith("fastbert.") and name in objects:
            entry = objects[name]
            return entry.docname, entry.node_id
    return None


def _reference(app: Sphinx, docname: str, node: nodes.literal, target: str, anchor: str) -> nodes.reference:
    uri = app.builder.get_relative_uri(docname, target) + (f"#{anchor}" if anchor else "")
    if target == docname:
        uri = f"#{anchor}"
    return nodes.reference("", "", node.deepcopy(), internal=True, refuri=uri)


def _is_inside(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, kinds):
            return True
        parent = parent.parent
    return False


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_search_language(English)
    app.connect("doctree-resolved", link_names)
    app.connect("html-page-context", mend_html)
    app.connect("builder-inited", connect_navigation)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
