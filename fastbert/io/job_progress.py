"""The bar of a function that works through many texts: on request, or by itself on a terminal if it takes long."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastbert.errors import UserError, require_package

if TYPE_CHECKING:
    from fastbert.io.progress import Stage

PATIENCE = 2.0  # seconds


@contextlib.contextmanager
def job_progress(
    name: str, total: float | None, show: bool | None, unit: str = "texts"
) -> Iterator[Callable[[float], None]]:
    """Yield a function to call with the number of units done.

    `show=True` shows a bar at once, or lines where there is no terminal; None a bar on a terminal after two seconds;
    False nothing. The total is None if it is unknown. Raises UserError for another value of `show`, and if a bar is
    asked for and rich is missing.
    """
    if show is not None and not isinstance(show, bool):
        raise UserError(f"show_progress_bar={show!r} must be True, False or None")
    if show:
        require_package("rich.console", "show_progress_bar=True needs the package rich: `pip install rich`")
    elif show is None:
        show = None if sys.stderr is not None and sys.stderr.isatty() and find_spec("rich") is not None else False
    if show is False:
        yield lambda done: None
        return
    began = time.monotonic()
    stages: list[Stage] = []
    with contextlib.ExitStack() as stack:

        def begin() -> Stage:
            from fastbert.io.progress import Bars

            stage = stack.enter_context(Bars(quiet=False)).stage(name, total, unit)
            stage.began = stage.newest = began
            return stage

        def update(done: float) -> None:
            if not stages and time.monotonic() - began > PATIENCE:
                stages.append(begin())
            if stages:
                stages[0](done)

        if show:
            stages.append(begin())
        yield update
