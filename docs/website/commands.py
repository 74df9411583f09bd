"""Write the reference of the command line: a page per command, generated from the flags that it parses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any

from fastbert.cli import COMMANDS, GROUPS, overview
from fastbert.cli.flag_table import Flag, flags_of
from fastbert.cli.help import command_lines, meaning, usages
from website.docstrings import escaped

TITLES = (
    "Start here",
    "Vocabularies, corpora and pre-training",
    "Fine-tuning",
    "Use a model",
    "Convert files",
    "Compare and measure",
)
WIDTH = 88  # of examples


@dataclass(frozen=True)
class Command:
    """A command, or one of a command's: what is typed, its flags and examples."""

    words: str
    config: Any
    examples: tuple[str, ...]


def commands_of(name: str) -> list[Command]:
    """Return a command, or the ones that it consists of (`search index`, `search query`)."""
    module = import_module(f"fastbert.cli.{COMMANDS[name][0]}")
    if hasattr(module, "SUBCOMMANDS"):
        return [
            Command(f"{name} {what}", module.subcommand(what), _tuple(module.EXAMPLES[what]))
            for what in module.SUBCOMMANDS
        ]
    return [Command(name, module.Config, _tuple(module.EXAMPLES))]


def write() -> dict[str, str]:
    """Return the pages by their path."""
    return {"commands/index.md": _index(), **{f"commands/{name}.md": _page(name) for name in COMMANDS}}


def _index() -> str:
    lines = ["# Commands", "", "One page per command with all of its flags. `fastbert COMMAND --help` shows the same,"]
    lines += ["the flags that are used most first; `--help-all` shows all.", ""]
    for number, group in enumerate(GROUPS):
        lines += [f"## {TITLES[number] if number < len(TITLES) else 'More'}", ""]
        lines += [f"- [`fastbert {name}`]({name}.md): {text}" for name, (_, text) in group.items()]
        lines += [""]
    lines += [
        "## Flags of every command",
        "",
        "```text",
        overview().rpartition("\n\n")[0].rpartition("\n\n")[2],
        "```",
        "",
    ]
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", *COMMANDS, "```", ""])


def _page(name: str) -> str:
    commands = commands_of(name)
    lines = [f"# fastbert {name}", ""]
    if len(commands) > 1:
        text = COMMANDS[name][1]
        lines += [f"{text[:1].upper()}{text[1:]}.", ""]
    for command in commands:
        lines += [f"## fastbert {command.words}", ""] if len(commands) > 1 else []
        lines += [*_command(command, "###" if len(commands) > 1 else "##"), ""]
    return "\n".join(lines)


def _command(command: Command, level: str) -> Iterator[str]:
    yield from (escaped(" ".join((command.config.__doc__ or "").split())), "")
    yield from ("```text", *usages(command.config, command.words), "```", "")
    if command.examples:
        lines = [line[2:] for example in command.examples for line in command_lines(example, WIDTH)]
        yield from ("For example:", "", "```sh", *lines, "```", "")
    yield from (f"```{{program}} fastbert {command.words}", "```", "")
    for title, group in groupby(flags_of(command.config), key=lambda flag: flag.group):
        yield from (f"{level} {title}", "")
        for flag in group:
            yield from (*_flag(flag), "")


def _flag(flag: Flag) -> Iterator[str]:
    yield f"```{{option}} {flag.name if flag.positional else f'{flag.name} {flag.metavar}'.rstrip()}"
    yield from ("", escaped(meaning(flag)) + (" *Shown by `--help-all`.*" if flag.rare else ""), "```")


def _tuple(examples: Any) -> tuple[str, ...]:
    return (examples,) if isinstance(examples, str) else tuple(examples)
