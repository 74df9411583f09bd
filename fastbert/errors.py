"""Errors caused by input, which the command line prints as one line without a traceback."""


class UserError(ValueError):
    """Invalid input: the message names the value, its location and the cure."""


def require_whole(name: str, value: object, least: int, *, optional: bool = False) -> None:
    """Raise UserError unless a value is a whole number of at least `least`, or with `optional` None."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not is_whole and not (optional and value is None):
        raise UserError(f"{name}={value!r} must be a whole number, at least {least}")


class CorpusError(UserError):
    """A corpus file cannot be read, or holds too little text."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to a different model."""
