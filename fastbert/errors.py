"""Errors caused by input, which the command line prints as one line without a traceback."""

import re
from importlib import import_module
from typing import Any

LONGEST_MESSAGE = 1500
# Among them what ends a line, steers a terminal, or turns the direction of what follows.
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_END = 400  # of a message that is too long: where the cure stands


class UserError(ValueError):
    """Invalid input: the message names the value, its location and the cure.

    Whatever a damaged file holds where a name is expected, its refusal is a line that can be read: control characters
    are escaped, and the middle of a message of more than 1,500 characters is left out.
    """

    # Not in __init__, which torch.compile cannot trace.
    def __str__(self) -> str:
        message = Exception.__str__(self)  # of a KeyError, too, which puts its own in quotation marks
        if not message.isprintable():
            message = _CONTROL.sub(lambda match: repr(match.group())[1:-1], message)
        if len(message) > LONGEST_MESSAGE:
            end = message[-_END:]
            message = f"{message[: LONGEST_MESSAGE - len(end) - 5]} ... {end}"
        return message


def require_whole(name: str, value: object, least: int, *, optional: bool = False) -> None:
    """Raise UserError unless a value is a whole number of at least `least`, or with `optional` None."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not is_whole and not (optional and value is None):
        raise UserError(f"{name}={value!r} must be a whole number, at least {least}")


def require_package(name: str, message: str) -> Any:
    """Import a module of an optional package. Raises UserError with the message, which names the package to install."""
    try:
        return import_module(name)
    except ImportError:
        raise UserError(message) from None


class RequirementError(UserError, ImportError):
    """Something that fastbert runs on is missing, too old or built for another system."""


class CorpusError(UserError):
    """A corpus file cannot be read, or holds too little text."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to a different model."""


class KernelError(UserError):
    """A GPU kernel that its compiler refuses: the message names the kernel, its shapes and the reason."""

    def __init__(self, message: str, kernel: str = "") -> None:
        super().__init__(message)
        self.kernel = kernel

    recorded = False
    """True if calls like the one that failed are left to PyTorch from now on, so that it may be repeated."""
