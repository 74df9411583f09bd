"""Read the options of a command from keyword arguments, as its flags are read from a command line. Imports no tyro."""

from __future__ import annotations

import difflib
import inspect
import operator
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fastbert.errors import UserError
from fastbert.flags import flag
from fastbert.io.locations import LocationText
from fastbert.io.untrusted_input import shown

Config = TypeVar("Config")
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a string",
    LocationText: "a path or a URL",
    Path: "a path",
}


def config_of(kind: type[Config], options: Mapping[str, Any], function: str) -> Config:
    """Return the dataclass of a command with the given options, others at their defaults.

    Paths may be strings; an option that takes several values takes one alone too. None stands for the default of
    options that can be None. Raises `TypeError` for an option that the command does not have, as Python does, and
    `UserError` for a value of the wrong kind, and for those that the dataclass refuses.
    """
    hints = get_type_hints(kind)
    names = [item.name for item in fields(kind) if item.init]  # type: ignore[arg-type]
    for name in options:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{function}() has no option {name!r}{hint}")
    return kind(**{name: _value(name, value, hints[name]) for name, value in options.items()})


def signature_of(kind: type[Any], function: Any) -> inspect.Signature:
    """Return the signature of a function whose `**options` are those of a dataclass."""
    hints, signature = get_type_hints(kind), inspect.signature(function)
    named = [item for item in signature.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=hints[item.name])
        for item in fields(kind)
        if item.init
    ]
    return signature.replace(parameters=[*named, *options])


def _value(name: str, value: Any, hint: Any) -> Any:
    """Return an option's value as its type. Raises `UserError`."""
    choices = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    if value is None and type(None) in choices:
        return None
    for choice in choices:
        if get_origin(choice) is tuple:
            several = isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike | Mapping)
            return tuple(_value(name, item, get_args(choice)[0]) for item in (value if several else [value]))
        if (accepted := _of_kind(value, choice)) is not _NO:
            return accepted
    raise UserError(f"{flag(name)} {shown(value)}: must be {' or '.join(filter(None, map(_described, choices)))}")


_NO: Any = object()


def _of_kind(value: Any, kind: Any) -> Any:
    """Return a value as one type without alternatives, `_NO` if it is none of it."""
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else _NO
    if kind is type(None):
        return _NO
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else _NO
    if kind is int:
        try:
            return operator.index(value)
        except TypeError:
            return _NO
    if kind is float:
        is_number = hasattr(value, "__float__") and not isinstance(value, str)
        return float(value) if is_number else _NO
    if kind is Path:
        return Path(value) if isinstance(value, str | os.PathLike) and os.fspath(value) != "" else _NO
    if kind is LocationText:
        return os.fspath(value) if isinstance(value, str | os.PathLike) and os.fspath(value) != "" else _NO
    if kind is str:
        return os.fspath(value) if isinstance(value, str | os.PathLike) else _NO
    raise AssertionError(f"an option of type {kind}")


def _described(kind: Any) -> str:
    """Return the values of a type in words, nothing for None."""
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    return _KINDS.get(kind, "")
