"""Find out whether a record is older than the code that it measured, from the repository's history."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastbert.benchmarks.harness.records import DIRTY

MISSING, OLDER, CURRENT, UNKNOWN = "missing", "older", "current", "unknown"


class Age(NamedTuple):
    """The state of a record, the reason for it, and the time of its oldest commit in seconds since 1970."""

    state: str
    reason: str = ""
    time: int = 0


def age_of(path: Path, measures: Sequence[str], repository: Path | None) -> Age:
    """Return the age of a record at `path` relative to the code at the paths `measures` of the repository.

    A record is older if a commit that is no ancestor of its own has changed that code: so is one that names no commit,
    or one that this repository lacks. A record with rows of several commits is as old as the oldest of them. Without a
    repository the state is unknown.
    """
    if not path.is_file():
        return Age(MISSING)
    if repository is None:
        return Age(UNKNOWN, "no repository to compare with")
    commits = commits_of(json.loads(path.read_text(encoding="utf-8")))
    if not commits:
        return Age(OLDER, "names no commit")
    ages = [_age_of_commit(commit, measures, repository) for commit in commits]
    older = [age for age in ages if age.state != CURRENT]
    return min(older or ages, key=lambda age: age.time)


def commits_of(record: dict[str, Any]) -> list[str]:
    """Return the commits of a record and of its rows; none if a row has neither."""
    named = [row.get("commit") or record.get("commit") for row in record.get("rows", ())]
    return [] if None in named else list(dict.fromkeys(map(str, named)))


def _age_of_commit(commit: str, measures: Sequence[str], repository: Path) -> Age:
    name = commit.removesuffix(DIRTY)
    when = _git(repository, "show", "-s", "--format=%ct", f"{name}^{{commit}}")
    if when is None:
        return Age(OLDER, f"its commit {name} is not in this repository")
    changes = _git(repository, "rev-list", "--count", f"{name}..HEAD", "--", *measures)
    uncommitted = _git(repository, "status", "--porcelain", "--untracked-files=no", "--", *measures)
    if changes is None or int(changes):
        return Age(OLDER, f"{changes or 'unknown'} commit{'s' * (changes != '1')} since {name}", int(when))
    if uncommitted:
        return Age(OLDER, "uncommitted changes", int(when))
    return Age(CURRENT, "of a changed tree" if commit != name else "", int(when))


def _git(repository: Path, *words: str) -> str | None:
    """Return the output of git, or None if it fails."""
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
