"""The flags of trackers and of the profiler, for pre-training and fine-tuning. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal, get_args

from fastbert.errors import UserError
from fastbert.flags import OUTPUT, rare

TrackerName = Literal["tensorboard", "wandb", "mlflow"]
TRACKERS: tuple[str, ...] = get_args(TrackerName)


@dataclass(frozen=True, kw_only=True)
class TrackingFlags:
    """Where a run's curves are shown beside its own metrics.jsonl, and whether its steps are profiled."""

    GROUP: ClassVar = OUTPUT

    track: tuple[TrackerName, ...] = rare(())
    """Trackers that get each line of metrics.jsonl too: tensorboard, wandb, mlflow (each needs its package). Projects,
    servers and offline modes are set by their own variables, such as WANDB_PROJECT and MLFLOW_TRACKING_URI."""
    track_dir: Path | None = rare(None)
    """Folder for the trackers' files, one for many runs (default: tracking/ in the run's folder)."""
    profile: bool = rare(False)
    """Profile a few steps after the warm-up: profile.json.gz in the run's folder, for chrome://tracing or Perfetto, and
    a table of the slowest operations."""
    profile_steps: int = rare(5)
    """Steps that --profile records."""

    def check_flags(self) -> None:
        """Raise `UserError` for values out of range."""
        for name in self.track:
            if name not in TRACKERS:
                raise UserError(f"--track {name}: choose among {', '.join(TRACKERS)}")
        if not 1 <= self.profile_steps <= 100:
            raise UserError(f"--profile-steps {self.profile_steps} must be from 1 to 100: a step's trace has megabytes")


CHANGEABLE = frozenset(("track", "track_dir", "profile", "profile_steps"))
"""The flags that may have other values when a run is resumed."""


def check_tracking(flags: TrackingFlags) -> None:
    """Raise `UserError` for a tracker whose package is not installed, and for a --track-dir that is a file."""
    for name in flags.track:
        if find_spec(name) is None:
            extra = "pip install 'fastbert-engine[tensorboard]'" if name == "tensorboard" else f"pip install {name}"
            raise UserError(f"--track {name}: the package {name} is not installed: `{extra}`, or leave it out")
    if flags.track_dir is not None and flags.track_dir.exists() and not flags.track_dir.is_dir():
        raise UserError(f"--track-dir {flags.track_dir}: is a file; give a folder")
