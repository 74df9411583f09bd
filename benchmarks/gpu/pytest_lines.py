"""A plugin of pytest that writes a line of JSON per test as it starts and as it ends, so that a run that is stopped
leaves its results: `pytest -p fastbert.benchmarks.gpu.pytest_lines`, with FASTBERT_TEST_LINES naming the file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fastbert.kernels.tuning.processes import end_with_parent

VARIABLE = "FASTBERT_TEST_LINES"
MOST_TEXT = 4000  # characters of a failure


class Lines:
    """Appends what happens to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **values: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record that a test has started."""
        self.write(started=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record the outcome of a test: its call, or a setup or teardown that did not pass."""
        if report.when == "call" or report.outcome != "passed":
            self._ended(report, report.nodeid, report.duration)

    def pytest_collectreport(self, report: Any) -> None:
        """Record a module that could not be imported."""
        if report.failed:
            self._ended(report, report.nodeid, 0.0)

    def _ended(self, report: Any, name: str, seconds: float) -> None:
        text = report.longreprtext
        if isinstance(report.longrepr, tuple):  # a skip: path, line, reason
            text = str(report.longrepr[2])
        crash = getattr(report.longrepr, "reprcrash", None)
        message = (str(crash.message) if crash else text.strip()).splitlines() or [""]
        self.write(
            test=name, outcome=report.outcome, seconds=round(seconds, 3), message=message[0], text=text[-MOST_TEXT:]
        )


def pytest_configure(config: Any) -> None:
    """Write lines in the process that collects the results, not in the workers of pytest-xdist."""
    if hasattr(config, "workerinput"):
        return
    end_with_parent()
    config.pluginmanager.register(Lines(Path(os.environ[VARIABLE])), "fastbert-lines")
