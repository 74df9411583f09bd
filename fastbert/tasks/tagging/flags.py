"""Flags of tagging."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TaggingFlags:
    """The context of sentences."""

    context_tokens: int = 0
    """Tagging: tokens of neighbouring sentences of the same document added on each side of a sentence, without tags."""
