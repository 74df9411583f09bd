"""`fastbert plot`: compare runs in a picture or on an interactive page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fastbert.cli.checks import check_exists, check_file, check_new_file
from fastbert.errors import UserError
from fastbert.flags import require, required

SUFFIXES = (".png", ".pdf", ".svg")
PAGES = (".html", ".htm")
EXAMPLES = (
    "fastbert plot runs/mini runs/small --x seconds --out sizes.svg",
    "fastbert plot runs/sst2-bert runs/sst2-mini --html sst2.html",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Plot the loss and the accuracy or main metric of one or more runs, of pre-training or of fine-tuning, with their
    baselines, or write a page with all their metrics and settings."""

    run: Annotated[tuple[Path, ...], tyro.conf.Positional] = required(
        "the folders of the runs to plot", unless=("runs",), name="RUN", default=()
    )
    """Folders of runs (or metrics.jsonl files): of one kind in a picture, of any on a page."""
    runs: tuple[Path, ...] = ()
    """The same as RUN."""
    out: Path | None = None
    """Image file to write: .png, .pdf or .svg (default: loss.png, unless --html is given)."""
    html: Path | None = None
    """Web page to write, one file that needs no network: charts of all metrics with values under the pointer, a choice
    of runs and axes, last values, and the settings in which the runs differ."""
    x: Literal["step", "tokens", "seconds"] = "step"
    """Unit of the horizontal axis."""
    compare: str | None = None
    """Expected losses of pre-training to draw as a band in the image: mini, or the folder of another run (default: that
    with which the first run was compared)."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    if config.run and config.runs:
        raise UserError("--runs names the same as RUN; give the folders once")
    name = "RUN" if config.run else "--runs"
    for folder in config.run or config.runs:
        check_exists(name, folder)
        if folder.is_dir():
            check_file(name, folder / "metrics.jsonl")
    if config.out is not None and config.out.suffix not in SUFFIXES:
        raise UserError(f"--out {config.out}: must end in {', '.join(SUFFIXES)}; --html writes a page")
    if config.html is not None and config.html.suffix not in PAGES:
        raise UserError(f"--html {config.html}: must end in .html")
    check_new_file("--out", config.out)
    check_new_file("--html", config.html)
    if config.compare is not None:
        if config.out is None and config.html is not None:
            raise UserError(f"--compare {config.compare}: is drawn in the image; add --out")
        from fastbert.training.reference_curves import check_reference

        check_reference(config.compare)


def run(config: Config, *, quiet: bool = False) -> int:
    """Write the image, the page, or both."""
    runs = config.runs or require(config, "run")
    written = []
    if config.html is not None:
        from fastbert.training.run_page.page import write_page

        written.append(write_page(runs, config.html, x_axis=config.x))
    if config.out is not None or config.html is None:
        from fastbert.training.plot import plot_runs

        written.append(plot_runs(runs, config.out or Path("loss.png"), x_axis=config.x, compare=config.compare))
    print("\n".join(map(str, written)))
    return 0
