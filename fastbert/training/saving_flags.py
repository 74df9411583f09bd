"""The flags of saving: in the background or at once, and which checkpoints are kept for ever.

Imports no torch: command lines are generated from these classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fastbert.errors import UserError
from fastbert.flags import OUTPUT, rare, switch

AsyncSave = Literal["auto", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class AsyncSaveFlags:
    """Whether checkpoints are written in the background."""

    GROUP: ClassVar = OUTPUT

    async_save: AsyncSave = switch("auto", bare="on")
    """Write checkpoints in the background, from a copy in memory (auto: for models from 32 MB on with their optimiser,
    where memory for the copy is available)."""

    def check_flags(self) -> None:
        """Raise `UserError` for other values."""
        if isinstance(self.async_save, bool):
            object.__setattr__(self, "async_save", "on" if self.async_save else "off")
        if self.async_save not in ("auto", "on", "off"):
            raise UserError(f"--async-save {self.async_save} must be auto, on or off")


@dataclass(frozen=True, kw_only=True)
class RetentionFlags:
    """Which checkpoints are never removed."""

    GROUP: ClassVar = OUTPUT

    keep_every: int | None = rare(None)
    """Save at multiples of this many steps, and keep these checkpoints for ever, beside the newest
    --keep-checkpoints."""

    def check_flags(self) -> None:
        """Raise `UserError` for values out of range."""
        if self.keep_every is not None and self.keep_every < 1:
            raise UserError(f"--keep-every {self.keep_every} must be at least 1")
