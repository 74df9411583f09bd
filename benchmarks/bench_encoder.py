"""BERT encoders on the CPU side by side: hidden states compared first, then real tokens a second and latency.

    python benchmarks/bench_encoder.py --quick
    python benchmarks/bench_encoder.py --json rows.json --chart rows.png
    python benchmarks/bench_encoder.py --contenders fastbert openvino --workloads lognormal latency-16
    python benchmarks/bench_encoder.py --products

Weights and tokens are random with a fixed seed; everybody loads the same folder. Others get padded batches with their
attention mask, fastbert the same sequences packed. docs/benchmarks.md says what is measured and what the columns mean.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastbert import cpu_level
from fastbert.benchmarks import cpu_report, cpu_workloads, harness, peers
from fastbert.benchmarks.cpu_measures import Lineup, Result, Say
from fastbert.benchmarks.cpu_workloads import Workload
from fastbert.config import PRESETS, BertConfig
from fastbert.errors import UserError

MOST_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure, and how much of it."""

    quick: bool = False
    """An eighth of the sequences, three rounds, and the tiny model unless another is named."""
    device: str = "cpu"
    """Where: "cpu" only."""
    model: str | None = None
    """A preset's name; None: base, tiny if `quick`."""
    contenders: tuple[str, ...] = ()
    """Only contenders whose name holds one of these; none: all."""
    workloads: tuple[str, ...] = ()
    """Only workloads whose name holds one of these; none: all."""
    products: bool = False
    """Matrix products by themselves instead of whole encoders."""
    threads: int | None = None
    """Threads of every contender; None: all cores that the process may use."""
    rounds: int | None = None
    """Turns of each contender; None: seven, three if `quick`."""
    isolate: bool = True
    """Each contender in a process of its own."""

    def __post_init__(self) -> None:
        if self.device != "cpu":
            raise UserError(f"--device {self.device}: this measures the CPU; benchmarks/gpu.py measures GPUs")
        if self.model is not None and self.model not in PRESETS:
            raise UserError(f"--model {self.model} is not one of {', '.join(PRESETS)}")
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise UserError(f"--threads {self.threads} must be from 1 to {MOST_THREADS}")
        if self.rounds is not None and self.rounds < 1:
            raise UserError(f"--rounds {self.rounds} must be at least 1")
        self.names()
        self.chosen()

    @property
    def kind(self) -> str:
        """The kind of contender."""
        return "product" if self.products else "encoder"

    @property
    def config(self) -> BertConfig:
        """The model."""
        return BertConfig.preset(self.model or ("tiny" if self.quick else "base"))

    def names(self) -> list[str]:
        """The contenders that were asked for."""
        return choose("contender", peers.names(self.kind), self.contenders)

    def chosen(self) -> list[Workload]:
        """The workloads that were asked for."""
        make = cpu_workloads.products if self.products else cpu_workloads.batches
        found = {workload.name: workload for workload in make(self.config, self.quick)}
        return [found[name] for name in choose("workload", list(found), self.workloads)]


def choose(what: str, names: Sequence[str], parts: Sequence[str]) -> list[str]:
    """The names that hold one of the parts; all without parts. Raises `UserError` for a part that none holds."""
    for part in parts:
        if not any(part in name for name in names):
            raise UserError(f"no {what} is called like {part!r}; there are {', '.join(names)}")
    return [name for name in names if not parts or any(part in name for part in parts)]


def run(options: Options, say: Say, progress: Callable[[int, int, str], None] | None = None) -> Result:
    """Measure; `say` takes lines for people, `progress` the steps done, all steps and the name of the next."""
    cpu_level.level()  # raises for a wrong FASTBERT_CPU, which would else be our contenders' failure
    progress = progress or (lambda *_: None)
    workloads = options.chosen()
    rounds = options.rounds or (3 if options.quick else 7)
    threads = options.threads or len(os.sched_getaffinity(0))
    result = Result()
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = Path(temporary)
        model = None if options.products else save_model(folder / "model", options.config)
        lineup = Lineup(
            options.kind, options.names(), threads, model=model, isolate=options.isolate, folder=folder, say=say
        )
        with lineup:
            for index, workload in enumerate(workloads):
                progress(index, len(workloads), workload.name)
                say(f"{workload.name}: {workload.note or f'{workload.operations / 1e9:,.2f} GFLOP'}")
                found = lineup.measure(workload, rounds)
                result.rows += found.rows
                result.absent += found.absent
        progress(len(workloads), len(workloads), "")
    return result


def save_model(folder: Path, config: BertConfig) -> Path:
    """Write a model with random weights as a Hugging Face folder. Biases and the weights of LayerNorms are random too,
    so that whoever forgets one is found out."""
    import torch

    from fastbert.models import BertModel

    generator = torch.Generator().manual_seed(cpu_workloads.SEED)
    model = BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * config.initializer_range)
            else:
                parameter.add_(noise * 0.1)
    model.save_pretrained(folder)
    return folder


def check_files(json: Path | None, chart: Path | None) -> None:
    """Refuse now what could not be written after a long measurement."""
    if chart is not None and chart.suffix not in cpu_report.PICTURES:
        raise UserError(f"--chart {chart} must end in {', '.join(cpu_report.PICTURES)}")
    for flag, path in (("json", json), ("chart", chart)):
        if path is not None and path.is_dir():
            raise UserError(f"--{flag} {path} is a folder: name a file")


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write what was measured to the files that were asked for."""
    packages = ("fastbert-engine", *peers.distributions(options.kind))
    if json is not None:
        cpu_report.write(json, result, packages)
    if chart is not None and result.rows:
        where, found = harness.machine(), harness.versions(packages)
        versions = ", ".join(f"{name} {found[name]}" for name in found if name not in ("python", "numpy"))
        what = "Products of BERT" if options.products else "BERT"
        shape = f"{options.model or ('tiny' if options.quick else 'base')}, {result.rows[0].threads} threads"
        cpu_report.chart(chart, result, title=f"{what} {shape}, {where['cpu']}\n{versions}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model, few sequences, three rounds")
    parser.add_argument("--device", default="cpu", help="cpu (the default, and all there is here)")
    parser.add_argument("--model", metavar="PRESET", help=f"{', '.join(PRESETS)} (default: base, quick tiny)")
    parser.add_argument("--contenders", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    parser.add_argument("--workloads", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    parser.add_argument("--products", action="store_true", help="matrix products by themselves")
    parser.add_argument("--threads", type=int, help="threads of every contender (default: all cores)")
    parser.add_argument("--rounds", type=int, help="turns of each contender (default: 7, quick 3)")
    parser.add_argument(
        "--isolate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="each contender in a process of its own, asked in turns (default: yes)",
    )
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    parser.add_argument("--chart", type=Path, help="picture to write, .png, .pdf or .svg")
    given = vars(parser.parse_args(arguments))
    json, chart = given.pop("json"), given.pop("chart")
    for name in ("contenders", "workloads"):
        given[name] = tuple(given[name])
    try:
        options = Options(**given)
        check_files(json, chart)
        result = run(options, lambda line: print(line, file=sys.stderr, flush=True))
    except UserError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: interrupted\n")
    cpu_report.show(result)
    publish(result, options, json, chart)
    return 0


if __name__ == "__main__":
    sys.exit(main())
