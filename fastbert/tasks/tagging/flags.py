"""Flags of tagging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastbert.flags import rare


@dataclass(frozen=True, kw_only=True)
class TaggingFlags:
    """The context of sentences."""

    GROUP: ClassVar = "With --task tagging"

    context_tokens: int = rare(0)
    """Tokens of neighbouring sentences of the same document added on each side of a sentence, without tags."""
