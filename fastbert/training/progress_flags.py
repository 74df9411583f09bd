"""The flags that change over a pre-training run, and those of several processes. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fastbert.errors import UserError
from fastbert.flags import MACHINE, TRAINING, flag, rare
from fastbert.training.recipes import RECIPES, RecipeName
from fastbert.training.schedules import ScheduledValue

LONGEST_SEQUENCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ProgressFlags:
    """Numbers that follow the progress of a run."""

    GROUP: ClassVar = TRAINING

    recipe: RecipeName | None = None
    """Named set of defaults, of which every flag that is given replaces one: bert-2018 (the paper), mosaicbert,
    modernbert, or short (minutes to hours on a small machine)."""
    mask_schedule: str | None = rare(None)
    """Fraction of masked tokens over the run, instead of --mask-prob: 0.3:0.15 falls linearly, 0.3@0.8,0.15 is 0.3 in
    the first 80 % of the run and then 0.15. Validation keeps --mask-prob."""
    batch_schedule: str | None = rare(None)
    """Sequences per step over the run, instead of --batch-size: 64:512@0.1,512 rises from 64 to 512 in the first 10 %
    of the run."""
    length_schedule: str | None = rare(None)
    """Tokens per sequence in phases, instead of --max-length: 128@0.9,512 is 128 in the first 90 % of the run and then
    512. Micro-batches of longer sequences have as many tokens."""
    on_nan: Literal["stop", "skip"] = rare("stop")
    """At a gradient that is NaN or infinite: stop with an error, or skip the step, and count it in the metrics."""

    on_spike: Literal["warn", "rollback", "ignore"] = rare("warn")
    """At a step whose loss is far above those before it: report it, or return to the last checkpoint and leave the step
    out, or nothing."""

    def check_flags(self) -> None:
        """Raise `UserError` for schedules out of range."""
        if self.recipe not in (None, *RECIPES):
            raise UserError(f"--recipe {self.recipe}: choose one of {', '.join(RECIPES)}")
        masks, batches = self.scheduled("mask_schedule"), self.scheduled("batch_schedule")
        if masks is not None and not (masks.smallest > 0 and masks.largest <= 1):
            raise UserError(f"--mask-schedule {self.mask_schedule}: fractions must be above 0 and at most 1")
        if batches is not None and batches.smallest < 1:
            raise UserError(f"--batch-schedule {self.batch_schedule}: batches must have at least 1 sequence")
        lengths = self.scheduled("length_schedule")
        for segment in () if lengths is None else lengths.segments:
            if segment.first != segment.last or segment.first != int(segment.first):
                raise UserError(
                    f"--length-schedule {self.length_schedule}: lengths are whole numbers in steps, such as 128@0.9,512"
                )
            if not 3 <= segment.first <= LONGEST_SEQUENCE:
                raise UserError(
                    f"--length-schedule {self.length_schedule}: lengths must be from 3 to {LONGEST_SEQUENCE:,} tokens"
                )

    def scheduled(self, name: str) -> ScheduledValue | None:
        """Return the schedule of a flag, None if it is not given. Raises `UserError` for a malformed one."""
        text = getattr(self, name)
        return None if text is None else ScheduledValue.parse(text, "--" + name.replace("_", "-"))


@dataclass(frozen=True, kw_only=True)
class ProcessFlags:
    """How the processes of torchrun share the work."""

    GROUP: ClassVar = MACHINE

    parallel: Literal["ddp", "fsdp"] = rare("ddp")
    """With several processes, started by torchrun: every process has the whole model (ddp), or a part of the weights,
    gradients and moments of each layer (fsdp)."""

    def check_flags(self) -> None:
        """Raise `UserError` for flags that do not work on shards."""
        if self.parallel != "fsdp":
            return
        for name, default in (("teacher", None), ("param_dtype", "fp32")):
            if getattr(self, name, default) != default:
                raise UserError(f"--parallel fsdp and {flag(name)} exclude each other; leave one out")
