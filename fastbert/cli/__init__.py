"""The `fastbert` command: import the sub-command's module, parse its flags, and print errors in one line.

`GROUPS` is the registry of commands, the one file to edit for a new one. Only the module of the requested command is
imported, so that help is printed at once. The module has a dataclass `Config`, whose fields are the flags; `run`, which
imports torch where it needs it; `EXAMPLES`, two calls for the help; perhaps `check`, which finds missing files and
other mistakes in a `Config` before torch is imported, and `complete`, which fills in defaults that depend on the flags
given.
"""

from __future__ import annotations

import difflib
import io
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from fastbert.distributed.environment import is_launched, is_main_process
from fastbert.errors import UserError, require_package
from fastbert.flags import check_required
from fastbert.io.log import logger
from fastbert.requirements import missing_package
from fastbert.training.stopping import Stopped

# Command -> module and description; the help separates groups by an empty line.
GROUPS: tuple[dict[str, tuple[str, str]], ...] = (
    {
        "demo": ("demo", "pre-train a small BERT on Python's own text, plot it, fill blanks"),
    },
    {
        "vocab": ("vocab", "build, measure or extend a WordPiece vocabulary"),
        "prepare": ("prepare", "turn a corpus into token shards"),
        "pretrain": ("pretrain", "pre-train from raw text or shards, with resume"),
        "plan": ("plan", "predict memory, FLOPs and time of a pre-training run"),
        "replay": ("replay", "compute steps of a run again and compare them, bit for bit"),
        "plot": ("plot", "compare runs in a picture or on an interactive page"),
    },
    {
        "finetune": ("finetune", "fine-tune on a task: classes, numbers, tags, answers, choices, text"),
        "adapt": ("adapt", "adapt an embedder to the text of a domain, without labels"),
        "predict": ("predict", "apply a fine-tuned model to a file or to standard input"),
    },
    {
        "fill-mask": ("fill_mask", "fill in the blanks of a sentence with a pre-trained model"),
        "generate": ("generate", "continue texts with a left-to-right language model"),
        "translate": ("translate", "translate the lines of a file with a sequence-to-sequence model"),
        "evaluate": ("evaluate", "score a model, predictions or rankings; BLiMP, perplexity; GLUE's averages"),
        "embed": ("embed", "write vectors of the texts of a file: one per text, per token, or sparse"),
        "rerank": ("rerank", "rank the texts of a file by their relevance to a query"),
        "serve": ("serve", "answer requests over HTTP: embeddings, ranking, classes, blanks"),
        "search": ("search", "make an index of texts, and find those nearest to a query"),
        "features": (
            "features",
            "write hidden states of chosen layers, or train taggers on them",
        ),
        "vectors": ("vectors", "train static word vectors: skip-gram, CBOW, GloVe; neighbours, analogies"),
        "verify": ("verify", "compare a Hugging Face model, original and accelerated"),
    },
    {
        "convert": (
            "convert",
            "convert Hugging Face folders, pickles, TensorFlow files and deltas",
        ),
    },
    {
        "experiment": ("experiment", "run the comparisons of the BERT paper at a chosen scale"),
        "bench": ("bench", "measure throughput against the alternatives: table, JSON, chart"),
        "doctor": ("doctor", "show what was built, which backend runs each operation, and why"),
    },
)
COMMANDS = {name: entry for group in GROUPS for name, entry in group.items()}
HELP = ("-h", "--help", "--help-all")
_VERBOSE = {"-v": 1, "--verbose": 1, "-vv": 2}
WRONG_INPUT, INTERRUPTED, READER_LEFT = 2, 128 + 2, 128 + 13  # as a shell counts SIGINT and SIGPIPE


@dataclass(frozen=True)
class _Common:
    """The flags of every command, which may stand anywhere."""

    quiet: bool = False
    verbose: int = 0
    debug: bool = False

    @classmethod
    def split(cls, words: Sequence[str]) -> tuple[_Common, list[str]]:
        """Return these flags, and the other words."""
        verbose = sum(_VERBOSE.get(word, 0) for word in words)
        quiet = any(word in ("-q", "--quiet") for word in words)
        if quiet and verbose:
            raise UserError("--quiet and --verbose exclude each other; leave one out")
        common = ("-q", "--quiet", "--debug", *_VERBOSE)
        return cls(quiet, verbose, "--debug" in words), [word for word in words if word not in common]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `fastbert` with these arguments (default: the process's); return the exit code."""
    if is_launched():
        # DDP advises, in each process, to turn off what keeps its sums the same after a restart.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # characters that the terminal's encoding lacks
    try:
        common, words = _Common.split(words)
        code = _dispatch(words, common)
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
        if not any(getattr(cause, "silent", False) for cause in (error, error.__cause__)):
            # else another process of the run reports it
            print(f"fastbert: error: {_describe(error)}", file=sys.stderr)
        return WRONG_INPUT
    except ModuleNotFoundError as error:
        problem = missing_package(error)
        if debug or not problem:
            raise
        print(f"fastbert: error: {problem}", file=sys.stderr)
        return WRONG_INPUT


def overview() -> str:
    """Return the commands, one per line."""
    width = max(map(len, COMMANDS)) + 2
    groups = ["\n".join(f"  {name:<{width}}{entry[1]}" for name, entry in group.items()) for group in GROUPS]
    return (
        "usage: fastbert COMMAND [FLAGS]\n\n"
        + "\n\n".join(groups)
        + """

  -h, --help           this list; after a command, its flags with their defaults
  --help-all           after a command, all of its flags
  -q, --quiet          print results and errors only
  -v, -vv, --verbose   log what is done, or all details
  --debug              show the traceback of an error
  --version            show the version
  --completion SHELL   print the completion of flags for bash, zsh or fish:
                       fastbert --completion bash >> ~/.bash_completion

Start with `fastbert demo`."""
    )


def _dispatch(words: list[str], common: _Common) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if any(word in ("-V", "--version") for word in words):
        print(f"fastbert {version('fastbert-engine')}")
        return 0
    if words[:1] and words[0].partition("=")[0] == "--completion":
        return _print_completion(words)
    helping = [word for word in words if word in HELP]
    if not words or (helping and len(words) == len(helping)):
        print(overview())
        return 0
    command, *flags = words if words[0] not in HELP else [*(word for word in words if word not in HELP), *helping]
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean `fastbert {close[0]}`?" if close else "`fastbert --help` lists the commands"
        raise UserError(f"unknown command {command!r}; {hint}")
    require_package("tyro", "the command line needs the package tyro: `pip install tyro`")
    from fastbert.cli.flags import parse
    from fastbert.cli.help import short_usage, show_help

    module = import_module(f"fastbert.cli.{COMMANDS[command][0]}")
    kind: Any = getattr(module, "Config", None)
    examples = getattr(module, "EXAMPLES", ())
    if hasattr(module, "SUBCOMMANDS"):
        if not flags or flags[0] in HELP:
            print(module.overview(), file=sys.stdout if flags else sys.stderr)
            return 0 if flags else WRONG_INPUT  # as any command without arguments
        what, *flags = flags
        kind, command = module.subcommand(what), f"{command} {what}"
        examples = module.EXAMPLES[what]
    if helping:
        show_help(kind, command, examples, flags)
        return 0
    config = parse(kind, command, flags, lambda: {name: shown[0] for name, shown in _all_commands().items()})
    if hasattr(module, "complete"):  # defaults that depend on which flags are given
        config = module.complete(config, flags)
    try:
        check_required(config)
    except UserError:
        if flags:
            raise
        print(short_usage(kind, command, examples), file=sys.stderr)
        return WRONG_INPUT
    try:
        if hasattr(module, "check") and is_main_process():  # the others would see what the first one writes
            module.check(config)
        _log(common, command, config)
        return int(module.run(config, quiet=common.quiet or not is_main_process()) or 0)
    except BrokenPipeError:
        raise
    except OSError as error:
        from fastbert.cli.os_errors import describe

        raise UserError(describe(error, config)) from error
    except RuntimeError as error:
        from fastbert.cli.memory_errors import describe as describe_shortage

        shortage = describe_shortage(error, config)
        if shortage is None:
            raise
        raise shortage from error
    except UserError as error:
        from fastbert.cli.flag_names import in_flags

        raise UserError(in_flags(str(error), config)) from error


def _log(common: _Common, command: str, config: Any) -> None:
    """Set what is logged, and begin the log with the version and the flags."""
    # In a distributed run, only the first process logs.
    muted = common.quiet or not is_main_process()
    logging.basicConfig(level=logging.ERROR if muted else logging.WARNING, format="fastbert: %(message)s")
    logger.setLevel((logging.NOTSET, logging.INFO, logging.DEBUG)[0 if muted else min(common.verbose, 2)])
    logger.info("version %s, fastbert %s", version("fastbert-engine"), command)
    for name, value in vars(config).items():
        if not name.startswith("_"):
            logger.debug("%s: %s", name, value)


def _print_completion(words: list[str]) -> int:
    require_package("tyro", "the command line needs the package tyro: `pip install tyro`")
    from fastbert.cli.completion import script

    shell = words[0].partition("=")[2] or " ".join(words[1:])
    print(script(shell, _all_commands()))
    return 0


def _all_commands() -> dict[str, tuple[type[Any], str]]:
    """Return the dataclass and the description of each command and sub-command."""
    shown: dict[str, tuple[type[Any], str]] = {}
    for name, (module_name, description) in COMMANDS.items():
        module = import_module(f"fastbert.cli.{module_name}")
        if hasattr(module, "SUBCOMMANDS"):
            shown |= {f"{name} {what}": entry for what, entry in module.SUBCOMMANDS.items()}
        else:
            shown[name] = (module.Config, description)
    return shown


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
