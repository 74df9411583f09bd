"""The help of a command: its flags in groups, the required ones marked, and examples."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from fastbert.cli.flag_table import Flag, flags_of

# Flags that are parsed before the command is known (see fastbert.cli.main), which explains them in its own help.
COMMON = "Every command takes --help-all, -q/--quiet, -v/--verbose, --debug and --version: see `fastbert --help`."
INDENT, COLUMN, NARROWEST, WIDEST = 2, 26, 40, 100


def show_help(config: type[Any], command: str, examples: Sequence[str], words: Sequence[str]) -> None:
    """Print a command's help, all of it if `words`, the command's line, hold --help-all."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    listed = flags_of(config)
    shown = listed if "--help-all" in words else [flag for flag in listed if not flag.rare or _asked(flag, words)]
    width = min(max(console.width, NARROWEST), WIDEST)
    titles = {f"{flag.group}:" for flag in shown} | {"Examples:"}
    for line in _lines(config, command, examples, shown, len(listed) - len(shown), width):
        indent = len(line) - len(line.lstrip())
        text = Text(line)
        if line in titles:
            text.stylize("bold")
        elif indent == INDENT and line.lstrip().startswith("-"):
            text.stylize("cyan", indent, _end_of_name(line))
        console.print(text)


def usages(config: type[Any], command: str) -> list[str]:
    """Return a command's usage, with what is required: a line for the flags that are required by themselves, and one
    for each flag that takes the place of some of them."""
    listed = flags_of(config)
    rules = {flag.field: flag.required for flag in listed if flag.required is not None}
    # --resume takes the flags of its run.
    others = dict.fromkeys(name for rule in rules.values() for name in rule.unless if name != "resume")
    lines = []
    for other in (None, *others):
        needed = [name for name, rule in rules.items() if rule.when in (None, other) and other not in rule.unless]
        flags = [flag for flag in listed if flag.field in needed or flag.field == other]
        words = [flag.short_metavar or flag.name for flag in flags if flag.positional]
        words += [f"{flag.name} {flag.short_metavar}".rstrip() for flag in flags if not flag.positional]
        more = ["[FLAGS]"] if len(listed) > len(flags) else []
        lines.append(" ".join(["fastbert", command, *words, *more]))
    return lines


def _usage(config: type[Any], command: str, width: int) -> Iterator[str]:
    """Yield the lines of a command's usage."""
    for number, line in enumerate(usages(config, command)):
        yield from _folded(f"usage: {line}" if number == 0 else f"{'':7}{line}", width)


def short_usage(config: type[Any], command: str, examples: Sequence[str]) -> str:
    """Return the shortest useful call of a command, for one without arguments."""
    lines = [*_usage(config, command, WIDEST), *(f"example: {line}" for line in examples[:1])]
    return "\n".join([*lines, f"`fastbert {command} --help` shows the flags"])


def _lines(
    config: type[Any], command: str, examples: Sequence[str], shown: Sequence[Flag], hidden: int, width: int
) -> Iterator[str]:
    yield from _usage(config, command, width)
    yield ""
    yield from textwrap.wrap(" ".join((config.__doc__ or "").split()), width, break_on_hyphens=False)
    for title, group in groupby(shown, key=lambda flag: flag.group):
        yield from ("", f"{title}:")
        for flag in group:
            yield from _entry(
                f"{flag.name} {flag.metavar}".rstrip() if not flag.positional else flag.name, meaning(flag), width
            )
    more = f"{hidden} more flags: `fastbert {command} --help-all`. " if hidden else ""
    yield from ("", *textwrap.wrap(more + COMMON, width, break_on_hyphens=False))
    if examples:
        yield from ("", "Examples:")
        for example in examples:
            yield from command_lines(example, width)


def _entry(name: str, meaning: str, width: int) -> Iterator[str]:
    """Yield the lines of a flag: a long name has one of its own."""
    lines = textwrap.wrap(meaning, width - COLUMN, break_on_hyphens=False) or [""]
    head = " " * INDENT + name
    if len(head) > COLUMN - 2:
        yield from _folded_choices(head, width)
    else:
        yield f"{head:<{COLUMN}}{lines.pop(0)}".rstrip()
    yield from (" " * COLUMN + line for line in lines)


def _folded_choices(head: str, width: int) -> Iterator[str]:
    """Yield a flag with its choices, {a,b,c}, on as many lines as they need."""
    line, indent = "", " " * (head.find("{") + 1)
    for part in re.split(r"(?<=,)", head):
        if line and len(line) + len(part) > width:
            yield line
            line = indent
        line += part
    yield line


def meaning(flag: Flag) -> str:
    """Return a flag's text with its default, or whether it is required."""
    default = flag.default
    if flag.required is not None:
        note = f"required {flag.required.condition}".rstrip()
    elif default is None or default is False or default == () or "(default" in flag.text or not _plain(default):
        return flag.text
    else:
        note = f"default: {_plain(default)}"
    return f"{flag.text.removesuffix('.')} ({note})."


def _plain(value: Any) -> str:
    """Return a default as it is typed."""
    if isinstance(value, tuple):
        return " ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _asked(flag: Flag, words: Sequence[str]) -> bool:
    """Return whether a flag is of a group such as "With --task span", and the line holds those words."""
    _, found, condition = flag.group.partition("With ")
    option, _, values = condition.partition(" ")
    line = f" {' '.join(words)} "
    return bool(found) and any(f" {option} {value} " in line for value in values.split(", "))


def _folded(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent=" " * 11, break_on_hyphens=False, break_long_words=False)


def command_lines(command: str, width: int) -> Iterator[str]:
    """Yield an example, continued between flags where it is longer than a line."""
    parts: list[str] = []
    for word in shlex.split(command):
        quoted = word if shlex.quote(word) == word or word == "|" else f'"{word}"'
        if word.startswith("--") or not parts:
            parts.append(quoted)
        else:
            parts[-1] += f" {quoted}"
    line = " " * INDENT + parts[0]
    for part in parts[1:]:
        if len(line) + len(part) + 3 > width:
            yield f"{line} \\"
            line = " " * (INDENT + 4) + part
        else:
            line += f" {part}"
    yield line


def _end_of_name(line: str) -> int:
    """Return the column at which a flag's name ends and its meaning begins."""
    return COLUMN if len(line) > COLUMN and line[COLUMN - 2 : COLUMN] == "  " else len(line)
