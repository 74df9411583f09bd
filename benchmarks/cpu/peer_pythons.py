"""The interpreters of contenders that have an environment of their own: `--peer-python NAME=PATH`, checked before
anything is measured."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness.isolation import foreign_command, variables
from fastbert.errors import UserError

FLAG = "--peer-python"
HELP = "interpreters of other environments: PATH runs the contenders whose names begin with NAME"
OLDEST = (3, 11)
PROBE_SECONDS = 60
PROBE = """
import importlib.util, json
missing = [name for name in sys.argv[3:] if importlib.util.find_spec(name) is None]
print(json.dumps({"version": sys.version_info[:2], "missing": missing}))
"""
OWN = ("fastbert", "accelerated")


class PeerPython(NamedTuple):
    """The interpreter of a contender, and the modules that its environment lacks for it."""

    path: Path
    missing: tuple[str, ...] = ()


def read(kind: str, assignments: Sequence[str], *, isolate: bool) -> dict[str, PeerPython]:
    """Return the interpreter of every contender that `--peer-python` names, by contender.

    Raises `UserError` for a malformed value, an unknown name, a path that is not an executable Python, one without the
    contender's packages or numpy, and where contenders share a process.
    """
    pythons: dict[str, PeerPython] = {}
    for assignment in assignments:
        name, separator, path = assignment.partition("=")
        if not (name and separator and path):
            raise UserError(f"{FLAG} {assignment!r} must be NAME=PATH, such as zentorch=environment/bin/python")
        if not isolate:
            raise UserError(f"{FLAG} {assignment} needs a process of its own for the contender: leave out --no-isolate")
        contenders = _contenders(kind, name)
        twice = [contender for contender in contenders if contender in pythons]
        if twice:
            raise UserError(
                f"{FLAG} {assignment}: {twice[0]} has a Python already, {pythons[twice[0]].path}: leave one out"
            )
        # Not resolved: the link in an environment's bin is what makes it that environment.
        python = Path(os.path.abspath(Path(path).expanduser()))
        missing = _missing(kind, contenders, python, assignment)
        for contender in contenders:
            lacks = {"numpy", *peers.needs(kind, contender)} & missing
            pythons[contender] = PeerPython(python, tuple(sorted(lacks)))
    return pythons


def _contenders(kind: str, name: str) -> list[str]:
    """Return the contenders whose names are `name` or begin with it as a word."""
    others = [contender for contender in peers.names(kind) if contender.split(" ")[0] not in OWN]
    matching = [contender for contender in others if f"{contender} ".startswith(f"{name} ")]
    if matching:
        return matching
    known = list(dict.fromkeys(contender.split(" ")[0] for contender in others))
    if name.split(" ")[0] in OWN:
        raise UserError(f"{FLAG} {name}=...: {name} is measured in this environment; others are {', '.join(known)}")
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise UserError(f"{FLAG} {name}=...: no contender is called {name}{hint}; there are {', '.join(known)}")


def _missing(kind: str, contenders: Sequence[str], python: Path, assignment: str) -> set[str]:
    """Run the interpreter once, and return the modules that it lacks. Raises `UserError` unless it can run one of the
    contenders."""
    if not python.exists():
        raise UserError(f"{FLAG} {assignment}: there is no file {python}; name an environment's bin/python")
    if python.is_dir():
        raise UserError(f"{FLAG} {assignment}: {python} is a folder; name the Python in it, such as bin/python")
    modules = sorted({"numpy", *(module for name in contenders for module in peers.needs(kind, name))})
    answer = _probe(python, modules, assignment)
    version = tuple(answer["version"])
    if version < OLDEST:
        raise UserError(
            f"{FLAG} {assignment}: {python} is Python {version[0]}.{version[1]}; at least {OLDEST[0]}.{OLDEST[1]} is"
            " needed: make the environment with a newer one"
        )
    missing = set(answer["missing"])
    # Some of the contenders may need fewer modules than others.
    if all(missing & {"numpy", *peers.needs(kind, contender)} for contender in contenders):
        modules = [name for name in modules if name in missing]
        packages = {package for name in contenders for package in peers.packages(kind, name)} | {"numpy"}
        raise UserError(
            f"{FLAG} {assignment}: {python} has no module {', '.join(modules)}: install the package"
            f" (`{python} -m pip install {' '.join(sorted(packages))}`), or name the environment that has it"
        )
    return missing


def _probe(python: Path, modules: Sequence[str], assignment: str) -> Mapping[str, list]:
    problem = f"{FLAG} {assignment}: {python} is not an executable Python"
    try:
        done = subprocess.run(
            foreign_command(python, PROBE, *modules),
            env=variables({}, foreign=True),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{problem}: no answer in {PROBE_SECONDS} s; name an environment's bin/python") from None
    except OSError as error:
        raise UserError(f"{problem} ({error.strerror or error}); name an environment's bin/python") from None
    try:
        answer: dict[str, list] = json.loads(done.stdout)
        assert {"version", "missing"} <= set(answer)
    except (ValueError, TypeError, AssertionError):
        lines = (done.stderr.strip() or done.stdout.strip() or f"it ended with code {done.returncode}").splitlines()
        raise UserError(f"{problem} ({lines[-1][:200]}); name an environment's bin/python") from None
    return answer
