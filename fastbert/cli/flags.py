"""Parse a command's flags with tyro: names, types, defaults and docstrings come from its frozen dataclass.

tyro prints a box of many lines for wrong flags; here it becomes one line, like every other error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from fastbert.errors import UserError
from fastbert.tasks.registry import OneOf

# Flags of every command. They are parsed before the command is known (see fastbert.cli.main), and listed in its help.
COMMON = {
    "quiet": "Print results and errors only.",
    "debug": "Show the traceback of an error.",
}


def parse(config: type[Any], command: str, flags: Sequence[str]) -> Any:
    """Parse a command's flags into its dataclass. Raises `UserError` for wrong ones; --help raises SystemExit(0)."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            read: Any = tyro.cli(
                _as_shown(config),
                prog=f"fastbert {command}",
                description=" ".join((config.__doc__ or "").split()),
                args=flags,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as stopped:
        if not stopped.code:
            raise
        raise UserError(_one_line(printed.getvalue(), config, command)) from None
    _refuse_empty_paths(config, flags)
    return config(**{field.name: getattr(read, field.name) for field in dataclasses.fields(config) if field.init})


def _as_shown(config: type) -> type:
    """Return a variant of `config` for the help, which shows nothing for `None`, empty and off, and checks no
    values."""
    hints = {name: _choices(hint) for name, hint in get_type_hints(config, include_extras=True).items()}
    shown: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(config):
        if field.default is False:
            shown.append((field.name, Annotated[bool, tyro.conf.arg(help_behavior_hint="")], field.default))
        elif field.default is None or field.default == ():
            hint = hints[field.name]
            look = tyro.conf.arg(metavar=_metavar(hint), help_behavior_hint="")
            shown.append((field.name, Annotated[hint, look], field.default))
    for name, meaning in COMMON.items():
        shown.append((name, Annotated[bool, tyro.conf.arg(help=meaning, help_behavior_hint="")], False))
    return dataclasses.make_dataclass(
        config.__name__,
        [(name, hint, dataclasses.field(default=default)) for name, hint, default in shown],
        bases=(config,),
        namespace={"__post_init__": lambda self: None},
        frozen=True,
        kw_only=True,
    )


def _choices(hint: Any) -> Any:
    """Return a type in which strings annotated with `OneOf` are replaced by literals."""
    if get_origin(hint) is Annotated:
        one_of = next((note for note in hint.__metadata__ if isinstance(note, OneOf)), None)
        return hint if one_of is None else Literal[tuple(one_of.registry)]
    if get_origin(hint) is UnionType or get_origin(hint) is Union:
        return Union[tuple(map(_choices, get_args(hint)))]  # noqa: UP007 (of a tuple)
    return hint


def _metavar(hint: Any) -> str:
    """Return the placeholder of an optional flag's value in the help: PATH, INT, {a,b}, PATH ..."""
    if get_origin(hint) is Annotated:
        return _metavar(get_args(hint)[0])
    inner = [part for part in get_args(hint) if part not in (type(None), Ellipsis)]
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, inner)) + "}"
    if get_origin(hint) is tuple:
        return f"{_metavar(inner[0])} ..."
    if inner:
        return "|".join(map(_metavar, inner))
    return str(hint.__name__).upper()


def _refuse_empty_paths(config: type[Any], flags: Sequence[str]) -> None:
    """Raise `UserError` for a flag whose path is empty, which would stand for the current folder."""
    hints = get_type_hints(config)
    flag = ""
    for word in flags:
        value = word
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            if not equals:
                continue
        hint = str(hints.get(_field(flag)))
        if not value and "Path" in hint:
            raise UserError(f"{flag} '': is empty; name a file or a folder (. is the current one)")
        if "tuple" not in hint:  # what follows the flag's one value is an argument without a flag
            flag = ""


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _one_line(box: str, config: type[Any], command: str) -> str:
    """Return the message in tyro's error box as one line."""
    # On a terminal the box has colours; without UTF-8 it has no border, and its title is a section of its own.
    rows = [row.strip("│ ") for row in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()]
    sections = re.split(r"^[─-]{10,}$|^╭.*╮$", "\n".join(rows), flags=re.MULTILINE)[1:] or [box]
    message = " ".join(sections[0].split())
    unknown = re.match(r"Unrecognized options: ?(.*)", message)
    wrong = re.match(r"Error parsing (\S+): no type matching \S+ could be instantiated from \[(.*?)\]", message)
    choice = re.match(r"invalid choice '(.*)' for argument '(\S+)'", message)
    if unknown:
        words = unknown[1].split(", ")
        named = [word for word in words if word.startswith("-")]
        message = f"unknown flag {', '.join(named)}" if named else f"unexpected argument {', '.join(map(repr, words))}"
        close = re.search(r"Perhaps you meant:\s+(--\S+)", "\n".join(sections[1:]))
        if close:
            return f"{message}; did you mean {close[1]}?"
    elif wrong:
        message = f"{wrong[1]} {wrong[2]}: not a value that the flag takes"
    elif choice:
        # tyro lists them in no order, and None among those of optional flags.
        hint = _choices(get_type_hints(config, include_extras=True)[_field(choice[2])])
        choices = _metavar(hint).strip("{}").replace(",", ", ")
        flag = f"{choice[2]} " if choice[2].startswith("-") else ""  # an argument has no name that a user types
        message = f"{flag}{choice[1] or repr('')}: choose one of {choices}"
    message = message.removeprefix("Error parsing ").rstrip(".")
    return f"{message}; `fastbert {command} --help` shows the flags"
