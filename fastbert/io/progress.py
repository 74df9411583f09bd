"""Progress on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def console(quiet: bool = False) -> Any:
    """Return a rich console on standard error; `quiet` silences it."""
    from rich.console import Console

    return Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)


class Bars:
    """Progress bars for stages in bytes or items, on a terminal only and unless `quiet`; a context manager."""

    def __init__(self, quiet: bool) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self.console = console(quiet)
        self._counted: dict[tuple[str, int], Callable[..., None]] = {}
        self.progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=28),
            TaskProgressColumn("{task.percentage:>3.0f} %", text_format_no_percentage="     "),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def stage(self, name: str, total: int | None) -> Callable[..., None]:
        """Begin a stage of `total` bytes or items; return a function that takes the number done, and a note to show."""
        task = self.progress.add_task(name, total=total, detail="")
        return lambda done, detail="": self.progress.update(task, completed=done, detail=detail)

    def count(self, name: str, done: int, total: int, detail: str = "") -> None:
        """Show the number done in a stage of `total` items, which begins with its first call."""
        if (name, total) not in self._counted:
            self._counted[name, total] = self.stage(name, total)
        self._counted[name, total](done, detail)

    def waiting(self, name: str) -> Callable[..., None]:
        """Begin a stage of unknown length; return a function to call with the seconds so far, and with `done=True` at
        the end."""
        task = self.progress.add_task(name, total=None, detail="")

        def update(seconds: float, done: bool = False) -> None:
            end = {"total": 1.0, "completed": 1.0, "detail": ""} if done else {"detail": f"{seconds:.0f} s"}
            self.progress.update(task, **end)

        return update

    def message(self, text: str) -> None:
        """Print a line that stays above the bars."""
        self.console.print(text, markup=False)
