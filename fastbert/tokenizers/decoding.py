"""From tokens back to text, with the spacing rules of the reference."""

from collections.abc import Iterable, Mapping
from typing import Any

# Applied to each token by itself, and on request to the whole text, in this order.
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
    """An id or (nested) lists of ids, from arrays, tensors or what a tokenizer returned."""
    if isinstance(ids, Mapping):
        ids = ids["input_ids"]
    if hasattr(ids, "tolist"):
        return ids.tolist()
    return [plain_ids(item) for item in ids] if isinstance(ids, list | tuple) else ids


def join_tokens(tokens: Iterable[str]) -> str:
    """Join tokens: "##" continues a word (but not at the start), anything else follows a space."""
    pieces = []
    for index, token in enumerate(tokens):
        if index > 0:
            token = token[2:] if token.startswith("##") else " " + token
        pieces.append(_replace(token, _TOKEN_SPACING))
    return "".join(pieces)


def clean_up(text: str) -> str:
    """Take out the spaces before punctuation and English contractions."""
    return _replace(text, _SPACING)


def _replace(text: str, rules: tuple[tuple[str, str], ...]) -> str:
    for old, new in rules:
        text = text.replace(old, new)
    return text
