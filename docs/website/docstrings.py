"""Turn docstrings, which are Markdown with sections as "Args:" and "Returns:", into the Markdown of a page."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

from website.staging import ROOT, place_of

SECTIONS = {
    "Args": "Arguments",
    "Arguments": "Arguments",
    "Attributes": "Attributes",
    "Fields": "Fields",
    "Returns": "Returns",
    "Yields": "Yields",
    "Raises": "Raises",
    "Example": "Example",
    "Examples": "Examples",
    "Note": "Note",
}
EXAMPLES = ("Example", "Examples")  # whose text is code
SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):[ ]*$")
PAGE = re.compile(r"(?<![\w/`])docs/[\w/-]+\.md(?!`)")  # as code names the pages
ENTRY = re.compile(r"^([*\w][\w*, .]*?)(?: \(([^)]*)\))?: (.*)$")


def markdown(text: str | None) -> str:
    """Return a docstring as Markdown of a page in a folder of the site."""
    lines = inspect.cleandoc(text or "").splitlines()
    text = "\n".join(_sections(lines)).strip()
    return PAGE.sub(lambda match: f"[{match[0]}](../{place_of(ROOT / match[0])})", text)


def _sections(lines: list[str]) -> Iterator[str]:
    position, fenced = 0, False
    while position < len(lines):
        line = lines[position]
        match = None if fenced else SECTION.match(line)
        if match is None:
            fenced ^= line.lstrip().startswith("```")
            yield line if fenced or line.lstrip().startswith("```") else escaped(line)
            position += 1
            continue
        end = position + 1
        while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
            end += 1
        body = textwrap.dedent("\n".join(lines[position + 1 : end])).strip("\n").splitlines()
        if match[1] in EXAMPLES:
            yield from ("", "**Example**:", "", "```python", *body, "```", "")
        else:
            yield from ("", f"**{SECTIONS[match[1]]}**", "", *_entries(body), "")
        position = end


def _entries(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a section, entries as "name: text" as a list."""
    for line in lines:
        match = ENTRY.match(line)
        if match and not line.startswith(" "):
            yield f"- `{match[1]}`{f' ({match[2]})' if match[2] else ''}: {escaped(match[3])}"
        else:
            yield escaped(line)


def escaped(line: str) -> str:
    """Return a line in which Markdown sees no heading, no emphasis and no HTML outside code."""
    parts = re.split(r"(`+[^`]*`+)", line)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(
            r"(?<!\*)\*(?!\*)|(?<=\w)_|_(?=\w)|<(?=[a-zA-Z/!])|\[(?=[^\]]*\]\()", r"\\\g<0>", parts[index]
        )
    text = "".join(parts)
    return re.sub(r"^(#+|>)", r"\\\1", text)


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstrings of a class's fields, its bases' included."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        definition = (
            _classes(base.__module__).get(base.__qualname__) if base.__module__.startswith("fastbert") else None
        )
        docs |= {
            ast.unparse(field.target): doc.value.value
            for field, doc in pairwise(definition.body if definition else ())
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
        }
    return docs


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes that the source of a module defines at its top level, by name."""
    try:
        body = ast.parse(inspect.getsource(import_module(module))).body
    except (OSError, TypeError):  # written in C
        return {}
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def has_example(value: Any) -> bool:
    """Return whether the docstring of an object has an example."""
    return any(line.rstrip(":") in EXAMPLES for line in (inspect.getdoc(value) or "").splitlines() if line[-1:] == ":")


def summary(value: Any) -> str:
    """Return the first sentence of an object's docstring as Markdown on one line."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", text)[0]
    return escaped(sentence)
