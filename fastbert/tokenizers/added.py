"""Added tokens, which are recognised in text as a whole, before it is split into words."""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from fastbert import _C
from fastbert.io.text import has_surrogates

FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass(frozen=True)
class AddedToken:
    """A token that is recognised in text as a whole, equivalent to `tokenizers.AddedToken`, which is also accepted.

    Args:
        content: the token's text.
        lstrip, rstrip: white space before or after the token belongs to it.
        single_word: not recognised next to a letter, a digit, a mark or a connector such as "_".
        normalized: search normalised text (lower case, without accents, as configured) for the normalised content;
            False: search the original text. None, the default: True unless `special`.
        special: removed by `skip_special_tokens`, and treated as plain text by `split_special_tokens`.

    Raises:
        TypeError: `content` is not a string, or a flag not a bool.
        ValueError: `content` is empty, or holds a lone surrogate (half of a character).

    Example:
        >>> from fastbert.tokenizers import AddedToken, WordPieceTokenizer
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
        >>> tokenizer = WordPieceTokenizer(vocabulary, added_tokens=[AddedToken("<br>", lstrip=True)])
        >>> tokenizer.tokenize("a <br>a")
        ['a', ' <br>', 'a']
    """

    content: str
    _: KW_ONLY
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = None  # type: ignore[assignment]  # __post_init__ makes it a bool
    special: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.content, str):
            raise TypeError(f"an added token must be a string, not {type(self.content).__name__}")
        if not self.content:
            raise ValueError("an added token must not be empty")
        if has_surrogates(self.content):
            raise ValueError(f"the added token {self.content!r} holds a lone surrogate (half of a character)")
        if self.normalized is None:
            object.__setattr__(self, "normalized", not self.special)
        for flag in FLAGS:
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(f"{self.content!r}: {flag}={getattr(self, flag)!r} must be True or False")

    def as_special(self) -> "AddedToken":
        """Return the token as a special token; a token that was not special is then searched in the original text."""
        return self if self.special else replace(self, special=True, normalized=False)

    def to_dict(self) -> dict[str, Any]:
        """Return content and flags by name, as in files."""
        return {"content": self.content, **{flag: getattr(self, flag) for flag in FLAGS}}

    def to_core(self, index: int) -> _C.AddedToken:
        """Return the token with its id for the C++ core."""
        flags = (self.special, self.lstrip, self.rstrip, self.single_word, self.normalized)
        return _C.AddedToken(self.content, index, *flags)

    def __str__(self) -> str:
        return self.content


def as_added_token(token: Any, *, special: bool = False) -> AddedToken:
    """Convert a string or a `tokenizers.AddedToken` to an `AddedToken`; `special` applies to strings."""
    if isinstance(token, AddedToken):
        return token
    if isinstance(token, str):
        return AddedToken(token, special=special)
    if hasattr(token, "content") and all(hasattr(token, flag) for flag in FLAGS):
        return AddedToken(token.content, **{flag: getattr(token, flag) for flag in FLAGS})
    raise TypeError(f"an added token must be a string or an AddedToken, not {type(token).__name__}")


def as_added_tokens(tokens: Any, *, special: bool = False) -> list[AddedToken]:
    """Convert one token or several; tokens with equal content are merged, with the last one's flags."""
    if isinstance(tokens, str | AddedToken) or not isinstance(tokens, Iterable):
        tokens = [tokens]
    return list(
        {token.content: token for token in (as_added_token(token, special=special) for token in tokens)}.values()
    )
