"""Row 11, for a server: signals under load cost no accepted request."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from draining import drained
from torture.campaign import Campaign
from torture.ledger import Figures
from torture.scorecard import scored


@scored(row=11, unit="signals", short=1, full=200, chunk=10, goal="every accepted request answered, exit code 0")
def test_signals_to_a_server(campaign: Campaign, tmp_path: Path) -> None:
    """SIGTERM, or SIGINT every fifth time, while eight clients ask `fastbert serve`; then its port is free."""
    pytest.importorskip("fastapi", reason="needs fastapi: pip install 'fastbert-engine[serve]'")
    from embedding import saved

    folder = saved(tmp_path / "embedder", 0)

    def end(numbers: range) -> Figures:
        answered = 0
        for number in numbers:
            answered += len(drained(folder, number, signal.SIGINT if number % 5 == 4 else signal.SIGTERM))
        return {"answered": answered}

    campaign.run(end)
