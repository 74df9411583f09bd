"""Write the script by which a shell completes commands, flags and their choices."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any

import tyro

from fastbert.cli.flags import MARKERS, as_parsed
from fastbert.errors import UserError

SHELLS = ("bash", "zsh", "fish")
# Flags of every command, which fastbert.cli.main reads.
COMMON = ("help_all", "quiet", "verbose", "debug", "version")


def script(shell: str, commands: Mapping[str, tuple[type[Any], str]]) -> str:
    """Return the completion script of all commands, given by name with their dataclass and description.

    Raises `UserError` for an unknown shell.
    """
    if shell not in SHELLS:
        raise UserError(f"--completion {shell or repr('')}: choose one of {', '.join(SHELLS)}")
    kinds: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, (config, description) in commands.items():
        command, _, what = name.partition(" ")
        kind: Any = Annotated[
            as_parsed(config, switches=COMMON), tyro.conf.subcommand(what or command, description=description)
        ]
        if what:
            nested.setdefault(command, {})[what] = kind
        kinds[command] = kind
    for command, parts in nested.items():
        union: Any = reduce(or_, parts.values())
        kinds[command] = Annotated[
            dataclasses.make_dataclass(command, [("what", union)]), tyro.conf.subcommand(command)
        ]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        union = reduce(or_, kinds.values())
        tyro.cli(union, prog="fastbert", args=["--tyro-print-completion", shell], config=MARKERS)
    return printed.getvalue().rstrip()
