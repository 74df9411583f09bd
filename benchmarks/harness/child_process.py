"""Measurements that each take a new process: a benchmark starts itself with --child, and reads a line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastbert.benchmarks.harness.measure import ContenderFailed

CHILD = "--child"


def ask(module: str, words: Sequence[object], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what a module's child prints for these words, with further variables in its environment.

    Raises `ContenderFailed` with the last line of its stderr.
    """
    command = [sys.executable, "-P", "-m", module, CHILD, *map(str, words)]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ContenderFailed((done.stderr.strip().splitlines() or ["no message"])[-1])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def answer_of(
    module: str, words: Sequence[object], what: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the answer of `ask`; exit with its error, which `what` begins."""
    try:
        return ask(module, words, environment)
    except ContenderFailed as error:
        sys.exit(f"{what}: {error}")


def answered(argv: Sequence[str], child: Callable[..., Mapping[str, Any]]) -> bool:
    """Print what `child` returns for the words behind --child, and return True; False for any other command line."""
    if argv[:1] != [CHILD]:
        return False
    print(json.dumps(dict(child(*argv[1:]))))
    return True
