"""The error of tokenizer files."""

from fastbert.errors import UserError


class VocabularyError(UserError):
    """A vocabulary or another tokenizer file that cannot be used."""
