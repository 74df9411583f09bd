"""Declare the flags of a command, as fields of a frozen dataclass: its groups, required flags, and rare ones.

The fields of a class that has a `GROUP` are shown under that title by `--help`. What a flag means is the string below
its field; `rare` and `required` take the place of its default. Imports no torch: command lines are generated from such
classes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar

from fastbert.errors import UserError

T = TypeVar("T")
OTHER = "Flags"
"""The title of flags that are in no group."""
DATA, MODEL, TRAINING, OUTPUT, MACHINE = "Data", "Model", "Training", "Output", "Machine"
_FIRST, _LAST = (OTHER, DATA, MODEL, TRAINING), (OUTPUT, MACHINE)
_RARE, _REQUIRED, _BARE, _ALIAS, _SEPARATOR = "rare", "required", "bare", "alias", "separator"


@dataclass(frozen=True)
class Required:
    """The meaning of a required flag, the flags that make it unnecessary, and the one that makes it required."""

    meaning: str
    unless: tuple[str, ...] = ()
    when: str | None = None
    name: str | None = None
    """The name of an argument without a flag."""

    @property
    def condition(self) -> str:
        """Return the condition in words, empty if there is none."""
        if self.when is not None:
            return f"with {flag(self.when)}"
        # --resume takes the flags of its run.
        others = [flag(name) for name in self.unless if name != "resume"]
        return f"without {' or '.join(others)}" if others else ""


def rare(default: T, *, alias: str | None = None, separator: str | None = None) -> T:
    """Declare a flag that only `--help-all` shows.

    `alias` is a second name, as a field's, that no help lists; the values of a flag that takes several may also be one
    word, with `separator` between them.
    """
    declared: T = field(default=default, metadata={_RARE: True, _ALIAS: alias, _SEPARATOR: separator})
    return declared


def switch(default: T, *, bare: str, is_rare: bool = True) -> T:
    """Declare a flag of choices that means `bare` where no value follows it, and by default only `--help-all` shows."""
    declared: T = field(default=default, metadata={_BARE: bare} | ({_RARE: True} if is_rare else {}))
    return declared


def as_arguments(message: str) -> str:
    """Return a message about flags as one about keyword arguments: "max_length 9", not "--max-length 9"."""
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", lambda name: name[1].replace("-", "_"), message)


def required(
    meaning: str,
    *,
    unless: Iterable[str] = (),
    when: str | None = None,
    name: str | None = None,
    default: Any = None,
) -> Any:
    """Declare a flag that must be given: always, unless one of some other flags is, or only with another flag.

    `meaning` completes the error "--model is missing: ..."; an argument without a flag has a `name` there. `default` is
    None, or () for several values.
    """
    return field(default=default, metadata={_REQUIRED: Required(meaning, tuple(unless), when, name)})


def is_rare(metadata: Mapping[str, Any]) -> bool:
    """Return whether only `--help-all` shows a field with this metadata."""
    return _RARE in metadata


def bare_value(metadata: Mapping[str, Any]) -> str | None:
    """Return the value of a field with this metadata where its flag is given without one; None if it needs one."""
    return metadata.get(_BARE)


def alias_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the second name of a field with this metadata."""
    return metadata.get(_ALIAS)


def separator_of(metadata: Mapping[str, Any]) -> str | None:
    """Return what may stand between the values of a field with this metadata in one word."""
    return metadata.get(_SEPARATOR)


def requirement(metadata: Mapping[str, Any]) -> Required | None:
    """Return the requirement of a field with this metadata."""
    return metadata.get(_REQUIRED)


def check_required(config: Any) -> None:
    """Raise `UserError` for the first required flag that was left out."""
    for item in fields(config):
        rule = requirement(item.metadata)
        if rule is None or not _missing(getattr(config, item.name)):
            continue
        if any(not _missing(getattr(config, name)) for name in rule.unless):
            continue
        if rule.when is None or not _missing(getattr(config, rule.when)):
            raise _error(item.name, rule)


def require(config: Any, name: str) -> Any:
    """Return the value of a flag declared as `required`. Raises `UserError`, with its meaning, if it was left out."""
    value = getattr(config, name)
    if _missing(value):
        rule = next(requirement(item.metadata) for item in fields(config) if item.name == name)
        assert rule is not None, name
        raise _error(name, rule)
    return value


def rank(group: str) -> int:
    """Return the position of a group's title in the help: those with titles of their own precede the output."""
    if group in _FIRST:
        return _FIRST.index(group)
    return len(_FIRST) + 1 + _LAST.index(group) if group in _LAST else len(_FIRST)


def given_flags(words: Collection[str], config: Any) -> set[str]:
    """Return the fields of the flags that a command line holds, as --name and --name=value."""
    names = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    return {item.name for item in fields(config) if names & {item.name, alias_of(item.metadata)}}


def flag(name: str) -> str:
    """Return a field's name as a flag of the command line."""
    return "--" + name.replace("_", "-")


def _missing(value: Any) -> bool:
    return value is None or value is False or value in ("", ())


def _error(name: str, rule: Required) -> UserError:
    return UserError(f"{rule.name or flag(name)} is missing: {rule.meaning}")


@dataclass(frozen=True, kw_only=True)
class DeviceFlags:
    """The device of commands that use a model."""

    GROUP: ClassVar = MACHINE

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Auto uses a GPU if there is one."""
