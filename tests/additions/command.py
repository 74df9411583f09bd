"""A throw-away command: `fastbert greet`."""

from additions import Addition, Edit

COMMAND = Addition(
    new={
        "fastbert/cli/greet.py": '''
"""`fastbert greet`: greet someone."""

from __future__ import annotations

from dataclasses import dataclass

EXAMPLES = ("fastbert greet", "fastbert greet --name you")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Greet."""

    name: str = "world"
    """Who is greeted."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Print the greeting."""
    print(f"hello, {config.name}")
    return 0
''',
        "tests/test_greet.py": '''
"""`fastbert greet` is listed, explained, run, and proposed where its name is misspelt."""

import pytest

from fastbert import cli


def test_greet(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["greet", "--name", "you"]) == 0
    assert capsys.readouterr().out == "hello, you\\n"
    assert cli.main(["greet", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "fastbert greet --name you" in printed
    assert "Who is greeted" in printed
    assert cli.main(["gret"]) == 2
    assert "did you mean `fastbert greet`?" in capsys.readouterr().err
    assert cli.main([]) == 0
    assert "greet someone" in capsys.readouterr().out
''',
    },
    edits={
        "fastbert/cli/__init__.py": (
            Edit('        "demo": ("demo",', '        "greet": ("greet", "greet someone"),\n        "demo": ("demo",'),
        ),
    },
)
