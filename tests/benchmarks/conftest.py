"""Benchmarks of toys, whose figures mean nothing."""

import pytest

from fastbert.benchmarks.harness import measure


@pytest.fixture(autouse=True)
def brief_warming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each contender is called once before it is timed, and not until two rounds agree."""
    if request.path.name != "test_harness.py":  # of which it is the matter
        monkeypatch.setattr(measure, "warm", lambda contenders, **_: [call() for call in contenders.values()])
