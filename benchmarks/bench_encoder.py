"""Compare BERT encoders on the CPU: hidden states first, then real tokens per second and latency.

    python benchmarks/bench_encoder.py --quick
    python benchmarks/bench_encoder.py --json rows.json --chart rows.png
    python benchmarks/bench_encoder.py --contenders fastbert openvino --workloads lognormal latency-16
    python benchmarks/bench_encoder.py --matmuls
    python benchmarks/bench_encoder.py --sweep --json rows.json
    python benchmarks/bench_encoder.py --largest-batch --memory-gb 8
    python benchmarks/bench_encoder.py --family modernbert-base --json rows.json
    python benchmarks/bench_encoder.py --family deberta-v3-base --sweep --json rows.json
    python benchmarks/bench_encoder.py --peer-python zentorch=environment/bin/python

Weights and tokens are random with a fixed seed; all contenders load the same folder. Others get padded batches with
their attention mask, fastbert the same sequences packed. With a data folder (--data, else FASTBERT_DATA) there are
batches with the lengths of real texts too. docs/benchmarks.md explains the measures and the columns.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert import cpu_capability
from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu import command, families, growth, largest_batch, real_lengths, report, workloads
from fastbert.benchmarks.cpu.command import PeerOptions, choose
from fastbert.benchmarks.cpu.families import FAMILIES
from fastbert.benchmarks.cpu.lineup import Lineup, Result, measure_all
from fastbert.benchmarks.cpu.workloads import Workload
from fastbert.benchmarks.harness import command_line, records
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.suite import Case, Workshop, contender_cases
from fastbert.benchmarks.harness.texts import find_data
from fastbert.config import BertConfig
from fastbert.errors import UserError

RECORDS = {"encoder": "encoder", "matmul": "matmuls"}  # by kind of contender


@dataclass(frozen=True, kw_only=True)
class Options(PeerOptions):
    """The selection and size of the measurement: `quick` uses an eighth of the sequences; the default model is base."""

    matmuls: bool = False
    """Measure the encoder's matmuls instead of whole encoders."""
    family: str | None = None
    """Another family's encoder in its released shape, one of `FAMILIES`, beside transformers' own; None: BERT."""
    sweep: bool = False
    """BERT: measure how its time grows, with sequences, length, width and threads, instead. A family: also measure its
    full batches, from one text of 8 tokens to 4,096 tokens."""
    largest_batch: bool = False
    """Measure how many sequences of 128 and of 512 tokens fit into memory instead."""
    memory_gb: float | None = None
    """That memory in 10^9 bytes; None: what is available."""
    data: Path | None = None
    """The data folder, for batches with the lengths of real texts; None: FASTBERT_DATA, else the one beside the
    clone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.family is not None and self.family not in FAMILIES:
            raise UserError(f"--family {self.family} is not one of {', '.join(FAMILIES)}")
        if self.family is not None and (self.matmuls or self.model is not None):
            raise UserError("--family has one shape and whole encoders: leave out --model and --matmuls")
        if self.sweep and self.matmuls:
            raise UserError("--sweep measures whole encoders: leave out --matmuls")
        if self.largest_batch and (self.matmuls or self.sweep or self.family is not None or not self.isolate):
            raise UserError(
                "--largest-batch measures BERT's encoders, each in a process: leave out --matmuls, --sweep, --family"
                " and --no-isolate"
            )
        if self.memory_gb is not None and not self.largest_batch:
            raise UserError(f"--memory-gb {self.memory_gb:g} is for --largest-batch: add it, or leave this flag out")
        if self.memory_gb is not None and not self.memory_gb > 0:
            raise UserError(f"--memory-gb {self.memory_gb:g} must be more than 0")
        self.names()
        self.chosen()

    @property
    def kind(self) -> str:
        """Return the kind of contender."""
        return "matmul" if self.matmuls else "encoder"

    @property
    def grows(self) -> bool:
        """Return whether the growth of BERT's time is measured."""
        return self.sweep and self.family is None

    @property
    def record(self) -> str:
        """Return the name of the benchmark in its record."""
        if self.family is not None:
            return f"encoder-{self.family}"
        if self.largest_batch:
            return "encoder-memory"
        return "encoder-growth" if self.grows else RECORDS[self.kind]

    def names(self) -> list[str]:
        """Return the selected contenders."""
        # The exports of other runtimes take minutes, and not every family has one: they take part when named.
        usual = () if self.family is None else ("fastbert", "accelerated", "transformers")
        usual = growth.CONTENDERS if self.grows else usual
        return choose("contender", peers.names(self.kind), self.contenders or usual)

    def chosen(self) -> Sequence[Workload]:
        """Return the selected workloads."""
        made: Sequence[Workload]
        if self.grows:
            made = growth.workloads(self.preset, self.thread_count, self.quick)
        elif self.largest_batch:
            made = largest_batch.workloads(self.config)
        elif self.family is not None:
            made = families.batches(FAMILIES[self.family], self.quick)
            made = made + (families.sweep(FAMILIES[self.family], self.quick) if self.sweep else [])
        elif self.matmuls:
            made = workloads.matmuls(self.config, self.quick)
        else:
            data = find_data(self.data)
            made = workloads.batches(self.config, self.quick)
            made = made + ([] if data is None else real_lengths.batches(self.config, data, self.quick))
        by_name = {workload.name: workload for workload in made}
        return [by_name[name] for name in choose("workload", list(by_name), self.workloads)]


def run(options: Options, say: Say, progress: Progress | None = None) -> Result:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    cpu_capability.current()  # raises for a wrong FASTBERT_CPU before a contender fails with it
    pythons = options.pythons(options.kind)
    progress = progress or (lambda *_: None)

    def start(model: Path | None, threads: int, folder: Path) -> Lineup:
        names, isolate = options.names(), options.isolate
        return EncoderLineup(
            options.kind, names, threads, model=model, isolate=isolate, folder=folder, say=say, pythons=pythons
        )

    def start_preset(preset: str, threads: int, folder: Path) -> Lineup:
        return start(save_model(folder / "model", BertConfig.preset(preset)), threads, folder)

    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder, rounds, chosen = Path(temporary), options.round_count, options.chosen()
        if options.grows:
            swept = [work for work in chosen if isinstance(work, growth.GrowthWorkload)]
            return growth.measure_growth(swept, start_preset, rounds, folder, progress)
        model = None if options.matmuls else _model(folder / "model", options)
        if options.largest_batch:
            memory = largest_batch.memory_bytes(options.memory_gb)
            with largest_batch.MemoryLineup(
                options.kind, options.names(), options.thread_count, model=model, isolate=True, folder=folder, say=say,
                pythons=pythons, memory=memory, config=options.config,
            ) as memories:  # fmt: skip
                return measure_all(chosen, lambda workload: memories.measure(workload, rounds), progress)
        with start(model, options.thread_count, folder) as lineup:
            return measure_all(chosen, lambda workload: lineup.measure(workload, rounds), progress)


class EncoderLineup(Lineup):
    """The encoders or matmuls that take part."""

    def measure(self, workload: Workload, rounds: int) -> Result:
        """Say what is measured; compare, then time, every contender that can run here."""
        self.say(f"{workload.name}: {workload.note or f'{workload.operations / 1e9:,.2f} GFLOP'}")
        return super().measure(workload, rounds)


def _model(folder: Path, options: Options) -> Path:
    """Write the model that is measured as a Hugging Face folder; return it."""
    if options.family is None:
        return save_model(folder, options.config)
    return families.save_model(folder, FAMILIES[options.family], options.quick)


def save_model(folder: Path, config: BertConfig) -> Path:
    """Write a model with random weights as a Hugging Face folder. Biases and LayerNorm weights are random too, so that
    the comparison detects a contender that omits one."""
    import torch

    from fastbert.models import BertModel

    generator = torch.Generator().manual_seed(workloads.SEED)
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


def show(result: Result, console: Any = None) -> None:
    """Print the tables, and the contenders that were not measured."""
    fits = any(largest_batch.DETAIL in row.details for row in result.rows)
    (largest_batch.show if fits else report.show)(result, console)


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    packages = ("fastbert-engine", *peers.distributions(options.kind))
    if options.largest_batch:
        if json is not None:
            records.write(json, records.record(options.record, largest_batch.record_rows(result), packages))
        return
    what = options.family or f"{'Matmuls of BERT' if options.matmuls else 'BERT'} {options.preset}"
    command.publish(result, options, json, chart, benchmark=options.record, packages=packages, what=what)


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`."""
    options = Options(quick=not full)
    made = {workload.name: workload for workload in options.chosen()}

    def build(workshop: Workshop, name: str) -> tuple[Workload, Path]:
        return made[name], workshop.once("model", lambda folder: save_model(folder, options.config))

    return contender_cases("encoder", "encoder", made, build)


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = command.parser(__doc__, quick="a tiny model, few sequences, three rounds", model="base, quick tiny")
    parser.add_argument("--family", metavar="NAME", help=f"another family: {', '.join(FAMILIES)}")
    sweep = "growth over batches, lengths, widths and threads; with --family, also its full batches up to 4,096 tokens"
    parser.add_argument("--sweep", action="store_true", help=sweep)
    parser.add_argument("--largest-batch", action="store_true", help="measure what fits into memory instead")
    parser.add_argument("--memory-gb", type=float, metavar="GB", help="the memory (default: what is available)")
    parser.add_argument("--data", type=Path, help="data folder, for lengths of real texts (default: FASTBERT_DATA)")
    command.add_peer_python(parser)
    parser.add_argument("--matmuls", action="store_true", help="measure matmuls instead of whole encoders")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
