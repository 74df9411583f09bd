"""Compare BERT encoders on the CPU: hidden states first, then real tokens per second and latency.

    python benchmarks/bench_encoder.py --quick
    python benchmarks/bench_encoder.py --json rows.json --chart rows.png
    python benchmarks/bench_encoder.py --contenders fastbert openvino --workloads lognormal latency-16
    python benchmarks/bench_encoder.py --matmuls
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

from fastbert import cpu_capability
from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu import command, families, real_lengths, report, workloads
from fastbert.benchmarks.cpu.command import PeerOptions, choose
from fastbert.benchmarks.cpu.families import FAMILIES
from fastbert.benchmarks.cpu.lineup import Lineup, Result, measure_all
from fastbert.benchmarks.cpu.workloads import Workload
from fastbert.benchmarks.harness import command_line
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
    """Also measure full batches of a family, from one text of 8 tokens to 4,096 tokens."""
    data: Path | None = None
    """The data folder, for batches with the lengths of real texts; None: FASTBERT_DATA, else the one beside the
    clone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.family is not None and self.family not in FAMILIES:
            raise UserError(f"--family {self.family} is not one of {', '.join(FAMILIES)}")
        if self.family is not None and (self.matmuls or self.model is not None):
            raise UserError("--family has one shape and whole encoders: leave out --model and --matmuls")
        if self.sweep and self.family is None:
            raise UserError("--sweep goes through the sizes of a family's batches: name one with --family")
        self.names()
        self.chosen()

    @property
    def kind(self) -> str:
        """Return the kind of contender."""
        return "matmul" if self.matmuls else "encoder"

    @property
    def preset(self) -> str:
        """Return the model's name."""
        return self.model or ("tiny" if self.quick else "base")

    @property
    def config(self) -> BertConfig:
        """Return the model's configuration."""
        return BertConfig.preset(self.preset)

    def names(self) -> list[str]:
        """Return the selected contenders."""
        # The exports of other runtimes take minutes, and not every family has one: they take part when named.
        contenders = self.contenders or (() if self.family is None else ("fastbert", "accelerated", "transformers"))
        return choose("contender", peers.names(self.kind), contenders)

    def chosen(self) -> list[Workload]:
        """Return the selected workloads."""
        if self.family is not None:
            made = families.batches(FAMILIES[self.family], self.quick)
            made += families.sweep(FAMILIES[self.family], self.quick) if self.sweep else []
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
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = Path(temporary)
        model = None if options.matmuls else _model(folder / "model", options)
        names, threads, isolate = options.names(), options.thread_count, options.isolate
        lineup = Lineup(
            options.kind, names, threads, model=model, isolate=isolate, folder=folder, say=say, pythons=pythons
        )

        def measure(workload: Workload) -> Result:
            say(f"{workload.name}: {workload.note or f'{workload.operations / 1e9:,.2f} GFLOP'}")
            return lineup.measure(workload, options.round_count)

        with lineup:
            return measure_all(options.chosen(), measure, progress or (lambda *_: None))


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


show = report.show


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    packages = ("fastbert-engine", *peers.distributions(options.kind))
    what = options.family or f"{'Matmuls of BERT' if options.matmuls else 'BERT'} {options.preset}"
    benchmark = RECORDS[options.kind] if options.family is None else f"encoder-{options.family}"
    command.publish(result, options, json, chart, benchmark=benchmark, packages=packages, what=what)


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
    parser.add_argument("--sweep", action="store_true", help="also full batches of the family, up to 4,096 tokens")
    parser.add_argument("--data", type=Path, help="data folder, for lengths of real texts (default: FASTBERT_DATA)")
    command.add_peer_python(parser)
    parser.add_argument("--matmuls", action="store_true", help="measure matmuls instead of whole encoders")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
