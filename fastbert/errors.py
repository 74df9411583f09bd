"""Errors caused by input, which the command line prints as one line without a traceback."""


class UserError(ValueError):
    """Invalid input: the message names the value, its location and the cure."""


class CorpusError(UserError):
    """A corpus file cannot be read, or holds too little text."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to a different model."""
