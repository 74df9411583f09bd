"""`fastbert bench`: throughput against the alternatives, here and now: table, JSON, chart."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fastbert.cli.common import Bars


@dataclass(frozen=True, kw_only=True)
class Config:
    """Measure fastbert beside every alternative that is installed; outputs are compared before anything is timed."""

    what: Annotated[Literal["tokenizer"], tyro.conf.Positional] = "tokenizer"
    """What to measure."""
    quick: bool = False
    """2 MB of text in all, fewer rounds: under a minute."""
    json: Path | None = None
    """File to write the rows to, each with machine, versions and commit."""
    chart: Path | None = None
    """Picture to write: .png, .pdf or .svg."""
    data: Path | None = None
    """Folder of real text and vocabularies; default: FASTBERT_DATA, else the text inside of Python is used."""
    text: Path | None = None
    """Your own text instead: a file with one text a line; needs --vocab."""
    vocab: Path | None = None
    """The vocab.txt for --text."""
    contenders: tuple[str, ...] = ()
    """Who takes part: fastbert nanotoken flash_tokenizer huggingface; default: all that are installed."""
    threads: int = 2
    """Threads that are compared with one."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Measure, print the table, write the files."""
    # By name, since in the tree fastbert.benchmarks has its home outside of the package.
    bench_tokenizer = import_module("fastbert.benchmarks.bench_tokenizer")
    report = import_module("fastbert.benchmarks.report")
    chosen = {field.name: getattr(config, field.name) for field in fields(config)}
    for name in ("what", "json", "chart"):
        del chosen[name]
    options = bench_tokenizer.Options(**chosen)
    with Bars(quiet) as bars:
        update: Any = None

        def progress(done: int, total: int, name: str) -> None:
            nonlocal update
            update = update or bars.stage("measuring", total)
            update(done, name)

        rows = bench_tokenizer.run(options, bars.message, progress)
    report.show(rows)
    bench_tokenizer.publish(rows, config.json, config.chart)
    return 0
