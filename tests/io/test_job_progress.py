"""The bar of a long job: when it appears, and when it does not."""

import sys
from typing import Any

import pytest

from fastbert.errors import UserError
from fastbert.io import job_progress as module
from fastbert.io.job_progress import job_progress


class Terminal:
    """Standard error that says it is a terminal."""

    def __init__(self, stream: object) -> None:
        self.stream = stream

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, show: bool | None, seconds: float
) -> str:
    """What a job of so many seconds leaves on standard error."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with job_progress("embedding", 4, show) as report:
        for done in range(5):
            now[0] += seconds / 5
            report(done)
    return capsys.readouterr().err


def test_a_bar_is_shown_on_request_or_where_a_job_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(capsys, monkeypatch, None, 60.0) == "", "no terminal"
    with monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stderr", Terminal(sys.stderr))
        assert shown(capsys, patch, None, 0.5) == ""
        assert "embedding" in shown(capsys, patch, None, 60.0)
        assert shown(capsys, patch, False, 60.0) == ""
        assert "100 %" in shown(capsys, patch, True, 0.5)


def test_only_three_values_are_known() -> None:
    value: Any = "yes"
    with pytest.raises(UserError, match=r"^show_progress_bar='yes' must be True, False or None$"):
        job_progress("x", 1, value).__enter__()
