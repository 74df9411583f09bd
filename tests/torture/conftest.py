"""The fixture `campaign` of the scorecard's checks."""

from __future__ import annotations

from pathlib import Path

import pytest
from torture.campaign import Campaign
from torture.ledger import LEDGER
from torture.scorecard import CHECKS


@pytest.fixture
def campaign(request: pytest.FixtureRequest, seed: int) -> Campaign:
    """Runs the check of a test that is decorated with `scored`."""
    marker = request.node.get_closest_marker("scored")
    assert marker is not None, "a test with a campaign is decorated with `scored`"
    check = CHECKS[marker.args[0]]
    options = request.config.option
    return Campaign(check, options.full, seed * check.short, options.minutes, Path(options.ledger or LEDGER))
