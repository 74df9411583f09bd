"""How slow this machine is: the factor on the seconds that help, imports and dry runs may take.

FASTBERT_TEST_PATIENCE sets it; by default a fresh interpreter is timed, which imports modules of Python's own.
"""

import os
import resource
import subprocess
import sys

MODULES = "asyncio, email.message, http.client, json, logging, unittest.mock, xml.etree.ElementTree"
USUAL = 0.06  # seconds of a processor; where it takes them, the limits hold as they are written
MOST = 4.0


def children_seconds() -> float:
    """Processor time of the child processes so far: on an idle machine the time one waits, on a busy one still that."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured() -> float:
    seconds = []
    for _ in range(2):
        before = children_seconds()
        subprocess.run([sys.executable, "-c", f"import {MODULES}"], check=True)
        seconds.append(children_seconds() - before)
    return min(MOST, max(1.0, min(seconds) / USUAL))


PATIENCE = float(os.environ.get("FASTBERT_TEST_PATIENCE") or measured())
