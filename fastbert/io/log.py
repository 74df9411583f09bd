"""The logger of the package, whose level and handlers applications set by its name, `fastbert`."""

import logging

logger: logging.Logger = logging.getLogger("fastbert")
