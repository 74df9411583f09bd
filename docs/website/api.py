"""Write the reference of the Python interface: a page per package, with a tested example of every name."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from website.docstrings import field_docs, has_example, markdown, summary
from website.examples import Block, examples_of, objects_in
from website.signatures import annotation, default, signature
from website.slugs import slug
from website.staging import sources

# Packages whose `__all__` is the public interface, in the order of the reference. Names that pages import from other
# modules are listed below these, by package.
PACKAGES = ("fastbert", "fastbert.ops", "fastbert.losses", "fastbert.tokenizers", "fastbert.models")
# What the names above raise, take or return, though nobody imports it.
ALSO = (
    "fastbert.errors.UserError",
    "fastbert.errors.CheckpointError",
    "fastbert.retrieval.ragged.SparseVectors",
    "fastbert.retrieval.ragged.TokenVectors",
)


@dataclass(frozen=True)
class Name:
    """A public name: where it is imported from, and its object."""

    package: str
    qualified: str
    value: Any

    @property
    def short(self) -> str:
        return self.qualified.rpartition(".")[2]

    @property
    def is_class(self) -> bool:
        return inspect.isclass(self.value)

    @property
    def canonical(self) -> str:
        """Return the name by the module that defines the object."""
        return f"{self.value.__module__}.{self.value.__qualname__}"


@dataclass
class Reference:
    """All public names, and the examples of each."""

    pages: dict[Path, str] = field(default_factory=sources)
    """The pages that hold examples, with their place on the site."""
    _documented: dict[int, str] = field(default_factory=dict)
    """The methods that a class before has documented, by their function."""

    @cached_property
    def examples(self) -> dict[int, list[Block]]:
        return examples_of([page for page, place in sorted(self.pages.items()) if place != "index.md"])

    @cached_property
    def names(self) -> list[Name]:
        """The public names, each object once."""
        names: dict[int, Name] = {}
        for package in PACKAGES:
            home = import_module(package)
            for name in home.__all__:
                value = getattr(home, name)
                if inspect.isclass(value) or inspect.isroutine(value):
                    names.setdefault(id(value), Name(package, f"{package}.{name}", value))
        others = [*objects_in(sorted(self.pages)), *(_load(name) for name in ALSO)]
        for value in others:
            if (inspect.isclass(value) or inspect.isfunction(value)) and "." not in value.__qualname__:
                qualified = f"{value.__module__}.{value.__qualname__}"
                package = ".".join(qualified.split(".")[:2])
                if value.__module__.startswith("fastbert.") and _is_home(qualified, value):
                    names.setdefault(id(value), Name(package, qualified, value))
        return list(names.values())

    @cached_property
    def packages(self) -> dict[str, list[Name]]:
        """The public names by package."""
        packages: dict[str, list[Name]] = {package: [] for package in PACKAGES}
        for name in self.names:
            packages.setdefault(name.package, []).append(name)
        others = sorted(set(packages) - set(PACKAGES))
        return {package: packages[package] for package in (*PACKAGES, *others)}

    @cached_property
    def _homonyms(self) -> set[str]:
        """The names that several public classes have."""
        shorts = [name.short for name in self.names if name.is_class]
        return {short for short in shorts if shorts.count(short) > 1}

    def _local(self, name: Name) -> dict[str, str]:
        """Return what the ambiguous names of annotations mean in the module of an object."""
        home = name.value.__module__
        names = {other.short: other.qualified for other in self.names if other.value.__module__ == home}
        return {short: qualified for short, qualified in names.items() if short in self._homonyms}

    def without_example(self) -> list[str]:
        """Return the names of which neither a page nor the docstring has an example."""
        shown = [name for name in self.names if id(name.value) in self.examples or has_example(name.value)]
        return [name.qualified for name in self.names if name not in shown]

    def write(self) -> dict[str, str]:
        """Return the pages of the reference by their path."""
        pages = {f"api/{package}.md": self._page(package, names) for package, names in self.packages.items()}
        return {"api/index.md": self._index(), **pages}

    def _index(self) -> str:
        lines = [
            "# Python",
            "",
            "Every public name by package, each with an example that the tests run.",
            "",
        ]
        for package, names in self.packages.items():
            lines += [f"## [`{package}`]({package}.md)", "", f"{summary(import_module(package))}", ""]
            for _, group in _groups(names):
                lines += [f"- {{py:obj}}`{name.short} <{name.qualified}>`: {summary(name.value)}" for name in group]
            lines += [""]
        return "\n".join([*lines, "```{toctree}", ":hidden:", "", *self.packages, "```", ""])

    def _page(self, package: str, names: Sequence[Name]) -> str:
        lines = [f"# {package}", "", markdown(import_module(package).__doc__), ""]
        for title, group in _groups(names):
            nested = len(names) > 4
            if nested:
                lines += [f"## {title}", ""]
            for name in group:
                lines += [f"{'###' if nested else '##'} {name.short}", "", *self._entry(name), ""]
        return "\n".join(lines)

    def _entry(self, name: Name) -> Iterator[str]:
        kind = "class" if name.is_class else "function"
        yield f"``````{{py:{kind}}} {name.qualified}{signature(name.value, local=self._local(name))}"
        if name.canonical != name.qualified and not name.canonical.startswith("fastbert.<"):
            yield f":canonical: {name.canonical}"
        yield from ("", markdown(name.value.__doc__), "")
        if not has_example(name.value):
            yield from self._example(name)
        if name.is_class:
            yield from self._members(name)
        yield "``````"

    def _example(self, name: Name) -> Iterator[str]:
        for block in self.examples.get(id(name.value), [])[:1]:
            place = os.path.relpath(self.pages[block.page], "api")
            anchor = f"#{slug(block.heading)}" if block.heading and block.level > 1 else ""
            yield from (f"**Example**, from [{block.heading or 'the overview'}]({place}{anchor}):", "")
            yield from ("```python", block.text, "```", "")

    def _members(self, name: Name) -> Iterator[str]:
        docs = field_docs(name.value)
        if docs:
            for item in _fields(name.value):
                yield f"`````{{py:attribute}} {name.qualified}.{item.name}"
                yield f":type: {annotation(item.type)}"
                if item.default is not dataclasses.MISSING:
                    yield f":value: {default(item.default)}"
                yield from ("", markdown(docs.get(item.name, "")), "`````", "")
        inherited = []
        for key, member in _methods(name.value):
            function = getattr(member, "fget", None) or getattr(member, "func", None)
            function = function or getattr(member, "__func__", member)
            if id(function) in self._documented:
                inherited.append(f"{{py:obj}}`{key} <{self._documented[id(function)]}>`")
                continue
            qualified = f"{name.qualified}.{key}"
            self._documented[id(function)] = qualified
            yield from _member(qualified, key, member, function, getattr(name.value, key), self._local(name))
        if inherited:
            yield from (f"Also has {', '.join(inherited)}.", "")


def _member(qualified: str, key: str, member: Any, function: Any, value: Any, local: dict[str, str]) -> Iterator[str]:
    """Yield the entry of a method or property of a class."""
    if function is not member and not isinstance(member, classmethod | staticmethod):
        hint = inspect.get_annotations(function).get("return")
        yield f"`````{{py:property}} {qualified}"
        if hint is not None:
            yield f":type: {annotation(hint)}"
    else:
        parameters = signature(function, method=not isinstance(member, staticmethod), local=local)
        yield f"`````{{py:method}} {qualified}{parameters}"
        if isinstance(member, classmethod):
            yield ":classmethod:"
        elif isinstance(member, staticmethod):
            yield ":staticmethod:"
    yield from ("", markdown(inspect.getdoc(value)), "`````", "")


def _groups(names: Sequence[Name]) -> Iterator[tuple[str, list[Name]]]:
    """Yield the names of a package by kind, in alphabetical order; models after their encoder."""
    from torch import nn

    models = [name for name in names if name.is_class and issubclass(name.value, nn.Module)]
    classes = [name for name in names if name.is_class and name not in models]
    functions = [name for name in names if not name.is_class]
    models.sort(key=lambda name: ("For" in name.short, name.short.lower()))
    for group in (classes, functions):
        group.sort(key=lambda name: name.short.lower())
    for title, group in (("Functions", functions), ("Classes", classes), ("Models", models)):
        if group:
            yield title, group


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, those of bases of this package included."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if str(base.__module__).partition(".")[0] == "fastbert":
            found |= vars(base)
    for key, member in found.items():
        is_method = inspect.isfunction(member) and member.__name__ in (key, "__call__")
        is_property = isinstance(member, property) or type(member).__name__ == "cached_property"
        documented = inspect.getdoc(getattr(kind, key, None))
        is_member = is_method or is_property or isinstance(member, classmethod | staticmethod)
        if is_member and documented and (key == "__call__" or not key.startswith("_")):
            yield key, member


def _fields(kind: type) -> Iterator[Any]:
    """Yield the public fields of a dataclass or NamedTuple."""
    if dataclasses.is_dataclass(kind):
        yield from (item for item in dataclasses.fields(kind) if not item.name.startswith("_"))
    elif hasattr(kind, "_fields"):
        for key in kind._fields:
            hint = inspect.get_annotations(kind).get(key, "Any")
            item = dataclasses.field(default=kind._field_defaults.get(key, dataclasses.MISSING))  # type: ignore[attr-defined]
            item.name, item.type = key, hint
            yield item


def _load(qualified: str) -> Any:
    module, _, name = qualified.rpartition(".")
    return getattr(import_module(module), name)


def _is_home(qualified: str, value: Any) -> bool:
    try:
        return _load(qualified) is value
    except (ImportError, AttributeError):
        return False
