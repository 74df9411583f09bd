"""What all refusals have in common."""

import pytest

from fastbert.errors import CheckpointError, KernelError, UserError
from fastbert.vectors.word_vectors import UnknownWordError


def test_a_message_is_of_bounded_length() -> None:
    name = "x" * 100_000
    for kind in (UserError, CheckpointError, KernelError, UnknownWordError):
        message = str(kind(f"a.json: holds {name!r}; make it again"))
        assert len(message) == 1500
        assert message.startswith("a.json: holds 'xxx")
        assert message.endswith("xxx'; make it again")
        assert "xx ... xx" in message


@pytest.mark.parametrize("length", [0, 1, 1500])
def test_others_stay_as_they_are(length: int) -> None:
    assert str(UserError("y" * length)) == "y" * length


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31mred\x9b0m\x7f", r"\x1b[31mred\x9b0m\x7f"),
        ("\u202ereversed\u2029", r"\u202ereversed\u2029"),
        ("half \ud800", r"half \ud800"),
        ("caf\xe9 \u4e2d\u6587 \U0001f600 a\xa0b", "caf\xe9 \u4e2d\u6587 \U0001f600 a\xa0b"),
    ],
)
def test_a_message_is_a_line_that_steers_no_terminal(name: str, shown: str) -> None:
    assert str(UserError(f"{name}: no such file")) == f"{shown}: no such file"
