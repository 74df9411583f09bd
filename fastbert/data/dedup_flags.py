"""The flag that drops repeated lines and documents of a corpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from fastbert.errors import UserError
from fastbert.flags import DATA, flag, switch

Dedup = Literal["off", "lines", "documents", "all"]


@dataclass(frozen=True, kw_only=True)
class DedupFlags:
    """The flag of commands that prepare a corpus."""

    GROUP: ClassVar = DATA

    dedup: Dedup = switch("off", bare="all", is_rare=False)
    """Drop what repeats: documents that are equal to an earlier one, lines (in prose: paragraphs) that are, or without
    a value both. Takes 10 to 20 bytes of memory per different line."""

    def check_flags(self) -> None:
        """Raise `UserError` for an unknown value, and for shards that are prepared already."""
        check_dedup(self.dedup)
        if self.dedup != "off" and getattr(self, "data", None) is not None:
            raise UserError(
                f"--dedup {self.dedup} is for --corpus, and {flag('data')} is prepared; give it to `fastbert prepare`"
            )


def check_dedup(mode: str) -> None:
    """Raise `UserError` for an unknown mode."""
    if mode not in get_args(Dedup):
        raise UserError(f"dedup={mode!r} must be one of {', '.join(get_args(Dedup))}")
