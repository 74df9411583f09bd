"""Parse a command's flags with tyro: names, types, defaults and docstrings come from its frozen dataclass.

tyro prints a box of many lines for wrong flags; here it becomes one line, like every other error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro

from fastbert.cli.flag_table import Flag, flags_of
from fastbert.cli.suggestions import Configs, unknown_flags
from fastbert.errors import UserError
from fastbert.flags import flag as flag_name

MARKERS = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
# Values that stand for None while tyro parses, so that it offers no None among the choices.
_EMPTY: dict[Any, Any] = {int: 0, float: 0.0, str: "", Path: Path()}


def parse(config: type[Any], command: str, words: Sequence[str], configs: Configs = dict) -> Any:
    """Parse a command's flags into its dataclass. Raises `UserError` for wrong ones.

    `configs` returns the dataclasses of all commands: the error for an unknown flag names the command that has it.
    """
    listed = flags_of(config)
    words = _with_listed_names(words, listed)
    named = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    unknown = unknown_flags([word for word in words if word.startswith("--")], listed, command, configs)
    if unknown:
        raise UserError(unknown)
    words = _join_repeated(_with_bare_values(words, listed), listed)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            read: Any = tyro.cli(as_parsed(config), prog=f"fastbert {command}", args=words, config=MARKERS)
    except SystemExit:
        raise UserError(_one_line(printed.getvalue(), listed, command)) from None
    _refuse_empty_paths(listed, words)
    for flag in listed:
        if flag.name in named and getattr(read, flag.field) == ():  # of a flag that takes several, such as --eval
            raise UserError(f"{flag.name}: a value is missing; `fastbert {command} --help` shows the flags")
    values = {
        flag.field: getattr(read, flag.field) if flag.positional or flag.name in named else flag.default
        for flag in listed
    }
    return config(**values)


def _with_listed_names(words: Sequence[str], listed: Sequence[Flag]) -> list[str]:
    """Return the words with the listed name of a flag for its alias, and with one word per value."""
    names = {flag_name(flag.alias): flag.name for flag in listed if flag.alias is not None}
    separators = {flag.name: flag.separator for flag in listed if flag.separator is not None}
    result: list[str] = []
    separator: str | None = None
    for word in words:
        if not word.startswith("--"):
            result += word.split(separator) if separator is not None and separator in word else [word]
            continue
        name, equals, value = word.partition("=")
        name = names.get(name.replace("_", "-"), name)
        separator = separators.get(name.replace("_", "-"))
        if separator is not None and separator in value:
            result += [name, *value.split(separator)]
        else:
            result.append(name + equals + value)
    return result


def _with_bare_values(words: Sequence[str], listed: Sequence[Flag]) -> list[str]:
    """Return the words with a value behind each flag that may stand without one and does."""
    bare = {flag.name: flag.bare for flag in listed if flag.bare is not None}
    result: list[str] = []
    for word, following in zip(words, [*words[1:], "--"]):
        result.append(word)
        value = bare.get(word.replace("_", "-"))
        if value is not None and following.startswith("--"):
            result.append(value)
    return result


def _join_repeated(words: Sequence[str], listed: Sequence[Flag]) -> list[str]:
    """Return the words with all values of a flag that takes several behind its first occurrence: tyro parses only those
    of the last one."""
    several = {flag.name for flag in listed if get_origin(flag.hint) is tuple and Ellipsis in get_args(flag.hint)}
    groups: list[list[str]] = [[]]
    first: dict[str, list[str]] = {}
    current = groups[0]
    for word in words:
        name, equals, value = word.partition("=")
        key = name.replace("_", "-")
        if not word.startswith("--"):
            current.append(word)
            continue
        if key in first:
            current = first[key]
        else:
            current = [name] if key in several else [word]
            groups.append(current)
        if key in several:
            first[key] = current
            current += [value] if equals else []
    return [word for group in groups for word in group]


def as_parsed(config: type[Any], switches: Sequence[str] = ()) -> type[Any]:
    """Return a dataclass of the same flags, and of `switches`, for tyro, which checks no values and offers no None."""
    fields: list[Any] = []
    for flag in flags_of(config):
        default, notes = flag.default, [tyro.conf.arg(help=flag.text, help_behavior_hint="")]
        hint = flag.hint
        if default is None:
            default = get_args(hint)[0] if get_origin(hint) is Literal else _EMPTY.get(hint)
            hint = hint | None if default is None else hint
        if flag.positional:
            notes = [tyro.conf.Positional, *notes]
        fields.append((flag.field, Annotated[(hint, *notes)], dataclasses.field(default=default)))
    fields += [(name, bool, dataclasses.field(default=False)) for name in switches]
    return dataclasses.make_dataclass(config.__name__, fields, frozen=True, kw_only=True)


def _refuse_empty_paths(listed: Sequence[Flag], words: Sequence[str]) -> None:
    """Raise `UserError` for a flag whose path is empty, which would stand for the current folder."""
    by_name = {flag.name: flag for flag in listed}
    current: Flag | None = None
    for word in words:
        value = word
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            current = by_name.get(name.replace("_", "-"))
            if not equals:
                continue
        if not value and current is not None and current.takes_paths:
            raise UserError(f"{current.name} '': is empty; name a file or a folder (. is the current one)")
        if current is not None and get_origin(current.hint) is not tuple:
            current = None  # what follows the flag's one value is an argument without a flag


def _one_line(box: str, listed: Sequence[Flag], command: str) -> str:
    """Return the message in tyro's error box as one line."""
    # On a terminal the box has colours; without UTF-8 it has no border, and its title is a section of its own.
    rows = [row.strip("│ ") for row in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()]
    sections = re.split(r"^[─-]{10,}$|^╭.*╮$", "\n".join(rows), flags=re.MULTILINE)[1:] or [box]
    message = " ".join(sections[0].split())
    unknown = re.match(r"Unrecognized options: ?(.*)", message)
    wrong = re.match(r"Error parsing (\S+): .*?(\[.*?\]|'.*?')", message)
    choice = re.match(r"invalid choice '(.*)' for argument '(\S+)'", message)
    missing = re.match(r"Missing value for argument '(\S+)'", message)
    if unknown:
        words = unknown[1].split(", ")
        named = [word for word in words if word.startswith("-")]
        message = f"unknown flag {', '.join(named)}" if named else f"unexpected argument {', '.join(map(repr, words))}"
    elif choice:
        flag = next(flag for flag in listed if choice[2] in (flag.name, flag.field.upper(), flag.field))
        choices = ", ".join(_choices(flag.hint))
        name = f"{flag.name} " if not flag.positional else ""  # an argument has no name that a user types
        message = f"{name}{choice[1] or repr('')}: choose one of {choices}"
    elif missing:
        message = f"{missing[1]}: a value is missing"
    elif wrong:
        flag = next(flag for flag in listed if wrong[1] in (flag.name, flag.field.upper(), flag.field))
        message = f"{flag.name} {wrong[2].strip('[]')}: must be {_kind(flag.hint)}"
    return f"{message.removeprefix('Error parsing ').rstrip('.')}; `fastbert {command} --help` shows the flags"


def _choices(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return list(map(str, get_args(hint)))
    return [choice for part in get_args(hint) if part is not Ellipsis for choice in _choices(part)]


def _kind(hint: Any) -> str:
    """Return the values that a type stands for, in words."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_kind, get_args(hint)))
    if get_origin(hint) is tuple:
        return {int: "whole numbers", float: "numbers"}.get(get_args(hint)[0], "values of its kind")
    if get_origin(hint) is Literal:
        return " or ".join(_choices(hint))
    return {int: "a whole number", float: "a number"}.get(hint, "a value of its kind")
