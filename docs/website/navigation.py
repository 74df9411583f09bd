"""The tree of pages in Furo's sidebar, laid out once per build instead of once per page.

Furo lets Sphinx resolve all toctrees and parses the result for every page, although the trees of two pages differ in
the marks of the current page and in relative addresses alone. The tree here is Furo's of the landing page with those
two changed; a page of each kind is compared with Furo's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from furo.navigation import get_navigation_tree
from sphinx.application import Sphinx
from sphinx.errors import ThemeError
from sphinx.util.osutil import relative_uri

ITEM = re.compile(r'<li class="toctree-l(\d+)( has-children)?"><a class="reference internal" href="([^"]*)">')
OPTIONS = {"collapse": False, "titles_only": True, "maxdepth": -1, "includehidden": True}


class Navigation:
    """Furo's tree of pages, by page."""

    def __init__(self, tree: str) -> None:
        self._head, *pieces = ITEM.split(tree)
        self._levels = [int(level) for level in pieces[::4]]
        self._marks: Sequence[str] = [mark or "" for mark in pieces[1::4]]
        self._addresses: Sequence[str] = pieces[2::4]
        self._rests: Sequence[str] = pieces[3::4]
        self._positions = {address: position for position, address in enumerate(self._addresses)}

    def of(self, address: str) -> str:
        """Return the tree of the page at an address, which need not be in the tree."""
        current = self._positions.get(address, -1)
        chain = self._ancestors(current)
        parts = [self._head.replace("<ul>", '<ul class="current">') if chain else self._head]
        for position, (level, mark, target, rest) in enumerate(
            zip(self._levels, self._marks, self._addresses, self._rests, strict=True)
        ):
            name = f"toctree-l{level}"
            if position in chain:
                name += " current"
                rest = rest.replace(' class="toctree-checkbox"', ' checked="" class="toctree-checkbox"', 1)
            if position in chain and position != current:
                rest = rest.replace("<ul>", '<ul class="current">', 1)
            if position == current:
                link = f'<li class="{name}{mark} current-page"><a class="current reference internal" href="#">'
            else:
                link = f'<li class="{name}{mark}"><a class="reference internal" href="{relative_uri(address, target)}">'
            parts += [link, rest]
        return "".join(parts)

    def kind(self, address: str) -> tuple[str, int, str]:
        """Return what the marks of a page depend on: its folder, its level, and whether it has children."""
        position = self._positions.get(address, -1)
        folder = address.rpartition("/")[0]
        return (folder, self._levels[position], self._marks[position]) if position >= 0 else (folder, 0, "")

    def _ancestors(self, position: int) -> set[int]:
        """Return an item and those that it is nested in."""
        chain: set[int] = set()
        level = self._levels[position] if position >= 0 else 0
        for index in range(position, -1, -1):
            if self._levels[index] == level:
                chain.add(index)
                level -= 1
        return chain


def connect(app: Sphinx) -> None:
    """Give Furo the trees of this module."""
    navigations: list[Navigation] = []
    compared: set[tuple[str, int, str]] = set()

    def withhold(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        builder: Any = app.builder
        if not navigations:
            toctree = builder._get_local_toctree(app.config.root_doc, **OPTIONS)
            navigations.append(Navigation(get_navigation_tree(toctree)))
        if navigations[0].kind(builder.get_target_uri(pagename)) in compared:
            context["every_toctree"] = context["toctree"]
            context["toctree"] = lambda **options: ""

    def insert(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        address = app.builder.get_target_uri(pagename)
        tree = navigations[0].of(address)
        if "every_toctree" in context:
            context["toctree"] = context.pop("every_toctree")
        elif context["furo_navigation_tree"] != tree:
            raise ThemeError(
                f"{pagename}: the tree of pages differs from Furo's; docs/website/navigation.py is outdated"
            )
        compared.add(navigations[0].kind(address))
        context["furo_navigation_tree"] = tree

    # Furo's handler has the priority 500.
    app.connect("html-page-context", withhold, priority=400)
    app.connect("html-page-context", insert, priority=600)
