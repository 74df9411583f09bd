"""Compare fastbert with the libraries of docs/migration in one run: outputs first, then times, in turns.

    python benchmarks/bench_migration.py --quick --peer-python ctranslate2=environment/bin/python
    python benchmarks/bench_migration.py --json benchmarks/results/migration/avx2.json --peer-python
        bettertransformer=old/bin/python infinity=old/bin/python ipex=ipex/bin/python ctranslate2=ct2/bin/python
    python benchmarks/migration_pages.py

It is a selection of `bench_encoder` (BERT-base on batches of token ids) and `bench_embed` (MiniLM, from text to
vector), whose workloads have the names of these in front. Libraries that need other versions of torch or transformers
run in environments of their own; docs/benchmarks.md names the packages of each. Those that are absent are listed as not
measured. bf16 takes part where the processor multiplies it, or where --contenders names it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastbert.benchmarks import bench_embed, bench_encoder, peers
from fastbert.benchmarks.cpu import command, report
from fastbert.benchmarks.cpu.command import PeerOptions, choose
from fastbert.benchmarks.cpu.lineup import Result
from fastbert.benchmarks.harness import command_line, records
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.record_plan import BF16_CLASSES
from fastbert.benchmarks.harness.texts import find_data

BENCHMARK = "migration"
ENCODER, EMBED = "encoder", "embed"
CONTENDERS = {
    ENCODER: (
        *(f"{name} {dtype}" for name in ("fastbert", "accelerated") for dtype in ("fp32", "bf16", "int8")),
        *(
            f"{name} {dtype}"
            for name in ("transformers sdpa", "bettertransformer", "ipex")
            for dtype in ("fp32", "bf16")
        ),
        *(f"ctranslate2 {dtype}" for dtype in ("fp32", "int8")),
    ),
    EMBED: (
        *(f"fastbert {dtype}" for dtype in ("fp32", "bf16", "int8")),
        *(
            f"{name} {dtype} by 32"
            for name in ("sentence-transformers", "infinity torch")
            for dtype in ("fp32", "bf16")
        ),
        *(f"infinity onnxruntime {dtype} by 32" for dtype in ("fp32", "int8")),
    ),
}
BATCHES = ("lognormal", "full-128", "latency-16")  # of the encoder
TEXTS = 1000


@dataclass(frozen=True, kw_only=True)
class Options(PeerOptions):
    """The selection and size of the measurement: `quick` uses a tiny encoder, 200 texts and three rounds."""

    data: Path | None = None
    """The data folder; None: FASTBERT_DATA, else the one beside the clone."""
    texts: int | None = None
    """The number of texts of the embedders; None: 1,000, with `quick` 200."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("contender", [name for names in CONTENDERS.values() for name in names], self.contenders)
        choose("workload", [f"{kind}, {name}" for kind in CONTENDERS for name in self.known(kind)], self.workloads)
        self.parts()

    def known(self, kind: str) -> tuple[str, ...]:
        """Return the names of a benchmark's workloads that take part."""
        if kind == ENCODER:
            return BATCHES
        data = find_data(self.data)
        english = data is not None and (data / bench_embed.WIKIPEDIA).is_file()
        return (bench_embed.ENGLISH if english else bench_embed.PYTHON, bench_embed.QUERY)

    def names(self, kind: str) -> tuple[str, ...]:
        """Return the selected contenders of a kind."""
        if self.contenders:
            return tuple(name for name in CONTENDERS[kind] if any(part in name for part in self.contenders))
        multiplies = records.machine_class(records.machine()) in BF16_CLASSES
        return tuple(name for name in CONTENDERS[kind] if multiplies or " bf16" not in name or name == "fastbert bf16")

    def parts(self) -> dict[str, Any]:
        """Return the options of each benchmark that has a selected contender and workload."""
        made: dict[str, Any] = {}
        fields = ("quick", "device", "threads", "rounds", "isolate", "data")
        common = {name: getattr(self, name) for name in fields}
        for kind in CONTENDERS:
            workloads = [
                name
                for name in self.known(kind)
                if not self.workloads or any(part in f"{kind}, {name}" for part in self.workloads)
            ]
            names = self.names(kind)
            if not (workloads and names):
                continue
            selected = {
                **common, "contenders": names, "workloads": tuple(workloads), "peer_python": self._pythons_of(kind)
            }  # fmt: skip
            if kind == ENCODER:
                made[kind] = bench_encoder.Options(**selected, model=self.model)
            else:
                made[kind] = bench_embed.Options(**selected, texts=self.texts or (None if self.quick else TEXTS))
        return made

    def _pythons_of(self, kind: str) -> tuple[str, ...]:
        """Return the interpreters that are for contenders of a kind; those of no kind are the encoder's, which refuses
        them."""
        names = {other: [f"{name} " for name in peers.names(other)] for other in CONTENDERS}
        chosen = []
        for assignment in self.peer_python:
            begin = f"{assignment.partition('=')[0]} "
            kinds = [other for other in CONTENDERS if any(name.startswith(begin) for name in names[other])] or [ENCODER]
            chosen += [assignment] if kind in kinds else []
        return tuple(chosen)


RUNS: dict[str, Callable[..., Result]] = {ENCODER: bench_encoder.run, EMBED: bench_embed.run}


def run(options: Options, say: Say, progress: Progress | None = None) -> Result:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    result, progress = Result(), progress or (lambda *_: None)
    parts = options.parts()
    for kind, part in parts.items():  # a wrong interpreter ends the command before anything is measured
        part.pythons(kind)
    for kind, part in parts.items():
        measured = RUNS[kind](part, say, lambda step, steps, name, kind=kind: progress(step, steps, f"{kind}, {name}"))
        result.rows += [replace(row, workload=f"{kind}, {row.workload}") for row in measured.rows]
        result.absent += [absent._replace(workload=f"{kind}, {absent.workload}") for absent in measured.absent]
    return result


show: Callable[..., None] = report.show


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    used = [name for kind, names in CONTENDERS.items() for each in names for name in peers.packages(kind, each)]
    packages = ("fastbert-engine", *dict.fromkeys([*used, "numpy"]))
    command.publish(
        result, options, json, chart, benchmark=BENCHMARK, packages=packages, what="fastbert beside other libraries"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = command.parser(__doc__, quick="a tiny encoder, 200 texts, three rounds", model="base, quick tiny")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--texts", type=int, help="number of texts (default: 1,000, quick 200)")
    command.add_peer_python(parser)
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
