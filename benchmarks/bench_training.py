"""Compare training steps on the CPU: losses and gradients first, then speed, and memory part by part.

    python benchmarks/bench_training.py --quick
    python benchmarks/bench_training.py --json rows.json --chart rows.png
    python benchmarks/bench_training.py --contenders bf16 --workloads base wiki --text wiki.txt --vocab vocab.txt
    python benchmarks/bench_training.py --workloads mini --profile
    python benchmarks/bench_training.py --family modernbert-base --json rows.json
    python benchmarks/bench_training.py --loss-curve 200 --chart curve.png

A step consists of forward pass, backward pass, clipping to norm 1 and AdamW (fused, weight decay on matrices only),
with dropout. All contenders start from the same folder of weights and get the same batches: packed for fastbert, padded
to the longest sequence for others. bf16 is autocast over weights in fp32. docs/benchmarks.md explains the columns.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastbert import cpu_capability
from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu import command
from fastbert.benchmarks.cpu.command import CpuOptions, choose
from fastbert.benchmarks.cpu.families import FAMILIES
from fastbert.benchmarks.cpu.lineup import Result, measure_all
from fastbert.benchmarks.harness import command_line
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.suite import Case, Workshop, contender_cases
from fastbert.benchmarks.training import loss_curve, report, workloads
from fastbert.benchmarks.training.contender import REHEARSAL, TrainingContender
from fastbert.benchmarks.training.lineup import TrainingLineup
from fastbert.benchmarks.training.loss_curve import Curves
from fastbert.benchmarks.training.workloads import Sources, TrainingWorkload
from fastbert.config import BertConfig
from fastbert.errors import UserError

KIND = "training"
# Compiling takes minutes, so it takes part only when named.
NAMED_ONLY = "torch.compile"
MOST_STEPS = 100_000


@dataclass(frozen=True, kw_only=True)
class Options(CpuOptions):
    """The selection and size of the measurement: `quick` uses four short sequences per step; a named model replaces
    base and mini, in a loss curve the demonstration's model; torch.compile takes part only if named."""

    text: Path | None = None
    """Text for wiki-en, one sentence per line, and for the loss curve; None: random tokens, and Python's docs."""
    vocab: Path | None = None
    """The vocab.txt for `text`; None: one is learned from it."""
    checkpoint: Path | None = None
    """A model folder to fine-tune; None: random weights of MiniLM's size."""
    lengths: Path | None = None
    """Lengths of the sequences to fine-tune on, one per line; None: drawn like those of SST-2."""
    profile: bool = False
    """Also profile a step."""
    loss_curve: int | None = None
    """Instead, train a small model for this many steps and compare losses."""
    family: str | None = None
    """Masked LM of another family in its released shape, one of `FAMILIES`, beside transformers' own; None: BERT."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.family is not None:
            if self.family not in FAMILIES:
                raise UserError(f"--family {self.family} is not one of {', '.join(FAMILIES)}")
            self._check_alone("family", ("model", "text", "vocab", "checkpoint", "lengths", "loss_curve"))
        if self.loss_curve is not None:
            self._check_curve(self.loss_curve)
        for flag, path in (("text", self.text), ("vocab", self.vocab), ("lengths", self.lengths)):
            if path is not None and not path.exists():
                raise UserError(f"--{flag} {path}: no such file")
        if self.vocab is not None and self.text is None:
            raise UserError("--vocab belongs to --text: without a text, tokens are random")
        if self.checkpoint is not None:
            BertConfig.from_pretrained(self.checkpoint)
        self.names()
        self.builders()

    def _check_curve(self, steps: int) -> None:
        if not 1 <= steps <= MOST_STEPS:
            raise UserError(f"--loss-curve {steps} must be from 1 to {MOST_STEPS:,} steps")
        self._check_alone(
            "loss-curve", ("contenders", "workloads", "vocab", "checkpoint", "lengths", "profile", "rounds")
        )

    def _check_alone(self, flag: str, others: Sequence[str]) -> None:
        """Raise `UserError` if one of the other options has a value."""
        for name in others:
            if getattr(self, name) not in (None, (), False):
                raise UserError(f"--{name.replace('_', '-')} does not apply to --{flag}: omit one of them")

    @property
    def sources(self) -> Sources:
        """Return the sources of the workloads."""
        return Sources(
            quick=self.quick,
            family=self.family,
            model=self.model,
            text=self.text,
            vocab=self.vocab,
            checkpoint=self.checkpoint,
            lengths=self.lengths,
        )

    @property
    def curve_config(self) -> BertConfig:
        """Return the model of a loss curve: the demonstration's unless one is named."""
        if self.model is not None:
            return BertConfig.preset(self.model)
        if self.quick:
            return BertConfig.preset("tiny")
        from fastbert.training.demo import SHAPE

        return SHAPE

    def names(self) -> list[str]:
        """Return the selected contenders."""
        selected = choose("contender", peers.names(KIND), self.contenders)
        named = any("compile" in part for part in self.contenders)
        return [name for name in selected if named or not name.startswith(NAMED_ONLY)]

    def builders(self) -> dict[str, Callable[[], TrainingWorkload]]:
        """Return the selected workloads by name, each as a function that builds it."""
        by_name = workloads.builders(self.sources)
        return {name: by_name[name] for name in choose("workload", list(by_name), self.workloads)}


def run(options: Options, say: Say, progress: Progress | None = None) -> Result | Curves:
    """Measure speed, or compare losses if `loss_curve` is set. `say` receives lines for the user; `progress` the
    completed steps, all steps and the next one's name."""
    cpu_capability.current()  # raises for a wrong FASTBERT_CPU before a contender fails with it
    progress = progress or (lambda *_: None)
    if options.loss_curve is not None:
        return _curves(options, options.loss_curve, say, progress)
    # All are built before the first is measured, so that a bad file is reported at once.
    workloads = [build() for build in options.builders().values()]
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as folder:
        return measure_all(workloads, lambda workload: measure(workload, options, Path(folder), say), progress)


def measure(workload: TrainingWorkload, options: Options, folder: Path, say: Say) -> Result:
    """Measure one workload in new processes, so that their memory contains nothing of the others."""
    say(f"{workload.name}: {workload.note}, {workload.operations / 1e9:,.4g} GFLOP")
    model = save_model(folder / "model", workload)
    lineup = TrainingLineup(
        KIND, options.names(), options.thread_count, model=model, isolate=options.isolate, folder=folder, say=say
    )
    lineup.profiles = options.profile
    try:
        with lineup:
            return lineup.measure(workload, options.round_count)
    finally:
        shutil.rmtree(model)


def save_model(folder: Path, workload: TrainingWorkload) -> Path:
    """Write the weights from which all contenders of a workload start, and those of the rehearsal."""
    import torch

    from fastbert.models.registry import head_class

    torch.manual_seed(workloads.SEED)  # for a head that the checkpoint lacks
    kind = head_class(workload.config, workload.head)
    rehearsal = workloads.rehearsal(workload.head, workload.config)
    for target, source in ((folder, workload), (folder / REHEARSAL, rehearsal)):
        if source.checkpoint is not None:
            labels = workloads.LABELS
            model = kind.from_pretrained(source.checkpoint, dtype=torch.float32, num_labels=labels)
        else:
            model = kind(source.config)
            model.init_weights(seed=workloads.SEED)
        model.save_pretrained(target)
    return folder


def _curves(options: Options, steps: int, say: Say, progress: Progress) -> Curves:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(options.thread_count)
    try:
        with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
            return loss_curve.measure(options.curve_config, steps, options.text, Path(temporary), say, progress)
    finally:
        torch.set_num_threads(before)


def show(measured: Result | Curves) -> None:
    """Print the results."""
    if isinstance(measured, Curves):
        loss_curve.show(measured)
    else:
        report.show(measured)


def publish(measured: Result | Curves, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    if isinstance(measured, Curves):
        if json is not None:
            loss_curve.write(json, measured, options.thread_count)
        if chart is not None:
            title = command.title("Loss without dropout", ("fastbert-engine", "torch"), options.thread_count)
            loss_curve.chart(chart, measured, title)
        return
    packages = ("fastbert-engine", *peers.distributions(KIND))
    benchmark, what = KIND, "Training steps"
    if options.family is not None:
        benchmark, what = f"{KIND}-{options.family}", f"Masked-LM training steps of {options.family}"
    command.publish(
        measured, options, json, chart, benchmark=benchmark, packages=packages, what=what, draw=report.chart
    )


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`."""
    builders = Options(quick=not full).builders()

    def build(workshop: Workshop, name: str) -> tuple[TrainingWorkload, Path]:
        workload = workshop.once(f"{name}, workload", lambda _: builders[name]())
        return workload, workshop.once(f"{name}, model", lambda folder: save_model(folder, workload))

    return contender_cases(KIND, KIND, builders, build, contender=TrainingContender)


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    quick, model = "a tiny model, few short sequences, three rounds", "base and mini, quick tiny"
    parser = command.parser(__doc__, quick=quick, model=model)
    parser.add_argument("--family", metavar="NAME", help=f"masked LM of another family: {', '.join(FAMILIES)}")
    parser.add_argument("--text", type=Path, help="text of wiki-en (one sentence per line) or of the loss curve")
    parser.add_argument("--vocab", type=Path, help="vocab.txt for --text (default: learned from it)")
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="a model to fine-tune (default: random)")
    parser.add_argument("--lengths", type=Path, help="lengths to fine-tune on, one per line (default: like SST-2's)")
    parser.add_argument("--profile", action="store_true", help="also profile a step")
    parser.add_argument("--loss-curve", type=int, metavar="STEPS", help="compare losses over this many steps instead")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
