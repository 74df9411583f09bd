"""Name flags in errors of the library, which name its arguments."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from fastbert.flags import flag


def in_flags(message: str, config: Any) -> str:
    """Return a message with flags for the arguments that the command line set: `vocab_size=3` becomes `--vocab-size 3`.

    A name alone counts if it has an underscore. Names with different values, in quotes or in a message about a
    configuration file are not the command line's.
    """
    if "config.json" in message:
        return message
    for item in fields(config):
        value = getattr(config, item.name)
        name, shown = re.escape(item.name), f"{value!r}"
        named = f"{flag(item.name)} {value}".replace("\\", "\\\\")  # a template of `re.sub`
        message = re.sub(rf"(?<![\w'\"/.-]){name}={re.escape(shown)}(?!\w)", named, message)
        if "_" in item.name:
            message = re.sub(rf"(?<![\w'\"/.-]){name}(?![\w='\"/.-])", flag(item.name), message)
    return message
