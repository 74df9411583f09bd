"""Throw-away additions: one operation, architecture, task and command, each as new files and edits of existing ones.

An addition brings its own tests, in `tests/`, as a contributor's would. `tests/test_additions.py` applies all of them
to a copy of the project, counts the files that each edits, and runs their tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Edit(NamedTuple):
    """A line of an existing file, and the lines that replace it; "" stands for the end of the file."""

    old: str
    new: str


class Addition(NamedTuple):
    """New files by path, and the edits of existing files."""

    new: Mapping[str, str]
    edits: Mapping[str, tuple[Edit, ...]]

    def apply(self, tree: Path) -> None:
        """Write the files into a copy of the project."""
        for path, text in self.new.items():
            file = tree / path
            assert not file.exists(), f"{path} is an existing file"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.lstrip("\n"), encoding="utf-8")
        for path, edits in self.edits.items():
            text = (tree / path).read_text(encoding="utf-8")
            for old, new in edits:
                assert not old or text.count(old) == 1, f"{path}: {old!r} occurs {text.count(old)} times"
                text = text.replace(old, new) if old else text + new
            (tree / path).write_text(text, encoding="utf-8")
