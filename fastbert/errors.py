"""Errors that the user can cure: the command line prints them as one line, without a traceback."""


class UserError(ValueError):
    """Wrong input: the message names the value, the place and the cure."""


class CorpusError(UserError):
    """A corpus file cannot be read, or holds too little text for what was asked."""


class CheckpointError(UserError):
    """A checkpoint is missing, damaged or belongs to another model."""
