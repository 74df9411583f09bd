"""Added tokens: recognised in text as a whole, before it is split into words."""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text as a whole; the same as `tokenizers.AddedToken`, which may be given in its place.

    Args:
        content: the token as it is written.
        lstrip, rstrip: white space before or behind the token belongs to it.
        single_word: not found beside a letter, a digit, a mark or a connector such as "_".
        normalized: searched in normalised text (lower case, without accents, as the tokenizer is set up), with its
            content normalised too; False: in the text as it is. None, the default, means "if it is not special".
        special: left out by `skip_special_tokens`, and plain text to `split_special_tokens`.
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
        if not self.content.isascii() and any("\ud800" <= character <= "\udfff" for character in self.content):
            raise ValueError(f"the added token {self.content!r} holds a lone surrogate (half of a character)")
        if self.normalized is None:
            object.__setattr__(self, "normalized", not self.special)
        types = {
            type(self.lstrip),
            type(self.rstrip),
            type(self.single_word),
            type(self.normalized),
            type(self.special),
        }
        if types == {bool}:
            return
        for flag in FLAGS:
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(f"{self.content!r}: {flag}={getattr(self, flag)!r} must be True or False")

    def as_special(self) -> "AddedToken":
        """The token as a special one; one that was plain before is then found as it is written."""
        return self if self.special else replace(self, special=True, normalized=False)

    def to_dict(self) -> dict[str, Any]:
        """Content and flags by name, as in files."""
        return {"content": self.content, **{flag: getattr(self, flag) for flag in FLAGS}}

    def __str__(self) -> str:
        return self.content


def as_added_token(token: Any, *, special: bool = False) -> AddedToken:
    """A string, an `AddedToken` or a `tokenizers.AddedToken` as ours; a string becomes `special` as asked."""
    if isinstance(token, AddedToken):
        return token
    if isinstance(token, str):
        return AddedToken(token, special=special)
    if hasattr(token, "content") and all(hasattr(token, flag) for flag in FLAGS):
        return AddedToken(token.content, **{flag: getattr(token, flag) for flag in FLAGS})
    raise TypeError(f"an added token must be a string or an AddedToken, not {type(token).__name__}")


def as_added_tokens(tokens: Any, *, special: bool = False) -> list[AddedToken]:
    """One token or several; of those with the same content the last one's flags count, at the place of the first."""
    if isinstance(tokens, str | AddedToken) or not isinstance(tokens, Iterable):
        tokens = [tokens]
    return list(
        {token.content: token for token in (as_added_token(token, special=special) for token in tokens)}.values()
    )
