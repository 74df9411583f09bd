"""List the flags of a command: the fields of its dataclass with their groups, types, defaults and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from fastbert import flags
from fastbert.io.locations import LocationText
from fastbert.tasks.registry import OneOf

NUMBERS: dict[type, str] = {int: "N", float: "X"}


@dataclass(frozen=True)
class Flag:
    """A flag, or an argument without one: its field, and how the help shows it."""

    field: str
    hint: Any
    """Its type, with the names of registries as literals, and without None."""
    default: Any
    text: str
    group: str
    rare: bool
    required: flags.Required | None
    positional: bool
    bare: str | None = None
    """Its value where none follows it; None if one must."""
    alias: str | None = None
    """Its second name, which no help lists."""
    separator: str | None = None
    """The character that separates its values in one word."""

    @property
    def name(self) -> str:
        """Return the name that a user types, or that stands for the argument."""
        return self.field.upper() if self.positional else flags.flag(self.field)

    @property
    def metavar(self) -> str:
        """Return the placeholder of the value: PATH, N, {a,b}, COLUMN ...; empty for a switch."""
        return "" if self.hint is bool else _metavar(self.hint, self.field.rpartition("_")[2].upper())

    @property
    def short_metavar(self) -> str:
        """Return the placeholder for a usage line, without choices."""
        return self.field.upper() if self.metavar.startswith("{") else self.metavar

    @property
    def takes_paths(self) -> bool:
        """Return whether values are paths."""
        return any(kind is self.hint or kind in get_args(self.hint) for kind in (Path, LocationText))


def flags_of(config: type[Any]) -> list[Flag]:
    """Return the flags of a command's dataclass, by group in the order of the help, required ones first."""
    hints = get_type_hints(config, include_extras=True)
    listed = []
    for item in dataclasses.fields(config):
        if not item.init:
            continue
        home = next(each for each in config.__mro__ if item.name in inspect.get_annotations(each))
        hint, notes = _without_notes(hints[item.name])
        listed.append(
            Flag(
                field=item.name,
                hint=_of_values(hint, notes),
                default=item.default if item.default_factory is dataclasses.MISSING else item.default_factory(),
                text=_documented(home.__module__).get(home.__name__, {}).get(item.name, ""),
                group=home.__dict__.get("GROUP", flags.OTHER),
                rare=flags.is_rare(item.metadata),
                required=flags.requirement(item.metadata),
                positional=tyro.conf.Positional in notes,
                bare=flags.bare_value(item.metadata),
                alias=flags.alias_of(item.metadata),
                separator=flags.separator_of(item.metadata),
            )
        )
    titles = list(dict.fromkeys(flag.group for flag in listed))
    return sorted(
        listed,
        key=lambda flag: (
            flags.rank(flag.group),
            titles.index(flag.group),
            not flag.positional,
            flag.required is None or flag.required.when is not None,
        ),
    )


def _without_notes(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type and what `Annotated` adds to it."""
    return (get_args(hint)[0], hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


def _of_values(hint: Any, notes: tuple[Any, ...] = ()) -> Any:
    """Return the type of a flag's values: without None, and with the names of a registry as literals."""
    registry = next((note.registry for note in notes if isinstance(note, OneOf)), None)
    if registry is not None:
        return Literal[tuple(registry)]
    if get_origin(hint) is UnionType or get_origin(hint) is Union:
        parts = [_of_values(*_without_notes(part)) for part in get_args(hint) if part is not type(None)]
        return Union[tuple(parts)]  # noqa: UP007 (of a tuple)
    return hint


def _metavar(hint: Any, name: str) -> str:
    inner = [part for part in get_args(hint) if part is not Ellipsis]
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, inner)) + "}"
    if get_origin(hint) is tuple:
        return f"{_metavar(inner[0], name)} ..."
    if inner:
        return "|".join(_metavar(part, name).strip("{}") for part in inner)
    return {Path: "PATH", LocationText: "PATH"}.get(hint) or NUMBERS.get(hint, name)


@cache
def _documented(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of each class of a module, on one line each."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):  # a module without a file
        return {}
    texts: dict[str, dict[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for field, text in zip(node.body, node.body[1:]):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                ):
                    texts.setdefault(node.name, {})[field.target.id] = " ".join(str(text.value.value).split())
    return texts
