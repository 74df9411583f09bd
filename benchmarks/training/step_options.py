"""What benchmarks of training steps share: their command lines, and the text that they train on."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from fastbert.config import PRESETS
from fastbert.data.corpus import Corpus
from fastbert.data.python_text import python_documents

TEXT_BYTES = 4_000_000  # of Python's documentation


def parser(description: str | None, *, quick: str) -> argparse.ArgumentParser:
    """Return a parser with the flags of all these benchmarks; `quick` says what --quick is."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--quick", action="store_true", help=quick)
    flags.add_argument("--model", choices=sorted(PRESETS), help="size of the model (default: mini)")
    flags.add_argument("--text", type=Path, help="one sentence per line (default: Python's documentation)")
    flags.add_argument("--threads", type=int, help="threads of all (default: all cores)")
    flags.add_argument("--rounds", type=int, help="rounds per contender (default: 5)")
    flags.add_argument("--json", type=Path, help="file to write the rows to")
    return flags


def values(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the options that these flags stand for, by name."""
    return {
        "model": flags.model or ("tiny" if flags.quick else "mini"),
        "text": flags.text,
        "threads": flags.threads or len(os.sched_getaffinity(0)),
        "rounds": flags.rounds or (2 if flags.quick else 5),
        "json": flags.json,
    }


def documents_of(text: Path | None) -> list[list[str]]:
    """Return the documents of a text with one sentence per line, by default Python's documentation."""
    if text is None:
        return list(python_documents(TEXT_BYTES))
    return list(Corpus.find((text,), text_format="lines").documents())
