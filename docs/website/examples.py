"""Find examples of public names in the pages: their ```python blocks, which the tests run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^(`{3,}|~{3,})(\w*)")
HEADING = re.compile(r"^(#{1,6}) +(.+?) *#* *$")


@dataclass(frozen=True)
class Block:
    """A code block of a page: the heading above it with its level, its language and text, and its first line."""

    page: Path
    heading: str
    level: int
    language: str
    text: str
    line: int

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the fenced code blocks of a page in order, those of lists included."""
    heading, level, fence, language, lines, start, indent = "", 0, "", "", [], 0, 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        stripped = line.strip()
        if fence:
            if stripped.startswith(fence) and not stripped.strip(fence[0]):
                text = "\n".join(each[indent:] if not each[:indent].strip() else each for each in lines)
                yield Block(page, heading, level, language, text, start)
                fence = ""
            else:
                lines.append(line)
        elif match := FENCE.match(stripped):
            fence, language, lines, start, indent = match[1], match[2], [], number, len(line) - len(line.lstrip())
        elif match := HEADING.match(line):
            level, heading = len(match[1]), match[2]


def examples_of(pages: list[Path], package: str = "fastbert") -> dict[int, list[Block]]:
    """Return, by `id` of each object of the package, the ```python blocks that use it, the shortest first."""
    used: dict[int, list[Block]] = {}
    for block, values in _uses(pages, package):
        for value in values:
            used.setdefault(id(value), []).append(block)
    return {key: sorted(blocks, key=lambda block: block.text.count("\n")) for key, blocks in used.items()}


def objects_in(pages: list[Path], package: str = "fastbert") -> list[Any]:
    """Return the objects of the package that the ```python blocks of pages use."""
    return [value for _, values in _uses(pages, package) for value in values]


def _uses(pages: list[Path], package: str) -> Iterator[tuple[Block, list[Any]]]:
    """Yield the ```python blocks of pages with the objects that each uses."""
    for page in pages:
        aliases: dict[str, str] = {}
        for block in blocks_of(page):
            if block.language == "python":
                aliases.update(imports(block.tree, package))
                yield block, list({id(value): value for value in objects(block.tree, aliases)}.values())


def imports(tree: ast.Module, package: str) -> dict[str, str]:
    """Return what the imports of a block name: the local name, and the qualified name of the package's object."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == package:
                    names[alias.asname or package] = alias.name if alias.asname else package
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == package:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def objects(tree: ast.Module, aliases: dict[str, str]) -> Iterator[Any]:
    """Yield the objects that the expressions of a block name, imports apart."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            if first in aliases and all(name.isidentifier() for name in rest):
                value = resolve(".".join([aliases[first], *rest]))
                if value is not None:
                    yield value


def resolve(name: str) -> Any:
    """Return the object of a qualified name; None if there is none. A function precedes a module of its name."""
    first, *rest = name.split(".")
    value: Any = import_module(first)
    for count, part in enumerate(rest, start=1):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = import_module(".".join([first, *rest[:count]]))
            except ModuleNotFoundError:
                return None
    return value
