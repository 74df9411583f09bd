"""The `fastbert` command: import the sub-command's module, parse its flags, and print errors in one line.

`GROUPS` is the registry of commands, the one file to edit for a new one. Only the module of the requested command is
imported, so that help is printed at once.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from fastbert.errors import UserError, require_package
from fastbert.training.stopping import Stopped

# Command -> module and description; the help separates groups by an empty line.
GROUPS: tuple[dict[str, tuple[str, str]], ...] = (
    {
        "demo": ("demo", "pre-train a small BERT on the text that comes with Python, plot it, fill in blanks"),
    },
    {
        "vocab": ("vocab", "build a WordPiece vocabulary from a corpus, measure one, or extend one for a domain"),
        "prepare": ("prepare", "turn a corpus into token shards"),
        "pretrain": ("pretrain", "pre-train from raw text or shards, with resume"),
        "plot": ("plot", "compare runs in a plot"),
    },
    {
        "finetune": ("finetune", "fine-tune on a task: classes, numbers, tags, answers, choices or generated text"),
        "predict": ("predict", "apply a fine-tuned model to a file or to standard input"),
    },
    {
        "fill-mask": ("fill_mask", "fill in the blanks of a sentence with a pre-trained model"),
        "evaluate": ("evaluate", "score a fine-tuned model or a file of predictions; average GLUE's results"),
        "embed": ("embed", "write one vector per text of a file: .npy, .parquet or .jsonl"),
        "features": (
            "features",
            "write hidden states of chosen layers, or train a tagger on them (Table 7 of the paper)",
        ),
        "verify": ("verify", "compare a Hugging Face model, original and accelerated, on your text"),
    },
    {
        "convert": (
            "convert",
            "convert between Hugging Face folders, old pickles, TensorFlow checkpoints and deltas",
        ),
    },
    {
        "bench": ("bench", "measure throughput against the alternatives: table, JSON, chart"),
        "doctor": ("doctor", "show what was built, which backend runs each operation, and why not a faster one"),
    },
)
COMMANDS = {name: entry for group in GROUPS for name, entry in group.items()}
WRONG_INPUT, INTERRUPTED, READER_LEFT = 2, 128 + 2, 128 + 13  # as a shell counts SIGINT and SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `fastbert` with these arguments (default: the process's); return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug, quiet = "--debug" in words, "--quiet" in words
    words = [word for word in words if word not in ("--debug", "--quiet")]
    try:
        code = _dispatch(words, quiet)
        if sys.stdout is not None:  # closed by the parent process
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if debug:
            raise
        print("fastbert: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Stopped as stopped:  # the command has said how to continue
        return 128 + stopped.signal
    except BrokenPipeError:
        # The reader of the output (head, less) has exited, which is no error. Keep Python from reporting it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    except (UserError, OSError) as error:
        if debug:
            raise
        print(f"fastbert: error: {_describe(error)}", file=sys.stderr)
        return WRONG_INPUT


def overview() -> str:
    """Return the commands, one per line."""
    width = max(map(len, COMMANDS)) + 2
    groups = ["\n".join(f"  {name:<{width}}{entry[1]}" for name, entry in group.items()) for group in GROUPS]
    return (
        "usage: fastbert COMMAND [FLAGS]\n\n"
        + "\n\n".join(groups)
        + "\n\n`fastbert COMMAND --help` shows a command's flags with their defaults. --quiet prints results and errors"
        "\nonly, --debug shows the traceback of an error, --version the version. Start with `fastbert demo`."
    )


def _dispatch(words: list[str], quiet: bool) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"fastbert {version('fastbert-engine')}")
        return 0
    command, *flags = words
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean `fastbert {close[0]}`?" if close else "`fastbert --help` lists the commands"
        raise UserError(f"unknown command {command!r}; {hint}")
    require_package("tyro", "the command line needs the package tyro: `pip install tyro`")
    from fastbert.cli.flags import parse

    module = import_module(f"fastbert.cli.{COMMANDS[command][0]}")
    if hasattr(module, "SUBCOMMANDS"):
        if not flags or flags[0] in ("-h", "--help"):
            print(module.overview())
            return 0
        what, *flags = flags
        kind, command = module.subcommand(what), f"{command} {what}"
    else:
        kind = module.Config
    try:
        config = parse(kind, command, flags)
    except SystemExit:  # --help has been printed
        return 0
    # In a distributed run, only the first process logs.
    muted = quiet or os.environ.get("RANK", "0") != "0"
    logging.basicConfig(level=logging.ERROR if muted else logging.WARNING, format="fastbert: %(message)s")
    return int(module.run(config, quiet=quiet) or 0)


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
