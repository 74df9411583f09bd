"""Progress of a command: bars on a terminal, and elsewhere a line from time to time with the same content.

Percentage, rate and time left are always there; a narrow terminal has fewer details, the last of them dropped first,
then a shorter bar.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

_GAP = 2
_LONGEST_NAME, _USUAL_NAME, _SHORTEST_NAME = 28, 10, 8
_VERY_NARROW, _NARROW, _WIDE = 70, 100, 140  # columns of a terminal
_BAR_WIDTHS = (12, 20, 28)  # on a narrow, a usual and a wide terminal
_SHORTEST_BAR = 4
_SHORTEST_TIME = 0.01  # seconds from which a rate is computed
_LINE_SECONDS = (10.0, 10.0, 20.0, 30.0)  # before the first lines of a stage; the last of them before all others


def console(quiet: bool = False) -> Any:
    """Return a rich console on standard error; `quiet` silences it."""
    from rich.console import Console

    return Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)


class Stage:
    """A stage with a bar; call it with the number done."""

    def __init__(self, bars: Bars, name: str, total: float | None, unit: str) -> None:
        self.bars = bars
        self.name: str = name
        self.total = total
        self.unit = unit
        self.done: float = 0.0
        self.counted: float = 0.0
        self.detail: str = ""
        self.given_rate: str = ""
        self.began: float = bars.clock()
        self.first: tuple[float, float, float] | None = None  # time and numbers of the first call
        self.newest: float = self.began
        self.ended: float | None = None
        self.lines: int = 0
        self.last_line: float = self.began

    def __call__(
        self, done: float, detail: str = "", *, counted: float | None = None, rate: str = "", name: str = ""
    ) -> None:
        """Show the number done, and details, the most important first, separated by two spaces.

        `counted` is the number of units for the rate, by default the number done; `rate` replaces the rate as a whole;
        `name` renames the stage.
        """
        if self.ended is not None:
            return
        self.newest = self.bars.clock()
        self.done, self.counted = done, done if counted is None else counted
        self.detail, self.given_rate, self.name = detail, rate, name or self.name
        if self.first is None:
            self.first = (self.newest, self.done, self.counted)
        if self.total is not None and done >= self.total:
            self.ended = self.newest
        self.bars.changed(self)

    def end(self) -> None:
        """End a stage whose total was not known, or not reached."""
        if self.ended is None:
            self.ended = self.newest
            self.bars.changed(self)

    @property
    def fraction(self) -> float | None:
        """The finished part, None without a total."""
        return 1.0 if self.ended is not None else self.done / self.total if self.total else None

    @property
    def percentage(self) -> str:
        """The finished part in per cent, 100 only at the end; empty without a total."""
        if self.fraction is None:
            return ""
        return f"{100 if self.ended is not None else min(99, int(100 * self.fraction))} %"

    @property
    def rate(self) -> str:
        """The units per second, or what the last call gave instead."""
        _, speed = self._speeds()
        return self.given_rate or (_rate(speed, self.unit) if speed and self.unit else "")

    @property
    def time(self) -> str:
        """The estimated time left, the time that an ended stage took, or that of one without a total so far."""
        if self.ended is not None:
            return f"in {_duration(self.ended - self.began)}"
        if not self.total:
            return f"for {_duration(self.bars.clock() - self.began)}"
        speed, _ = self._speeds()
        return f"{_duration((self.total - self.done) / speed)} left" if speed else "-:-- left"

    def line(self) -> str:
        """Return the stage as a line of a log file."""
        parts = [f"{self.name}:", self.percentage, self.rate, self.time, self.detail]
        return "  ".join(part for part in parts if part)

    def _speeds(self) -> tuple[float, float]:
        """Return the number done and the number counted per second so far, 0 while unknown.

        The time includes all that happens between calls, such as validations; what was done before the first of several
        calls, in this run or an earlier one, is left out, as it may include a warm-up.
        """
        since, done, counted = self.first or (self.began, 0.0, 0.0)
        if self.newest - since < _SHORTEST_TIME:
            since, done, counted = self.began, 0.0, 0.0
        seconds = self.newest - since
        if seconds < _SHORTEST_TIME:
            return 0.0, 0.0
        return (self.done - done) / seconds, (self.counted - counted) / seconds


class Bars:
    """Bars on a terminal, lines elsewhere, nothing if `quiet`; a context manager."""

    def __init__(self, quiet: bool, screen: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.live import Live

        self.console: Any = screen or console(quiet)
        self.clock = clock
        self.stages: list[Stage] = []
        self._counted: dict[tuple[str, int], Stage] = {}
        terminal = self.console.is_terminal and not self.console.is_dumb_terminal
        self._live = Live(get_renderable=self._table, console=self.console) if terminal and not quiet else None

    def __enter__(self) -> Bars:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            for stage in self.stages:
                stage.end()
        if self._live is not None:
            self._live.stop()

    def stage(self, name: str, total: float | None, unit: str = "bytes") -> Stage:
        """Begin a stage of `total` units, which may be unknown."""
        stage = Stage(self, name, total, unit)
        self.stages.append(stage)
        return stage

    def remove(self, stage: Stage) -> None:
        """Remove a stage from the screen, one that is part of another."""
        self.stages = [other for other in self.stages if other is not stage]

    def count(self, name: str, done: int, total: int, detail: str = "", unit: str = "steps") -> None:
        """Show the number done in a stage of `total` units, which begins with its first call."""
        if (name, total) not in self._counted:
            self._counted[name, total] = self.stage(name, total, unit)
        self._counted[name, total](done, detail)

    def waiting(self, name: str) -> Callable[..., None]:
        """Begin a stage of unknown length; return a function to call with the seconds so far, and with `done=True` at
        the end."""
        stage = self.stage(name, None, "")

        def update(seconds: float, done: bool = False) -> None:
            stage(seconds)
            if done:
                stage.end()

        return update

    def message(self, text: str) -> None:
        """Print a line that stays above the bars."""
        # A terminal would break lines within words.
        self.console.print(text, markup=False, soft_wrap=not self.console.is_terminal)

    def changed(self, stage: Stage) -> None:
        """Print the stage's line where there is no terminal and a line is due; called by the stage."""
        if self._live is not None:
            return
        now = self.clock()
        due = now - stage.last_line >= _LINE_SECONDS[min(stage.lines, len(_LINE_SECONDS) - 1)]
        if due or (stage.ended is not None and stage.lines):
            stage.lines, stage.last_line = stage.lines + 1, now
            self.message(stage.line())

    def _table(self) -> Any:
        """Return the stages, a line each, for the present width of the terminal."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        stages = list(self.stages)
        columns = self.console.width - 1  # a full line would wrap on some terminals
        rows = [(stage.percentage, stage.rate, stage.time) for stage in stages]
        fixed = [max((len(row[index]) for row in rows), default=0) for index in range(3)]
        fixed[0] = 5  # "100 %"
        # On a narrow terminal, the names of stages before the current one are cut.
        current = [stage for stage in stages if stage.ended is None or columns >= _NARROW] or stages[-1:]
        longest, most = (max((len(stage.name) for stage in group), default=0) for group in (current, stages))
        usual = min(most, _USUAL_NAME) if columns > _VERY_NARROW else 0
        name, bar, detail = _widths(columns, max(longest, usual), fixed)
        table = Table.grid(padding=(0, _GAP, 0, 0))
        for index, width in enumerate((name, bar, *fixed, detail)[: 6 if detail else 5]):
            number = index in (2, 3)
            table.add_column(width=width, no_wrap=True, overflow="ellipsis", justify="right" if number else "left")
        for stage, (percentage, rate, left) in zip(stages, rows, strict=True):
            fraction = stage.fraction
            drawn = ProgressBar(
                total=None if fraction is None else 1.0,
                completed=fraction or 0.0,
                width=bar,
                animation_time=self.clock(),
            )
            cells = (
                Text(stage.name),
                drawn,
                Text(percentage, style="progress.percentage"),
                Text(rate),
                Text(left, style="progress.remaining"),
                Text(_fitting(stage.detail, detail)),
            )
            table.add_row(*cells[: len(table.columns)])
        return table


def _widths(columns: int, name: int, fixed: Sequence[int]) -> tuple[int, int, int]:
    """Return the widths of a stage's name, its bar, and its details, which get what the others leave."""
    name = min(name, _LONGEST_NAME)
    bar = _BAR_WIDTHS[(columns >= _NARROW) + (columns >= _WIDE)]
    room = columns - sum(fixed) - 5 * _GAP - name - bar
    if room < 0:
        shorter = min(-room, bar - _SHORTEST_BAR)
        bar, room = bar - shorter, room + shorter
    if room < 0:
        shorter = min(-room, max(0, name - _SHORTEST_NAME))
        name, room = name - shorter, room + shorter
    return name, bar, max(0, room)


def _fitting(detail: str, columns: int) -> str:
    """Return as many of the details, from the left, as fit."""
    parts = detail.split("  ")
    while parts and len("  ".join(parts)) > columns:
        parts.pop()
    return "  ".join(parts)


def _rate(per_second: float, unit: str) -> str:
    if unit == "bytes":
        return f"{per_second / 1e6:,.1f} MB/s" if per_second >= 1e6 else f"{per_second / 1e3:,.0f} kB/s"
    if per_second < 1:
        return f"{60 * per_second:.2g} {unit}/min"
    return f"{per_second:,.0f} {unit}/s" if per_second >= 10 else f"{per_second:.1f} {unit}/s"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
