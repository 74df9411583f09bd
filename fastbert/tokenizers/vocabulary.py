"""The tokens of a tokenizer: vocabulary, special tokens, added tokens; from token to id and from id to text."""

import hashlib
import json
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from fastbert import _C
from fastbert.checkpoints.manifest import TOKENIZER, update_manifest, verify_file, verify_files
from fastbert.tokenizers import call, decoding, files
from fastbert.tokenizers.added import AddedToken, as_added_token, as_added_tokens
from fastbert.tokenizers.transformers_interface import TransformersInterface, check_save_options

_CORE_OPTIONS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "split_special_tokens")


class Vocabulary(TransformersInterface):
    """What a `WordPieceTokenizer` is made of; its constructor is documented there."""

    # Roles that BERT does not have: who asks gets the answer of transformers.
    bos_token = eos_token = bos_token_id = eos_token_id = None
    clean_up_tokenization_spaces = False
    name_or_path = ""

    def __init__(
        self,
        vocab: Sequence[str] | str | os.PathLike[str],
        *,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        model_max_length: int | None = 512,
        unk_token: str = "[UNK]",
        sep_token: str = "[SEP]",
        pad_token: str = "[PAD]",
        cls_token: str = "[CLS]",
        mask_token: str = "[MASK]",
        additional_special_tokens: Sequence[str] = (),
        split_special_tokens: bool = False,
        added_tokens: Sequence[str | AddedToken] = (),
        padding_side: str = "right",
        truncation_side: str = "right",
    ) -> None:
        if isinstance(vocab, str | os.PathLike):
            source = str(vocab)
            tokens = files.read_vocab(Path(vocab))
        else:
            source = "vocab"
            tokens = list(vocab)
            files.check_tokens(tokens, lambda index: f"vocab[{index}]")
        self.do_lower_case = bool(do_lower_case)
        self.strip_accents = None if strip_accents is None else bool(strip_accents)
        self.tokenize_chinese_chars = bool(tokenize_chinese_chars)
        self.split_special_tokens = bool(split_special_tokens)
        self.padding_side = call.checked_side(padding_side, "padding_side")
        self.truncation_side = call.checked_side(truncation_side, "truncation_side")
        self.model_max_length = _checked_model_max_length(model_max_length)
        self.unk_token, self.sep_token, self.pad_token = unk_token, sep_token, pad_token
        self.cls_token, self.mask_token = cls_token, mask_token
        self.additional_special_tokens = list(additional_special_tokens)
        self.added_tokens = as_added_tokens(added_tokens)
        self._tokens = tokens
        self._update(source)

    def __setattr__(self, name: str, value: Any) -> None:
        """Options take the core along. A special token must be known already; its id follows from it."""
        if "_core" not in self.__dict__:
            super().__setattr__(name, value)
            return
        if name in files.SPECIAL_TOKEN_NAMES:
            self._replace(**{name: str(value)})
        elif name in _CORE_OPTIONS:
            self._replace(**{name: None if value is None and name == "strip_accents" else bool(value)})
        elif name.removesuffix("_id") in files.SPECIAL_TOKEN_NAMES:
            self._replace(**{name.removesuffix("_id"): self._names[self._checked_id(operator.index(value))]})
        elif name in ("padding_side", "truncation_side"):
            super().__setattr__(name, call.checked_side(value, name))
        elif name == "model_max_length":
            super().__setattr__(name, _checked_model_max_length(value))
        else:
            super().__setattr__(name, value)

    def _update(self, source: str = "vocab") -> None:
        """Ids and the core, from the vocabulary, the special tokens and the added tokens."""
        ids = dict(zip(self._tokens, range(len(self._tokens))))
        known = {token.content for token in self.added_tokens}
        for name in self.additional_special_tokens:
            if name not in ids and name not in known:
                self.added_tokens.append(AddedToken(name, special=True))
        for token in self.added_tokens:
            ids.setdefault(token.content, len(ids))
        for role, name in self.special_tokens_map.items():
            if name not in ids or (role == "unk_token" and ids[name] >= len(self._tokens)):
                raise files.VocabularyError(
                    f"{source}: {role}={name!r} is not among its {len(self._tokens)} tokens; add it, or pass {role}="
                )
        # One form for the same tokens: by id, without those that are just special tokens of the vocabulary.
        usual = {AddedToken(name, special=True) for name in self.all_special_tokens if ids[name] < len(self._tokens)}
        added = [token for token in self.added_tokens if token not in usual]
        self.added_tokens = sorted(added, key=lambda token: ids[token.content])
        self._ids = ids
        self._names = [*self._tokens, *list(ids)[len(self._tokens) :]]
        self.unk_token_id, self.sep_token_id = ids[self.unk_token], ids[self.sep_token]
        self.pad_token_id, self.cls_token_id = ids[self.pad_token], ids[self.cls_token]
        self.mask_token_id = ids[self.mask_token]
        special = [AddedToken(name, special=True) for name in self.all_special_tokens]
        found = {ids[token.content]: token for token in as_added_tokens([*special, *self.added_tokens])}
        self._recognised = dict(sorted(found.items()))
        characters = sum(len(token.content) for token in found.values())
        if characters > files.MOST_ADDED_CHARACTERS:
            raise files.VocabularyError(
                f"the {len(found):,} added tokens have {characters:,} characters, and at most"
                f" {files.MOST_ADDED_CHARACTERS:,} are supported; remove those that are not tokens"
            )
        self._skipped = frozenset(token.content for token in found.values() if token.special)
        options = self._normalizer_options()
        for token in self.added_tokens:
            # What is searched in normalised text is also named so: "Foo Bar" decodes to "foo bar", as in transformers.
            name = _C.normalize(token.content, options) if token.normalized else token.content
            if not name:
                raise files.VocabularyError(
                    f"added token {token.content!a}: nothing is left of it when it is normalised; pass normalized=False"
                )
            self._names[ids[token.content]] = name
        # What words are split into keeps its spelling, even where it is an added token with another normal form too.
        self._spelled = [*self._tokens, *self._names[len(self._tokens) :]]
        self._varying = frozenset(
            index
            for index, token in self._recognised.items()
            if token.lstrip or token.rstrip or self._names[index] != self._spelled[index]
        )
        self._other_core: _C.WordPiece | None = None
        self._backend = None
        self._core = self._build_core(self.split_special_tokens)

    def _build_core(self, split_special_tokens: bool) -> _C.WordPiece:
        # By id: of two that are the same when normalised, the one with the lower id is found.
        added = [
            _C.AddedToken(
                token.content,
                index,
                token.special,
                token.lstrip,
                token.rstrip,
                token.single_word,
                token.normalized,
            )
            for index, token in self._recognised.items()
        ]
        return _C.WordPiece(self._tokens, added, split_special_tokens, self.unk_token_id, self._normalizer_options())

    def _normalizer_options(self) -> _C.NormalizerOptions:
        strip = self.do_lower_case if self.strip_accents is None else self.strip_accents
        return _C.NormalizerOptions(self.do_lower_case, strip, self.tokenize_chinese_chars)

    # Files

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], *, verify: bool = True, **options: Any) -> Self:
        """Read a tokenizer's folder, a bare vocab.txt or a bare tokenizer.json; `options` override what is found there.

        The options come from `tokenizer_config.json` and `special_tokens_map.json`, then from `tokenizer.json`, and
        added tokens from these and `added_tokens.json`, as in transformers. If all are missing and the vocabulary holds
        capitals, lower-casing is off, and a notice is logged. Files are compared with a `fastbert_manifest.json` beside
        them, unless `verify` is False.
        """
        path = Path(path)
        if path.is_dir():
            verify_files(path, TOKENIZER, verify=verify)
            vocab, found = files.read_folder(path)
        elif path.suffix == ".json":
            verify_file(path, verify=verify)
            vocab, found = files.read_tokenizer_file(path)
        else:
            verify_file(path, verify=verify)
            vocab, found = files.read_vocab_file(path)
        try:
            tokenizer = cls(vocab, **(found | options))
        except files.VocabularyError as error:
            raise files.VocabularyError(f"{path}: {error}") from None
        tokenizer.name_or_path = str(path)
        return tokenizer

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> tuple[str, ...]:
        """Write `vocab.txt`, `tokenizer_config.json` and `special_tokens_map.json`, which transformers reads alike.

        A `tokenizer.json` is written too if there is one already, or if a token ends with white space. The files'
        checksums are entered in `fastbert_manifest.json`. Of the further options of transformers, those that change
        nothing here are ignored; `push_to_hub` and `filename_prefix` are refused.

        Returns:
            The paths of the files.
        """
        check_save_options(options)
        options = {
            "do_lower_case": self.do_lower_case,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.tokenize_chinese_chars,
            "model_max_length": self.model_max_length,
            "split_special_tokens": self.split_special_tokens,
            "padding_side": self.padding_side,
            "truncation_side": self.truncation_side,
        }
        special_tokens: dict[str, Any] = dict(self.special_tokens_map)
        if self.additional_special_tokens:
            special_tokens["additional_special_tokens"] = self.additional_special_tokens
        paths = files.write_folder(Path(folder), self._tokens, options, special_tokens, self.added_tokens_decoder)
        manifest = update_manifest(Path(folder), [Path(path).name for path in paths], self.fingerprint)
        return (*paths, str(manifest))

    # Lengths

    @property
    def max_len_single_sentence(self) -> int:
        """The tokens of a text that fit beside the special ones; without a limit, a number beyond all lengths."""
        return self.model_max_length - 2

    @property
    def max_len_sentences_pair(self) -> int:
        """The tokens of a pair of texts that fit beside the special ones."""
        return self.model_max_length - 3

    # The vocabulary

    @property
    def _length_limit(self) -> int | None:
        return None if self.model_max_length > files.UNLIMITED_LENGTH else self.model_max_length

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the vocabulary; `len(tokenizer)` counts the added ones behind it too."""
        return len(self._tokens)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def vocab(self) -> dict[str, int]:
        """The id of each token, added ones included (a copy)."""
        return dict(self._ids)

    def get_vocab(self) -> dict[str, int]:
        """The id of each token, added ones included (a copy)."""
        return dict(self._ids)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens that are recognised in text as a whole, special ones included, by their ids."""
        return dict(self._recognised)

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        """The ids of the tokens that are recognised in text as a whole."""
        return {token.content: index for index, token in self.added_tokens_decoder.items()}

    def get_added_vocab(self) -> dict[str, int]:
        """The ids of the tokens that are recognised in text as a whole."""
        return self.added_tokens_encoder

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add one or several tokens (strings or `AddedToken`s) that are recognised in text as a whole.

        Those that the tokenizer knows keep their ids; the others get new ones at the end, so a model's embedding may
        have to grow (`resize_token_embeddings(len(tokenizer))`). `special_tokens` makes special ones of them.

        Returns:
            how many were not recognised as a whole before, or with other flags.
        """
        # An empty token is passed over, as in transformers.
        given = [new_tokens] if isinstance(new_tokens, str) or not isinstance(new_tokens, Iterable) else new_tokens
        new = as_added_tokens([token for token in given if token != ""], special=special_tokens)
        if special_tokens:
            new = [token.as_special() for token in new]
        before = set(self.added_tokens_decoder.values())
        changed = [token for token in new if token not in before]
        self._replace(added_tokens=as_added_tokens([*self.added_tokens, *changed]))
        return len(changed)

    def add_special_tokens(
        self, special_tokens_dict: Mapping[str, Any], replace_extra_special_tokens: bool = True
    ) -> int:
        """Give roles to tokens and add them where they are missing; text keeps them whole.

        Args:
            special_tokens_dict: from "mask_token" and the like to a token, and from "additional_special_tokens" (or
                "extra_special_tokens", as transformers calls it) to a list of them.
            replace_extra_special_tokens: that list replaces the one there was, whose tokens stay added; False: it is
                appended.

        Returns:
            how many were not recognised as a whole before, or with other flags.
        """
        changes: dict[str, Any] = {}
        new: list[AddedToken] = []
        for name, value in special_tokens_dict.items():
            if name in files.SPECIAL_TOKEN_NAMES:
                new.append(as_added_token(value, special=True).as_special())
                changes[name] = new[-1].content
            elif name in ("additional_special_tokens", "extra_special_tokens"):
                extra = [token.as_special() for token in as_added_tokens(value, special=True)]
                kept = [] if replace_extra_special_tokens else self.additional_special_tokens
                changes["additional_special_tokens"] = list(dict.fromkeys([*kept, *(token.content for token in extra)]))
                new += extra
            else:
                known = ", ".join(files.SPECIAL_TOKEN_NAMES)
                raise ValueError(f"{name!r} must be one of {known}, additional_special_tokens")
        # What was recognised by its role or as an additional token stays recognised.
        before, special = set(self._recognised.values()), set(self.all_special_tokens)
        left_out = [token for token in self._recognised.values() if token.content in special]
        added = as_added_tokens([*self.added_tokens, *left_out, *new])
        self._replace(added_tokens=added, **changes)
        return len({token.content for token in new} - {token.content for token in new if token in before})

    def _replace(self, **changes: Any) -> None:
        """Change options, all at once, so that calls on other threads see the old state or the new one."""
        draft = object.__new__(type(self))
        draft.__dict__.update({name: value for name, value in self.__dict__.items() if name != "_core"} | changes)
        draft._update()
        self.__dict__.update(draft.__dict__)

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens by role."""
        return {name: getattr(self, name) for name in files.SPECIAL_TOKEN_NAMES}

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens, each once."""
        return list(dict.fromkeys([*self.special_tokens_map.values(), *self.additional_special_tokens]))

    @property
    def extra_special_tokens(self) -> list[str]:
        """The additional special tokens, by their newer name."""
        return list(self.additional_special_tokens)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens, each once."""
        return [self._ids[token] for token in self.all_special_tokens]

    @property
    def is_continuation(self) -> np.ndarray:
        """By id: does the token continue a word ("##...")? A bool array of length `len(tokenizer)`."""
        continued = [token.startswith("##") for token in self._tokens]
        return np.array(continued + [False] * (len(self) - self.vocab_size), dtype=np.bool_)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the vocabulary and of all that changes the ids of a text."""
        options = {
            "do_lower_case": self.do_lower_case,
            "strip_accents": self.do_lower_case if self.strip_accents is None else self.strip_accents,
            "tokenize_chinese_chars": self.tokenize_chinese_chars,
            "split_special_tokens": self.split_special_tokens,
            "additional_special_tokens": sorted(self.additional_special_tokens),
            **self.special_tokens_map,
        }
        if self.added_tokens:
            options["added_tokens"] = [token.to_dict() for token in self.added_tokens]
        return hashlib.sha256(json.dumps([self._tokens, options], sort_keys=True).encode()).hexdigest()

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """The id of a token, or the list of ids of several; unknown tokens have the id of `unk_token`."""
        if isinstance(tokens, str):
            return self._ids.get(tokens, self.unk_token_id)
        if isinstance(tokens, bytes):
            raise TypeError("tokens must be strings, not bytes; decode them first, e.g. tokens.decode('utf-8')")
        return [self._ids.get(_checked_token(token, index), self.unk_token_id) for index, token in enumerate(tokens)]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The token of an id, or the list of tokens of several."""
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
        """Text from ids: words joined by spaces, as transformers does it. Ids outside the vocabulary are skipped.

        `token_ids` is an id, a list or array of ids, or the result of a call; several rows give a list of texts.
        """
        ids = decoding.plain_ids(token_ids)
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
            return [self._decode_row(row, skip_special_tokens, clean_up_tokenization_spaces) for row in ids]
        return self._decode_row(ids, skip_special_tokens, clean_up_tokenization_spaces)

    def _decode_row(self, ids: Any, skip_special_tokens: bool, clean_up_tokenization_spaces: bool | None) -> str:
        skipped = self._skipped if skip_special_tokens else frozenset[str]()
        known = [index for index in _integers(ids) if index < len(self)]
        if known and min(known) < 0:
            raise ValueError(f"id {min(known)} is negative; padding of labels (-100) must be taken out first")
        names = (self._names[index] for index in known)
        text = decoding.join_tokens(name for name in names if name not in skipped)
        return decoding.clean_up(text) if clean_up_tokenization_spaces else text

    def batch_decode(
        self, sequences: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool | None = False
    ) -> list[str]:
        """The text of each row of ids, as a list."""
        texts = self.decode(sequences, skip_special_tokens, clean_up_tokenization_spaces)
        return [texts] if isinstance(texts, str) else texts

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Text from tokens, as `decode` makes it from their ids."""
        if isinstance(tokens, str):
            raise TypeError("tokens must be a sequence of strings, not one string")
        return decoding.join_tokens(_checked_token(token, index) for index, token in enumerate(tokens))

    def clean_up_tokenization(self, text: str) -> str:
        """A text without the spaces before punctuation and English contractions."""
        return decoding.clean_up(text)

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_core", "_other_core", "_backend")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._other_core = self._backend = None
        self._core = self._build_core(self.split_special_tokens)

    def __repr__(self) -> str:
        return (
            f"WordPieceTokenizer(vocab_size={self.vocab_size}, do_lower_case={self.do_lower_case}, "
            f"strip_accents={self.strip_accents}, tokenize_chinese_chars={self.tokenize_chinese_chars}, "
            f"model_max_length={self.model_max_length})"
        )


def _integers(ids: Any) -> list[int]:
    """Ids as a list of Python integers, from a list, an array, a tensor or a single id."""
    ids = decoding.plain_ids(ids)
    return [operator.index(index) for index in ([ids] if isinstance(ids, int) else ids)]


def _checked_token(token: Any, index: int) -> str:
    if not isinstance(token, str):
        raise TypeError(f"tokens[{index}] must be a string, not {type(token).__name__}")
    return token


def _checked_model_max_length(length: int | float | None) -> int:
    """A tokenizer without a limit has transformers' very large number, so that it can be compared with others."""
    if length is None or length > files.UNLIMITED_LENGTH:
        return files.NO_LIMIT
    if length != int(length) or length < 1:
        raise ValueError(f"model_max_length={length} must be a whole number of at least 1 (None for no limit)")
    return int(length)
