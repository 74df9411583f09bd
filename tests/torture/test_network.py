"""Nothing reaches for a network: not imports, nor help, nor work on files of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torture.campaign import Campaign
from torture.scorecard import scored

TESTS = Path(__file__).resolve().parents[1]
LEAST = 800


@scored(row=17, unit="modules and commands", short=LEAST, full=LEAST, chunk=LEAST, goal="none opens a socket")
def test_no_network(campaign: Campaign, tmp_path: Path) -> None:
    """All modules are imported, all commands print help, models are trained, loaded and used without a network."""
    pytest.importorskip("tyro", reason="the command line needs tyro")

    def attempt(numbers: range) -> dict[str, float]:
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-W", "ignore", "-m", "torture.networkless", str(tmp_path)]
        command += ["training"] * campaign.full
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        counts = json.loads(done.stdout.splitlines()[-1])
        assert counts["done"] >= len(numbers), counts
        return {"modules": counts["modules"], "without_their_package": len(counts["missing"])}

    campaign.run(attempt)


def test_a_socket_would_be_seen() -> None:
    from torture.networkless import Network

    network = Network()
    network("socket.connect", (None, "/a/socket/of/files"))
    for event, arguments in (
        ("socket.connect", (None, ("127.0.0.1", 9))),
        ("socket.getaddrinfo", ("huggingface.co", 443, 0, 0, 0)),
        ("socket.bind", (None, ("", 0))),
    ):
        with pytest.raises(PermissionError):
            network(event, arguments)
    assert len(network.reached) == 3
