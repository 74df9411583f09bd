"""The file beside a model's weights that names its task. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from fastbert.io.untrusted_input import read_json_object
from fastbert.tasks.registry import TASKS

FILE = "fastbert_task.json"


def stored_task(folder: Path) -> str | None:
    """Return the name of the task that a model was trained for, None for a folder that names none."""
    if not (folder / FILE).is_file():
        return None
    name = read_json_object(folder / FILE).get("task")
    return name if name in TASKS else None
