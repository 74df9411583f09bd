"""`fastbert bench`: throughput against the alternatives, here and now: table, JSON, chart."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fastbert.cli.common import Bars
from fastbert.config import PresetName
from fastbert.errors import UserError

# Flags that belong to one of the things to measure; the others take part in both.
ONLY_FOR = {
    "tokenizer": ("data", "text", "vocab"),
    "encoder": ("device", "model", "workloads", "rounds", "products"),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Measure fastbert beside every alternative that is installed; outputs are compared before anything is timed."""

    what: Annotated[Literal["tokenizer", "encoder"], tyro.conf.Positional] = "tokenizer"
    """What to measure: the tokenizer, or inference of an encoder."""
    quick: bool = False
    """Little to do and fewer rounds: 2 MB of text in all, or a tiny encoder."""
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
    """Who takes part; default: all that are installed. tokenizer: fastbert nanotoken flash_tokenizer huggingface;
    encoder: all with one of these parts in the name, such as fastbert openvino bf16."""
    threads: int | None = None
    """tokenizer: threads that are compared with one (default: 2); encoder: threads of everybody (default: all)."""
    device: Literal["cpu"] | None = None
    """encoder: where it runs; only the CPU is measured here (benchmarks/gpu.py measures GPUs)."""
    model: PresetName | None = None
    """encoder: its size (default: base; with --quick tiny)."""
    workloads: tuple[str, ...] = ()
    """encoder: only those with one of these parts in the name: lognormal full-128 full-512 latency-16 latency-128."""
    rounds: int | None = None
    """encoder: turns of each contender (default: 7; with --quick 3)."""
    products: bool = False
    """encoder: matrix products by themselves instead of the whole encoder."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Measure, print the table, write the files."""
    flags = {field.name: getattr(config, field.name) for field in fields(config)}
    # By identity: 0 equals False, but was given, and is refused by name.
    given = {name: value for name, value in flags.items() if value is not None and value is not False and value != ()}
    for what, names in ONLY_FOR.items():
        wrong = [name for name in names if name in given and what != config.what]
        if wrong:
            raise UserError(f"--{wrong[0]} belongs to `fastbert bench {what}`, not to `fastbert bench {config.what}`")
    for name in ("what", "json", "chart"):
        given.pop(name, None)
    return (_encoder if config.what == "encoder" else _tokenizer)(config, given, quiet)


def _tokenizer(config: Config, given: dict[str, Any], quiet: bool) -> int:
    # By name, since in the tree fastbert.benchmarks has its home outside of the package.
    bench_tokenizer = import_module("fastbert.benchmarks.bench_tokenizer")
    report = import_module("fastbert.benchmarks.report")
    rows = _measured(bench_tokenizer, bench_tokenizer.Options(**given), quiet)
    report.show(rows)
    bench_tokenizer.publish(rows, config.json, config.chart)
    return 0


def _encoder(config: Config, given: dict[str, Any], quiet: bool) -> int:
    bench_encoder = import_module("fastbert.benchmarks.bench_encoder")
    cpu_report = import_module("fastbert.benchmarks.cpu_report")
    options = bench_encoder.Options(**given)
    bench_encoder.check_files(config.json, config.chart)
    result = _measured(bench_encoder, options, quiet)
    cpu_report.show(result)
    bench_encoder.publish(result, options, config.json, config.chart)
    return 0


def _measured(benchmark: Any, options: Any, quiet: bool) -> Any:
    """What the benchmark's `run` returns, with a bar of its steps."""
    with Bars(quiet) as bars:
        update: Any = None

        def progress(done: int, total: int, name: str) -> None:
            nonlocal update
            update = update or bars.stage("measuring", total)
            update(done, name)

        return benchmark.run(options, bars.message, progress)
