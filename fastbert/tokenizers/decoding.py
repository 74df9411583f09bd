"""Convert tokens to text, with the spacing rules of the reference."""

from collections.abc import Iterable, Mapping
from typing import Any

# Applied in this order to each token, and optionally to the whole text.
_SPACING = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
# The reference's decoder has one more rule than its clean-up of whole texts.
_TOKEN_SPACING = (*_SPACING[:7], (" do not", " don't"), *_SPACING[7:])


def plain_ids(ids: Any) -> Any:
    """Return an id or (nested) lists of ids, from arrays, tensors or a tokenizer's output."""
    if isinstance(ids, Mapping):
        ids = ids["input_ids"]
    if hasattr(ids, "tolist"):
        return ids.tolist()
    return [plain_ids(item) for item in ids] if isinstance(ids, list | tuple) else ids


def join_tokens(tokens: Iterable[str]) -> str:
    """Join WordPiece tokens: "##" continues a word (except at the start), other tokens follow a space."""
    pieces = []
    for index, token in enumerate(tokens):
        if index > 0:
            token = token[2:] if token.startswith("##") else " " + token
        pieces.append(_replace(token, _TOKEN_SPACING))
    return "".join(pieces)


def clean_up(text: str) -> str:
    """Remove the spaces before punctuation and English contractions."""
    return _replace(text, _SPACING)


def _replace(text: str, rules: tuple[tuple[str, str], ...]) -> str:
    for old, new in rules:
        text = text.replace(old, new)
    return text
