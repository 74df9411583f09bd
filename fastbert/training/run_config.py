"""The flags of a run as a frozen dataclass, those that all runs share among them: stored as JSON, and compared with the
stored ones on --resume.

Imports no torch: command lines are generated from the subclasses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from fastbert.errors import UserError
from fastbert.flags import MACHINE, OUTPUT, DeviceFlags, flag, rare
from fastbert.io.locations import is_remote, local_path
from fastbert.training.optimizer_flags import OptimizerFlags
from fastbert.training.tracking_flags import TrackingFlags

DISTILLATION = "Distillation"
"""The title of the flags for a teacher."""


@dataclass(frozen=True, kw_only=True)
class DistillationFlags:
    """The losses of distillation."""

    GROUP: ClassVar = DISTILLATION

    distill: Literal["distilbert", "tinybert"] = rare("distilbert")
    """Losses: soft targets and last hidden states, or all hidden states and attention scores too."""
    temperature: float = rare(2.0)
    """Temperature of the teacher's soft targets."""
    soft_weight: float = rare(0.5)
    """Weight of the soft targets in the loss, 0 to 1; the rest is the loss of the labels, or of the masked tokens."""


@dataclass(frozen=True, kw_only=True)
class TrainingMachineFlags(DeviceFlags):
    """Device and dtypes of a run, and recomputation."""

    GROUP: ClassVar = MACHINE

    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Dtype of matmuls; fp16 needs a GPU."""
    checkpoint_activations: bool = rare(False)
    """Store only each layer's input and recompute activations in the backward pass: less memory, a third more time."""
    deterministic: bool = rare(False)
    """Use only deterministic algorithms, also on GPUs."""


@dataclass(frozen=True, kw_only=True)
class RunFolderFlags:
    """The log of a run, and the choice between continuing and replacing an earlier one in its folder."""

    GROUP: ClassVar = OUTPUT

    resume: bool = False
    """Continue the run in --out, or start it if there is none; flags that are left out are the run's own."""
    overwrite: bool = False
    """Replace the run in --out."""
    log_every: int = rare(10)
    """Steps between lines of metrics.jsonl; the first step is always written."""


@dataclass(frozen=True, kw_only=True)
class RecordedFlags:
    """Base of a run's flags, which its folder records and --resume compares; they have a folder `out` too."""

    CHANGEABLE: ClassVar[frozenset[str]]
    """Flags that may have a different value when a run is resumed."""
    _given: ClassVar[frozenset[str]] = frozenset()

    def marked(self, given: Collection[str]) -> Self:
        """Return a copy that knows which flags were `given`, by field: on --resume they count even where their value is
        the default. Copies of the copy do not know it."""
        copy = replace(self)
        object.__setattr__(copy, "_given", frozenset(given))
        return copy

    def check_groups(self) -> None:
        """Call `check_flags` of each base class that defines it: groups of flags check themselves."""
        for base in type(self).__mro__:
            if check := vars(base).get("check_flags"):
                check(self)

    def require(self, *ranges: tuple[str, bool, str]) -> None:
        """Raise `UserError` for the first flag that is out of range, given by name, whether it holds, and in words."""
        for name, holds, range_in_words in ranges:
            if not holds:
                raise UserError(f"{flag(name)} {getattr(self, name)} must be {range_in_words}")

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON can store it."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the configuration that `to_dict` stored. Raises `UserError` for unknown keys of a newer version."""
        types = {item.name: str(item.type) for item in fields(cls)}
        unknown = sorted(values.keys() - types.keys())
        if unknown:
            raise UserError(f"the run's configuration holds {', '.join(unknown)}, unknown here: update fastbert")
        return cls(**{name: _typed(value, types[name]) for name, value in values.items()})

    def resumed_from(self, saved: Self) -> Self:
        """Return the configuration to continue `saved` with: its own, where this one has the default and was not
        `marked` with the flag.

        Raises `UserError` for a flag that would make it a different run; see `CHANGEABLE`.
        """
        merged = {item.name: getattr(saved, item.name) for item in fields(saved)}
        for item in fields(self):
            value, stored = getattr(self, item.name), merged[item.name]
            if item.name in ("out", "resume", "overwrite") or value == stored:
                continue
            if value == item.default and (value is None or item.name not in self._given):
                continue
            if _same_files(value, stored, is_location="Location" in str(item.type)):
                continue
            if item.name not in self.CHANGEABLE:
                name = flag(item.name)
                raise UserError(
                    f"{name} {_shown(value)} differs from the run being resumed, which has {_shown(stored)};"
                    f" leave {name} out, or start another run with another --out"
                )
            self.check_change(item.name, value, stored)
            merged[item.name] = value
        return type(self)(**{**merged, "out": getattr(self, "out"), "resume": True, "overwrite": False})  # noqa: B009

    def check_change(self, name: str, value: Any, stored: Any) -> None:
        """Raise `UserError` where a changeable flag cannot have this value in a resumed run."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(OptimizerFlags, DistillationFlags, TrainingMachineFlags, TrackingFlags, RunFolderFlags, RecordedFlags):
    """Base of `PretrainConfig` and `FinetuneConfig`."""


def _same_files(value: Any, stored: Any, *, is_location: bool = False) -> bool:
    """Tell whether two paths or locations, or two lists of them, lead to the same files, whatever the current directory
    was."""
    if isinstance(value, tuple) and isinstance(stored, tuple) and len(value) == len(stored):
        return all(_same_files(a, b, is_location=is_location) for a, b in zip(value, stored, strict=True))
    kinds = Path | str if is_location else Path
    if not (isinstance(value, kinds) and isinstance(stored, kinds)) or is_remote(value) or is_remote(stored):
        return bool(value == stored)
    return local_path(value).resolve() == local_path(stored).resolve()


def _shown(value: Any) -> str:
    """Format a flag's value as on the command line."""
    if value is None or value == ():
        return "none"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _typed(value: Any, annotation: str) -> Any:
    """Return a JSON value as the type that a field's annotation names: paths and tuples."""
    if value is None:
        return None
    if annotation.startswith("tuple"):
        value = [value] if isinstance(value, str) else value  # of a run from when the flag took one value
        return tuple(Path(item) if "Path" in annotation else item for item in value)
    return Path(value) if "Path" in annotation else value
