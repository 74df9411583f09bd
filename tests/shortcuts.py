"""What tests leave out because it takes long and is the same each time: flushing to disk, and drawing most figures.

No test survives a power failure, so nothing waits for the disk. Of the figures that the tests of a file write, the
first of each drawing function is rendered; later ones get that picture's bytes. The fixture `every_figure` renders all.
Commands that are killed or run in several processes (`warm_server`) render none.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any

_file: Path | None = None
_pictures: dict[tuple[CodeType, str], bytes] = {}
draw_all = False
"""True renders every figure."""


def install() -> None:
    """Take the shortcuts in this process."""
    os.fsync = lambda descriptor: None
    if importlib.util.find_spec("matplotlib") is not None:
        from matplotlib.figure import Figure

        Figure.savefig = _saver(Figure.savefig)  # type: ignore[method-assign]


def draw_nothing() -> None:
    """Leave the picture out of every figure's file in this process, whose figures no test looks at."""
    if importlib.util.find_spec("matplotlib") is not None:
        from matplotlib.figure import Figure

        Figure.savefig = lambda figure, target, **options: Path(target).write_bytes(b"figure")  # type: ignore[method-assign]


def enter(file: Path) -> None:
    """Render the first figure of each function again if the next test is in another file."""
    global _file
    if file != _file:
        _file = file
        _pictures.clear()


def _saver(render: Any) -> Any:
    """Return a `savefig` that renders the first figure of each function and format."""

    def savefig(figure: Any, target: Any, **options: Any) -> None:
        key = (_drawing_function(), str(options.get("format")))
        if draw_all or key not in _pictures:
            render(figure, target, **options)
            _pictures[key] = Path(target).read_bytes()
        else:
            Path(target).write_bytes(_pictures[key])

    return savefig


def _drawing_function() -> CodeType:
    """Return the function whose `with figure_file(...)` ends."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.endswith(("/io/figures.py", "/contextlib.py")):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_code
