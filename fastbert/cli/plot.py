"""`fastbert plot`: plot runs for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastbert.cli.checks import check_exists, check_file, check_new_file
from fastbert.errors import UserError
from fastbert.flags import require, required

SUFFIXES = (".png", ".pdf", ".svg")
EXAMPLES = (
    "fastbert plot --runs runs/mine --out mine.png",
    "fastbert plot --runs runs/mini runs/small --x seconds --out sizes.svg",
    "fastbert plot --runs runs/sst2-bert runs/sst2-mini --out sst2.png",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Plot the loss and the accuracy or main metric of one or more runs, of pre-training or of fine-tuning, with their
    baselines."""

    runs: tuple[Path, ...] = required("the folders of the runs to plot", default=())
    """Folders of runs (or metrics.jsonl files), of one kind."""
    out: Path = Path("loss.png")
    """Image file to write: .png, .pdf or .svg."""
    x: Literal["step", "tokens", "seconds"] = "step"
    """Unit of the horizontal axis."""
    compare: str | None = None
    """Expected losses of pre-training to draw as a band: mini, or the folder of another run (default: that with which
    the first run was compared)."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    for folder in config.runs:
        check_exists("--runs", folder)
        if folder.is_dir():
            check_file("--runs", folder / "metrics.jsonl")
    if config.out.suffix not in SUFFIXES:
        raise UserError(f"--out {config.out}: must end in {', '.join(SUFFIXES)}")
    check_new_file("--out", config.out)
    if config.compare is not None:
        from fastbert.training.reference_curves import check_reference

        check_reference(config.compare)


def run(config: Config, *, quiet: bool = False) -> int:
    """Write the plot."""
    from fastbert.training.plot import plot_runs

    plot_runs(require(config, "runs"), config.out, x_axis=config.x, compare=config.compare)
    print(str(config.out))
    return 0
