"""The pinned dependencies have no published vulnerability, where a service of advisories can be reached."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"


def test_no_pinned_version_has_a_known_vulnerability(request: pytest.FixtureRequest) -> None:
    """In full runs only: it asks a service on the network."""
    if not request.config.option.full:
        pytest.skip("asks a service on the network; run with --full")
    if importlib.util.find_spec("pip_audit") is None:
        pytest.skip("needs pip-audit: pip install pip-audit")
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run(
        [*command, "--requirement", str(CONSTRAINTS)], capture_output=True, text=True, timeout=600, check=False
    )
    if not done.stdout.startswith("{"):
        pytest.skip(f"pip-audit could not ask: {done.stderr.strip().splitlines()[-1]}")
    packages = json.loads(done.stdout)["dependencies"]
    audited = {package["name"]: package["vulns"] for package in packages if "vulns" in package}
    pinned = re.findall(r"^[\w.-]+==", CONSTRAINTS.read_text(), re.MULTILINE)
    if len(audited) < len(pinned) // 2:
        pytest.skip(f"only {len(audited)} of {len(pinned)} packages are known to the service")
    assert {name: vulnerabilities for name, vulnerabilities in audited.items() if vulnerabilities} == {}
