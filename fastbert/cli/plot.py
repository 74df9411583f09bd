"""`fastbert plot`: compare runs in a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastbert.cli.common import output, require


@dataclass(frozen=True, kw_only=True)
class Config:
    """Draw the loss and accuracy of one run or several."""

    runs: tuple[Path, ...] = ()
    """Folders of runs (or metrics.jsonl files)."""
    out: Path = Path("loss.png")
    """The picture to write: .png, .pdf or .svg."""
    x: Literal["step", "tokens", "seconds"] = "step"
    """What the horizontal axis counts."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Draw the picture."""
    from fastbert.training.plot import plot_runs

    plot_runs(require(config.runs, "--runs", "the folders of the runs to draw"), config.out, x_axis=config.x)
    output(str(config.out))
    return 0
