"""Errors of the library name flags where the command line set the value."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fastbert.cli.flag_names import in_flags


@dataclass(frozen=True)
class Flags:
    """Flags of a command."""

    vocab_size: int = 3
    layers: str = "a"
    hidden_size: int = 768


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("vocab_size=3 has no room; use at least 7", "--vocab-size 3 has no room; use at least 7"),
        ("32 words: use a smaller vocab_size", "32 words: use a smaller --vocab-size"),
        ("layers='a' must be last", "--layers a must be last"),
        ("vocab_size=30 is not the command line's", "vocab_size=30 is not the command line's"),
        ("t.tsv, line 1: no column 'vocab_size'", "t.tsv, line 1: no column 'vocab_size'"),
        ("runs/vocab_size/a.txt: no such file", "runs/vocab_size/a.txt: no such file"),
        ("m/config.json: hidden_size=768 must be a multiple", "m/config.json: hidden_size=768 must be a multiple"),
        ("these layers are many", "these layers are many"),
    ],
)
def test_arguments_become_flags(message: str, expected: str) -> None:
    assert in_flags(message, Flags()) == expected


def test_values_may_hold_backslashes() -> None:
    value = r"x\q\1.jsonl"
    assert in_flags(f"layers={value!r} must end", Flags(layers=value)) == f"--layers {value} must end"
    assert in_flags("vocab_size=4 is", Flags(vocab_size=4, layers=value)) == "--vocab-size 4 is"
