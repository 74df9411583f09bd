"""The folder of a pre-training run: whether one may begin or continue there, and how far its stages have come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training import checkpoint, run_tokenizer
from fastbert.training.config import CHANGEABLE, PretrainConfig
from fastbert.training.kernel_table import FILE as KERNEL_TABLE
from fastbert.training.loop import Reporter
from fastbert.training.run_record import looks_like_run, read_record, write_record

LOSS_CURVE = "loss.png"
# What a run leaves in its folder, and all that --overwrite removes.
RUN_FILES = (
    "config.json",
    run_tokenizer.VOCABULARY,
    "metrics.jsonl",
    LOSS_CURVE,
    KERNEL_TABLE,
)
RUN_FOLDERS = ("checkpoints", "model", "data", run_tokenizer.FOLDER)


@dataclass
class Run:
    """A run's flags, and what config.json holds beside them: each is None until that stage of the run is complete."""

    config: PretrainConfig
    model: dict[str, Any] | None = None
    vocabulary: str | None = None
    data: str | None = None
    teacher: str | None = None
    finished: dict[str, Any] | None = None

    @classmethod
    def of(cls, config: PretrainConfig, saved: dict[str, Any]) -> Run:
        """Read what `write` wrote, or what a checkpoint holds of it. Raises `UserError`."""
        try:
            parts = {"model": dict, "vocabulary": str, "data": str, "teacher": str, "finished": dict}
            kept = {name: saved[name] for name in parts if saved.get(name) is not None}
            wrong = next((name for name, value in kept.items() if not isinstance(value, parts[name])), None)
            if wrong is not None:
                raise TypeError(f"{wrong} is {kept[wrong]!r}")
            return cls(config.resumed_from(PretrainConfig.from_dict(saved["run"])), **kept)
        except TypeError as error:
            raise UserError(f"{config.out / 'config.json'}: not a run's configuration ({error})") from None

    @property
    def flags(self) -> dict[str, Any]:
        """The flags as config.json and checkpoints hold them."""
        return replace(self.config, resume=False, overwrite=False).to_dict()

    def write(self) -> None:
        """Write config.json: when the run begins, when a stage is complete, and when it is resumed, since --steps and
        others may be new."""
        parts = {name: getattr(self, name) for name in ("model", "vocabulary", "data", "teacher", "finished")}
        self.config.out.mkdir(parents=True, exist_ok=True)
        write_record(self.config.out, {"run": self.flags, **parts})


def open_folder(config: PretrainConfig, reporter: Reporter) -> Run:
    """The run to start or to continue. Refuses a folder that holds a run unless it is to be continued or replaced."""
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
    """Tell whether training has begun in a folder, or something else lies there under the name of its files."""
    if any((out / name).exists() for name in ("checkpoints", "metrics.jsonl")):
        return True
    if not (out / "config.json").exists():
        return False
    # A run that ended while its vocabulary and shards were made has nothing that is worth a refusal.
    try:
        saved = read_record(out, "run", CHANGEABLE)
    except UserError:
        return True
    return saved is None or saved["model"] is not None


def _run_to_resume(config: PretrainConfig, reporter: Reporter) -> Run | None:
    """The run that is to be continued, with the flags that are new; None where there is none."""
    out = config.out
    saved = read_record(out, "run", CHANGEABLE)
    if saved is None:
        last = checkpoint.last_state(out / "checkpoints")
        if last is None:
            return None
        folder, state = last
        reporter.on_message(f"{out / 'config.json'} is missing: the configuration is taken from {folder}")
        held = checkpoint.require(state, "configuration", dict)
        saved = {**held, "vocabulary": state.get("vocabulary"), "data": state.get("data")}
    run = Run.of(config, saved)
    before = PretrainConfig.from_dict(saved["run"])
    if config.tokenizer not in (None, before.tokenizer) and run.vocabulary is not None:
        given = WordPieceTokenizer.from_pretrained(config.tokenizer)
        if given.fingerprint != run.vocabulary:
            raise UserError(f"--tokenizer {config.tokenizer}: has a different vocabulary than the run; leave it out")
    if (run.config.steps, run.config.hours) != (before.steps, before.hours):
        run.finished = None
    return run


def read_run(folder: Path) -> PretrainConfig:
    """The configuration of the run in `folder`."""
    saved = read_record(folder, "run", CHANGEABLE)
    if saved is None:
        raise UserError(f"{folder / 'config.json'}: no such file; name the folder of a run")
    return Run.of(PretrainConfig(out=folder), saved).config
