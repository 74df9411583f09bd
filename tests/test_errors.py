"""What all refusals have in common."""

import pytest

from fastbert.errors import CheckpointError, KernelError, UserError


def test_a_message_is_of_bounded_length() -> None:
    name = "x" * 100_000
    for kind in (UserError, CheckpointError, KernelError):
        message = str(kind(f"a.json: holds {name!r}; make it again"))
        assert len(message) == 1500
        assert message.startswith("a.json: holds 'xxx")
        assert message.endswith("xxx'; make it again")
        assert "xx ... xx" in message


@pytest.mark.parametrize("length", [0, 1, 1500])
def test_others_stay_as_they_are(length: int) -> None:
    assert str(UserError("y" * length)) == "y" * length
