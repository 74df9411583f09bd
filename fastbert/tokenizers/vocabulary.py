"""Map tokens to ids and ids to text: the vocabulary, special and added tokens of a tokenizer of any kind.

Its fingerprint is how token shards, runs and model folders name a tokenizer.
"""

import hashlib
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fastbert.tokenizers import call, decoding, files
from fastbert.tokenizers.added import AddedToken, as_added_token, as_added_tokens
from fastbert.tokenizers.transformers_interface import TransformersInterface


class Vocabulary(TransformersInterface):
    """The tokens of a tokenizer. A subclass supplies the constructor, the C++ core and what its kind decides.

    The constructor sets the options, `_tokens`, `added_tokens` and the special tokens, and calls `_update`.
    """

    # Roles that BERT does not have; the values are transformers'.
    bos_token: str | None = None
    eos_token: str | None = None
    clean_up_tokenization_spaces = False
    name_or_path = ""
    _core_options: ClassVar[tuple[str, ...]] = ("split_special_tokens",)
    """Options that the core is built with; assigning one rebuilds it."""
    _needs_unknown = True
    """True if the core yields the unknown token, which must be in the vocabulary itself."""

    _tokens: list[str]
    added_tokens: list[AddedToken]
    additional_special_tokens: list[str]
    # Tokens of other kinds than WordPiece may be None, and their ids with them.
    unk_token: Any
    sep_token: Any
    pad_token: Any
    cls_token: Any
    mask_token: Any
    unk_token_id: Any
    sep_token_id: Any
    pad_token_id: Any
    cls_token_id: Any
    mask_token_id: Any
    bos_token_id: int | None
    eos_token_id: int | None
    split_special_tokens: bool
    model_max_length: int
    padding_side: str
    truncation_side: str

    def _build_core(self, split_special_tokens: bool) -> Any:
        """Build the C++ tokenizer from the tokens and the options."""
        raise NotImplementedError

    def _normalize(self, text: str) -> str:
        """Normalise text as the core does."""
        raise NotImplementedError

    def _fingerprint_options(self) -> dict[str, Any]:
        """Return the options of this kind of tokenizer that change the ids of a text."""
        raise NotImplementedError

    def _join_tokens(self, tokens: Iterable[str]) -> str:
        """Join tokens to text."""
        raise NotImplementedError

    def _ids_spelled_as_text(self) -> list[int]:
        """Return the ids whose tokens are spelled as the text is: unknown pieces of some kinds."""
        return []

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return the number of special tokens around a single sequence or a pair."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an option, and rebuild the core where it changes. A special token must have an id already."""
        if "_core" not in self.__dict__:
            super().__setattr__(name, value)
            return
        if name in files.SPECIAL_TOKEN_ROLES:
            self._replace(**{name: None if value is None else str(value)})
        elif name in self._core_options:
            self._replace(**{name: None if value is None and name == "strip_accents" else bool(value)})
        elif name.removesuffix("_id") in files.SPECIAL_TOKEN_ROLES:
            self._replace(**{name.removesuffix("_id"): self._names[self._checked_id(operator.index(value))]})
        elif name in ("padding_side", "truncation_side"):
            super().__setattr__(name, call.checked_side(value, name))
        elif name == "model_max_length":
            super().__setattr__(name, call.checked_model_max_length(value))
        else:
            super().__setattr__(name, value)

    def _update(self, source: str = "vocab") -> None:
        """Derive the ids and the core from the vocabulary, the special tokens and the added tokens."""
        ids = dict(zip(self._tokens, range(len(self._tokens))))
        known = {token.content for token in self.added_tokens}
        for name in self.additional_special_tokens:
            if name not in ids and name not in known:
                self.added_tokens.append(AddedToken(name, special=True))
        for token in self.added_tokens:
            ids.setdefault(token.content, len(ids))
        for role, name in self.special_tokens_map.items():
            if name not in ids or (role == "unk_token" and self._needs_unknown and ids[name] >= len(self._tokens)):
                raise files.VocabularyError(
                    f"{source}: {role}={name!r} is not among its {len(self._tokens)} tokens; add it, or pass {role}="
                )
        # Canonical form: sorted by id, without tokens that are only special tokens of the vocabulary.
        usual = {AddedToken(name, special=True) for name in self.all_special_tokens if ids[name] < len(self._tokens)}
        added = [token for token in self.added_tokens if token not in usual]
        self.added_tokens = sorted(added, key=lambda token: ids[token.content])
        self._ids = ids
        self._names = [*self._tokens, *list(ids)[len(self._tokens) :]]
        for role in files.SPECIAL_TOKEN_ROLES:
            name = getattr(self, role)
            self.__dict__[f"{role}_id"] = None if name is None else ids[name]
        special = [AddedToken(name, special=True) for name in self.all_special_tokens]
        recognised = {ids[token.content]: token for token in as_added_tokens([*special, *self.added_tokens])}
        self._recognised = dict(sorted(recognised.items()))
        characters = sum(len(token.content) for token in recognised.values())
        if characters > files.MAX_ADDED_CHARACTERS:
            raise files.VocabularyError(
                f"the {len(recognised):,} added tokens have {characters:,} characters, and at most"
                f" {files.MAX_ADDED_CHARACTERS:,} are supported; remove those that are not tokens"
            )
        self._skipped = frozenset(token.content for token in recognised.values() if token.special)
        for token in self.added_tokens:
            # A token that is searched in normalised text decodes to its normal form ("foo bar"), as in transformers.
            name = self._normalize(token.content) if token.normalized else token.content
            if not name:
                raise files.VocabularyError(
                    f"added token {token.content!a}: normalising it leaves nothing; pass normalized=False"
                )
            self._names[ids[token.content]] = name
        # Pieces of words keep their spelling, even where an added token with that spelling is normalised.
        self._spelled = [*self._tokens, *self._names[len(self._tokens) :]]
        self._varying = frozenset(
            index
            for index, token in self._recognised.items()
            if token.lstrip or token.rstrip or self._names[index] != self._spelled[index]
        ).union(self._ids_spelled_as_text())
        self._other_core: Any = None
        self._backend = None
        self._core = self._build_core(self.split_special_tokens)

    def _added_of_core(self) -> list[Any]:
        # Sorted by id: of two tokens with the same normal form, the lower id is found.
        return [token.to_core(index) for index, token in self._recognised.items()]

    # Lengths

    @property
    def max_len_single_sentence(self) -> int:
        """Return how many tokens of a text fit beside the special tokens; a very large number without a limit."""
        return self.model_max_length - self.num_special_tokens_to_add()

    @property
    def max_len_sentences_pair(self) -> int:
        """Return how many tokens of a pair of texts fit beside the special tokens."""
        return self.model_max_length - self.num_special_tokens_to_add(pair=True)

    # The vocabulary

    @property
    def _length_limit(self) -> int | None:
        return None if self.model_max_length > files.UNLIMITED_LENGTH else self.model_max_length

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens in the vocabulary; `len(tokenizer)` also counts added tokens after it."""
        return len(self._tokens)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def vocab(self) -> dict[str, int]:
        """Return a copy of the map from tokens to ids, including added tokens."""
        return dict(self._ids)

    def get_vocab(self) -> dict[str, int]:
        """Return a copy of the map from tokens to ids, including added tokens."""
        return dict(self._ids)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Return the tokens that are recognised in text as a whole, including special tokens, by id."""
        return dict(self._recognised)

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        """Return the ids of the tokens that are recognised in text as a whole."""
        return {token.content: index for index, token in self.added_tokens_decoder.items()}

    def get_added_vocab(self) -> dict[str, int]:
        """Return the ids of the tokens that are recognised in text as a whole."""
        return self.added_tokens_encoder

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add one or several tokens (strings or `AddedToken`s) that are recognised in text as a whole.

        Tokens in the vocabulary keep their ids; others get new ids at the end, so a model's embedding may have to grow
        (`resize_token_embeddings(len(tokenizer))`). `special_tokens=True` makes them special tokens.

        Returns:
            The number of tokens that were not recognised as a whole before, or with different flags.

        Raises:
            TypeError: a token is neither a string nor an `AddedToken`.
        """
        # An empty token is ignored, as in transformers.
        tokens = [new_tokens] if isinstance(new_tokens, str) or not isinstance(new_tokens, Iterable) else new_tokens
        new = as_added_tokens([token for token in tokens if token != ""], special=special_tokens)
        if special_tokens:
            new = [token.as_special() for token in new]
        before = set(self.added_tokens_decoder.values())
        changed = [token for token in new if token not in before]
        self._replace(added_tokens=as_added_tokens([*self.added_tokens, *changed]))
        return len(changed)

    def add_special_tokens(
        self, special_tokens_dict: Mapping[str, Any], replace_extra_special_tokens: bool = True
    ) -> int:
        """Assign special tokens to roles, and add those that are missing; they are recognised in text as a whole.

        Args:
            special_tokens_dict: maps roles such as "mask_token" to a token, and "additional_special_tokens" (or
                "extra_special_tokens", transformers' newer name) to a list of tokens.
            replace_extra_special_tokens: replace the previous list, whose tokens stay added; False: extend it.

        Returns:
            The number of tokens that were not recognised as a whole before, or with different flags.

        Raises:
            ValueError: a role is unknown.
            TypeError: a token is neither a string nor an `AddedToken`.
        """
        changes: dict[str, Any] = {}
        new: list[AddedToken] = []
        for name, value in special_tokens_dict.items():
            if name in files.SPECIAL_TOKEN_ROLES:
                new.append(as_added_token(value, special=True).as_special())
                changes[name] = new[-1].content
            elif name in ("additional_special_tokens", "extra_special_tokens"):
                extra = [token.as_special() for token in as_added_tokens(value, special=True)]
                previous = [] if replace_extra_special_tokens else self.additional_special_tokens
                changes["additional_special_tokens"] = list(
                    dict.fromkeys([*previous, *(token.content for token in extra)])
                )
                new += extra
            else:
                known = ", ".join(files.SPECIAL_TOKEN_ROLES)
                raise ValueError(f"{name!r} must be one of {known}, additional_special_tokens")
        # Tokens that were recognised by their role or as additional tokens stay recognised.
        before, special = set(self._recognised.values()), set(self.all_special_tokens)
        former = [token for token in self._recognised.values() if token.content in special]
        self._replace(added_tokens=as_added_tokens([*self.added_tokens, *former, *new]), **changes)
        return len({token.content for token in new} - {token.content for token in new if token in before})

    def _replace(self, **changes: Any) -> None:
        """Change several options at once: calls on other threads use the old state or the new one."""
        draft = object.__new__(type(self))
        draft.__dict__.update({name: value for name, value in self.__dict__.items() if name != "_core"} | changes)
        draft._update()
        self.__dict__.update(draft.__dict__)

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """Return the special tokens by role."""
        tokens = {name: getattr(self, name) for name in files.SPECIAL_TOKEN_ROLES}
        return {name: token for name, token in tokens.items() if token is not None}

    @property
    def all_special_tokens(self) -> list[str]:
        """Return the distinct special tokens."""
        return list(dict.fromkeys([*self.special_tokens_map.values(), *self.additional_special_tokens]))

    @property
    def extra_special_tokens(self) -> list[str]:
        """Return the additional special tokens, under transformers' newer name."""
        return list(self.additional_special_tokens)

    @property
    def all_special_ids(self) -> list[int]:
        """Return the ids of the distinct special tokens."""
        return [self._ids[token] for token in self.all_special_tokens]

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of the tokens, in the order of their ids, and of all options that change the ids of
        a text: special and added tokens, and those of this kind (kinds other than WordPiece include their name).

        Equal fingerprints mean equal ids for every text.
        """
        options = {
            **self._fingerprint_options(),
            "split_special_tokens": self.split_special_tokens,
            "additional_special_tokens": sorted(self.additional_special_tokens),
            **self.special_tokens_map,
        }
        if self.added_tokens:
            options["added_tokens"] = [token.to_dict() for token in self.added_tokens]
        return hashlib.sha256(json.dumps([self._tokens, options], sort_keys=True).encode()).hexdigest()

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """Return the id of a token, or the ids of a list of tokens; unknown tokens get the id of `unk_token`.

        Raises TypeError for tokens that are not strings.
        """
        if isinstance(tokens, str):
            return self._ids.get(tokens, self.unk_token_id)
        if isinstance(tokens, bytes):
            raise TypeError("tokens must be strings, not bytes; decode them first, e.g. tokens.decode('utf-8')")
        return [self._ids.get(_checked_token(token, index), self.unk_token_id) for index, token in enumerate(tokens)]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return the token of an id, or the tokens of a list of ids.

        Raises IndexError for ids outside the vocabulary.
        """
        if isinstance(ids, int | np.integer):
            return self._names[self._checked_id(ids)]
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [self._names[self._checked_id(index)] for index in _integers(ids) if index not in skipped]

    def _checked_id(self, index: Any) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"id {index} is outside the vocabulary of {len(self)} tokens")
        return int(index)

    # Ids to text

    def decode(
        self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = False
    ) -> Any:
        """Convert ids to text, as transformers does. Ids outside the vocabulary are skipped.

        `token_ids` is an id, a list or an array of ids, or the result of a call; several rows give a list of texts.
        Raises ValueError for negative ids.
        """
        ids = decoding.plain_ids(token_ids)
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
            return [self._decode_row(row, skip_special_tokens, clean_up_tokenization_spaces) for row in ids]
        return self._decode_row(ids, skip_special_tokens, clean_up_tokenization_spaces)

    def _decode_row(self, ids: Any, skip_special_tokens: bool, clean_up_tokenization_spaces: bool | None) -> str:
        skipped = self._skipped if skip_special_tokens else frozenset[str]()
        known = [index for index in _integers(ids) if index < len(self)]
        if known and min(known) < 0:
            raise ValueError(f"id {min(known)} is negative; remove the padding of labels (-100) first")
        names = (self._names[index] for index in known)
        text = self._join_tokens(name for name in names if name not in skipped)
        return decoding.clean_up(text) if clean_up_tokenization_spaces else text

    def batch_decode(
        self, sequences: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = False
    ) -> list[str]:
        """Convert each row of ids to text, as `decode` does; return a list."""
        texts = self.decode(sequences, skip_special_tokens, clean_up_tokenization_spaces)
        return [texts] if isinstance(texts, str) else texts

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Convert tokens to text, as `decode` does from their ids. Raises TypeError for tokens that are not strings."""
        if isinstance(tokens, str):
            raise TypeError("tokens must be a sequence of strings, not one string")
        return self._join_tokens(_checked_token(token, index) for index, token in enumerate(tokens))

    def clean_up_tokenization(self, text: str) -> str:
        """Remove the spaces before punctuation and English contractions from a text."""
        return decoding.clean_up(text)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_core", "_other_core", "_backend")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._other_core = self._backend = None
        self._core = self._build_core(self.split_special_tokens)


def _integers(ids: Any) -> list[int]:
    """Return ids as a list of Python integers, from a list, an array, a tensor or a single id."""
    ids = decoding.plain_ids(ids)
    return [operator.index(index) for index in ([ids] if isinstance(ids, int) else ids)]


def _checked_token(token: Any, index: int) -> str:
    if not isinstance(token, str):
        raise TypeError(f"tokens[{index}] must be a string, not {type(token).__name__}")
    return token
