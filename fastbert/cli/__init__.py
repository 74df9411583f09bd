"""The `fastbert` command: finds the sub-command's module, reads its flags, and turns errors into one line.

Only the module of the command that was asked for is imported, so that help answers at once.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module

# Command -> module and what it does; a blank line in the help separates the groups.
GROUPS: tuple[dict[str, tuple[str, str]], ...] = (
    {
        "demo": ("demo", "pre-train a small BERT on the text that comes with Python, plot it, fill in blanks"),
    },
    {
        "vocab": ("vocab", "build a WordPiece vocabulary from a corpus"),
        "prepare": ("prepare", "turn a corpus into token shards"),
        "pretrain": ("pretrain", "pre-train from raw text or shards, with resume"),
        "plot": ("plot", "compare runs in a picture"),
    },
    {
        "fill-mask": ("fill_mask", "fill in the blanks of a sentence with a trained model"),
    },
    {
        "doctor": ("doctor", "what was built, which backend runs what, and why not the faster one"),
    },
)
COMMANDS = {name: entry for group in GROUPS for name, entry in group.items()}
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `fastbert` with the given arguments (default: the process's); returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    if not given or given[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if given[0] in ("-V", "--version"):
        from fastbert import __version__

        print(f"fastbert {__version__}")
        return 0
    command, flags = given[0], given[1:]
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean `fastbert {close[0]}`?" if close else "`fastbert --help` lists the commands"
        return _fail(f"unknown command {command!r}; {hint}")
    return _run(command, flags, debug)


def overview() -> str:
    """The commands with a line each."""
    width = max(map(len, COMMANDS)) + 2
    groups = ["\n".join(f"  {name:<{width}}{entry[1]}" for name, entry in group.items()) for group in GROUPS]
    return (
        "usage: fastbert COMMAND [FLAGS]\n\n"
        + "\n\n".join(groups)
        + "\n\n`fastbert COMMAND --help` shows a command's flags with their defaults. --debug shows the traceback of an"
        " error.\nStart with `fastbert demo`."
    )


def _run(command: str, flags: list[str], debug: bool) -> int:
    from fastbert.errors import UserError

    try:
        try:
            import tyro  # noqa: F401
        except ImportError:
            raise UserError("the command line needs the package tyro: `pip install tyro`") from None
        module = import_module(f"fastbert.cli.{COMMANDS[command][0]}")
        from fastbert.cli.common import parse

        config, quiet = parse(module.Config, command, flags)
        return int(module.run(config, quiet=quiet) or 0)
    except KeyboardInterrupt:
        if debug:
            raise
        print("fastbert: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has left: that is its right. Keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, OSError) as error:
        if debug:
            raise
        return _fail(str(error))


def _fail(message: str) -> int:
    print(f"fastbert: error: {message}", file=sys.stderr)
    return 2
