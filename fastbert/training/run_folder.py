"""The folder of a pre-training run: check that a run may start or continue there, and record completed stages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.training.config import PretrainConfig
from fastbert.training.device import KERNEL_TABLE
from fastbert.training.profiling import FILE as PROFILE
from fastbert.training.reporter import Reporter
from fastbert.training.run_files import (
    TOKENIZER,
    VOCABULARY,
    can_be_replaced,
    looks_like_run,
    read_record,
    stored_run,
    write_record,
)
from fastbert.training.schedule_log import FILE as SCHEDULE
from fastbert.training.step_log import FILE as STEPS
from fastbert.training.trackers.progress import FOLDER as TRACKING

LOSS_CURVE = "loss.png"
# All that a run writes to its folder, and that --overwrite removes.
RUN_FILES = ("config.json", VOCABULARY, "metrics.jsonl", STEPS, SCHEDULE, LOSS_CURVE, KERNEL_TABLE, PROFILE)
_STAGES = {"model": dict, "vocabulary": str, "data": str, "teacher": str, "initial": str, "finished": dict}
RUN_FOLDERS = ("checkpoints", "model", "generator", "data", TOKENIZER, TRACKING)


@dataclass
class Run:
    """A run's flags, and the results of its stages in config.json, each None until the stage is complete."""

    config: PretrainConfig
    model: dict[str, Any] | None = None
    vocabulary: str | None = None
    data: str | None = None
    teacher: str | None = None
    initial: str | None = None
    finished: dict[str, Any] | None = None

    @classmethod
    def of(cls, config: PretrainConfig, saved: dict[str, Any]) -> Run:
        """Return the run that `write` or a checkpoint stored. Raises `UserError`."""
        try:
            stages = {name: saved[name] for name in _STAGES if saved.get(name) is not None}
            wrong = next((name for name, value in stages.items() if not isinstance(value, _STAGES[name])), None)
            if wrong is not None:
                raise TypeError(f"{wrong} is {stages[wrong]!r}")
            return cls(config.resumed_from(PretrainConfig.from_dict(saved["run"])), **stages)
        except TypeError as error:
            raise UserError(f"{config.out / 'config.json'}: not a run's configuration ({error})") from None

    @property
    def flags(self) -> dict[str, Any]:
        """Return the flags as config.json and checkpoints store them."""
        return replace(self.config, resume=False, overwrite=False).to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Return the run as JSON can store it, for the other processes of torchrun."""
        stages = {name: getattr(self, name) for name in _STAGES}
        return {"run": {"run": self.config.to_dict(), **stages}}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Run:
        """Return the run that `to_dict` stored."""
        return cls(PretrainConfig.from_dict(values["run"]), **{name: values.get(name) for name in _STAGES})

    def write(self) -> None:
        """Write config.json: at the start, after each stage, and on --resume, which may change --steps and others."""
        self.config.out.mkdir(parents=True, exist_ok=True)
        write_record(self.config.out, {"run": self.flags, **{name: getattr(self, name) for name in _STAGES}})


def open_folder(config: PretrainConfig, reporter: Reporter) -> Run:
    """Return the run to start or to continue. Raises `UserError` for a folder that holds a run, without --resume and
    --overwrite."""
    out, missing = config.out, "nothing to train on"
    if config.resume:
        run = _run_to_resume(config, reporter)
        if run is not None:
            return run
        if (out / "metrics.jsonl").exists():
            raise UserError(f"--out {out}: holds a metrics.jsonl but no run to resume; choose another --out")
        config, missing = replace(config, resume=False), f"--out {out}: holds no run to resume, and {missing} is given"
    elif _holds_run(out) and not config.overwrite:
        raise UserError(f"--out {out}: already holds a run; continue it with --resume or replace it with --overwrite")
    if not config.corpus and config.data is None:
        raise UserError(f"{missing}: give --corpus with files, folders or globs, or --data with prepared shards")
    if _holds_run(out) and not looks_like_run(out, "run"):
        raise UserError(f"--out {out}: holds no fastbert run, so --overwrite does not empty it; choose another --out")
    return Run(config)


def _holds_run(out: Path) -> bool:
    """Return True if training has started in a folder, or files with the names of a run's are there."""
    if not any((out / name).exists() for name in ("config.json", "checkpoints", "metrics.jsonl")):
        return False
    # A run that failed before its first step may be replaced; a later one has a vocabulary and shards worth keeping.
    metrics = out / "metrics.jsonl"
    has_steps = metrics.exists() and metrics.stat().st_size > 0
    return has_steps or not can_be_replaced(out, "run", PretrainConfig.CHANGEABLE, ("model",))


def _run_to_resume(config: PretrainConfig, reporter: Reporter) -> Run | None:
    """Return the run to continue, with changed flags applied; None where there is none."""
    saved = stored_run(config.out, "run", PretrainConfig.CHANGEABLE, reporter.on_message)
    if saved is None:
        return None
    run = Run.of(config, saved)
    before = PretrainConfig.from_dict(saved["run"])
    if config.tokenizer not in (None, before.tokenizer) and run.vocabulary is not None:
        tokenizer = load_tokenizer(config.tokenizer)
        if tokenizer.fingerprint != run.vocabulary:
            raise UserError(f"--tokenizer {config.tokenizer}: has a different vocabulary than the run; leave it out")
    if any(getattr(run.config, name) != getattr(before, name) for name in ("steps", "epochs", "hours")):
        run.finished = None
    return run


def recorded_run(folder: Path) -> Run:
    """Return the run in `folder`, with the results of its stages. Raises `UserError` where there is none."""
    saved = read_record(folder, "run", PretrainConfig.CHANGEABLE)
    if saved is None:
        raise UserError(f"{folder / 'config.json'}: no such file; name the folder of a run")
    return Run.of(PretrainConfig(out=folder), saved)


def read_run(folder: Path) -> PretrainConfig:
    """Return the configuration of the run in `folder`. Raises `UserError` where there is none."""
    return recorded_run(folder).config
