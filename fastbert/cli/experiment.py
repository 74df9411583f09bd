"""`fastbert experiment`: the comparisons of the BERT paper at a chosen scale."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from fastbert.cli.checks import check_folder, check_new_folder
from fastbert.errors import UserError
from fastbert.experiments.names import EXPERIMENTS
from fastbert.flags import DATA, MACHINE, OUTPUT, TRAINING, DeviceFlags, rare, require, required

EXAMPLES = (
    "fastbert experiment ablation --scale smoke --out runs/ablation",
    "fastbert experiment ablation --scale mini --data sets/ --out runs/ablation-mini",
)


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The texts and task sets."""

    GROUP: ClassVar = DATA

    what: Annotated[str | None, tyro.conf.Positional] = required(", ".join(EXPERIMENTS), name="WHAT")
    """The experiment: ablation, size, features, masking, baselines, transfer, layers, distillation, blimp, polysemy."""
    data: Path | None = None
    """Folder of corpora (wiki-en/, books-en/) and task sets (finetune/) (default: the text that comes with Python, and
    small sets made of it, whose scores mean nothing)."""
    words: tuple[str, ...] = rare(())
    """Words that polysemy compares in their contexts (default: bank, play and apple; in the text that comes with
    Python call, type and file)."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    """The sizes of models and runs."""

    GROUP: ClassVar = TRAINING

    scale: Literal["smoke", "mini", "small"] = "smoke"
    """Sizes of all runs: smoke takes seconds and shows that everything runs, mini about two hours on two cores, small
    half a day."""
    seeds: int | None = None
    """Seeds of fine-tuning (default: those of the scale, 2 or 3)."""
    steps: int | None = None
    """Optimiser steps of each pre-training run (default: those of the scale)."""
    reuse: tuple[Path, ...] = ()
    """Folders of other experiments at the same scale, on the same data: finished pre-training runs with equal settings
    are copied from there."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The experiment's folder."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = required("the folder of the experiment")
    """Folder of the experiment: summary.json, table.md, chart.png, and a folder per run. The same command continues a
    half-finished experiment."""


@dataclass(frozen=True, kw_only=True)
class _Machine(DeviceFlags):
    """The device."""

    GROUP: ClassVar = MACHINE


@dataclass(frozen=True, kw_only=True)
class Config(_Machine, _Output, _Training, _Data):
    """Run an experiment of the BERT paper, or of the systems that it is compared with, at a chosen scale: every system
    on the same text, tokenizer, steps and task sets, with several seeds."""


def check(config: Config) -> None:
    """Raise `UserError` for what can be found wrong before torch is imported."""
    what = require(config, "what")
    if what not in EXPERIMENTS:
        raise UserError(f"WHAT {what!r} is not one of {', '.join(EXPERIMENTS)}")
    if config.words and what != "polysemy":
        raise UserError(f"--words belongs to polysemy, not to {what}; leave it out")
    check_folder("--data", config.data)
    for folder in config.reuse:
        check_folder("--reuse", folder)
    check_new_folder("--out", require(config, "out"), parents=True)
    for name in ("seeds", "steps"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} {value} must be at least 1")


def _command(config: Config) -> str:
    """Return the command as a summary holds it, with names in place of this machine's folders."""
    parts = ["fastbert", "experiment", require(config, "what"), "--scale", config.scale]
    for name in ("seeds", "steps"):
        if getattr(config, name) is not None:
            parts += [f"--{name}", str(getattr(config, name))]
    parts += ["--words", *config.words] if config.words else []
    parts += ["--device", config.device] if config.device != "auto" else []
    parts += ["--data", "DATA"] if config.data is not None else []
    parts += ["--reuse", *(folder.name for folder in config.reuse)] if config.reuse else []
    return shlex.join([*parts, "--out", require(config, "out").name or "."])


def run(config: Config, *, quiet: bool = False) -> int:
    """Run the experiment and print its table."""
    from fastbert.cli.training_view import TrainingView
    from fastbert.doctor import examine
    from fastbert.experiments.registry import run_experiment
    from fastbert.experiments.summary import text_table
    from fastbert.io.progress import Bars
    from fastbert.training.stopping import Stopped

    diagnosis = examine()
    machine: dict[str, Any] = {
        "cpu": diagnosis.cpu.model,
        "cores": diagnosis.cpu.usable_cores,
        "cpu_capability": diagnosis.cpu.level,
        "gpu": diagnosis.gpus[0].name if diagnosis.gpus else None,
    }
    out = require(config, "out")
    with Bars(quiet) as bars:
        try:
            summary = run_experiment(
                require(config, "what"),
                config.scale,
                out,
                data_folder=config.data,
                seeds=config.seeds,
                steps=config.steps,
                device=config.device,
                words=config.words,
                reuse=config.reuse,
                command=_command(config),
                machine=machine,
                versions={name: text for name, text in diagnosis.versions.items() if text and name != "system"},
                reporter=TrainingView(bars).reporter(),
            )
        except Stopped:
            bars.message("stopped; the same command continues")
            raise
    print(text_table(summary))
    print(f"{out / 'table.md'}, {out / 'chart.png'}, {out / 'summary.json'}")
    return 0
