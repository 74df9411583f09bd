"""Implement what transformers, sentence-transformers and peft require of a tokenizer beyond encoding and decoding.

transformers is imported only when needed: `import fastbert` stays light.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from fastbert.errors import UserError
from fastbert.tokenizers import files
from fastbert.tokenizers.added import AddedToken

# The classes that callers use in isinstance, the most derived first.
_BASES = (
    ("transformers.tokenization_utils_tokenizers", "TokenizersBackend"),
    ("transformers.tokenization_utils_fast", "PreTrainedTokenizerFast"),
    ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase"),
)


class TransformersInterface:
    """Attributes and methods by which other libraries recognise a tokenizer of transformers.

    `isinstance(tokenizer, transformers.PreTrainedTokenizerFast)` is true: `Trainer` chooses its collator by it, and
    sentence-transformers requires it. `type(tokenizer)` remains fastbert's class.
    """

    SPECIAL_TOKENS_ATTRIBUTES: ClassVar[list[str]] = [*files.SPECIAL_TOKEN_ROLES]
    vocab_files_names: ClassVar[dict[str, str]] = {"tokenizer_file": files.TOKENIZER_FILE}
    option_names: ClassVar[tuple[str, ...]]
    """The names of the constructor's options that files hold, beside special and added tokens."""
    pretrained_vocab_files_map: ClassVar[dict[str, Any]] = {}
    is_fast = True
    backend = "tokenizers"
    verbose = False
    chat_template = response_template = slow_tokenizer_class = None
    add_bos_token = add_eos_token = add_prefix_space = False
    init_inputs: tuple[Any, ...] = ()

    _backend: Any

    if not TYPE_CHECKING:

        @property
        def __class__(self) -> type:
            """Return the class for `isinstance`, once transformers is imported a subclass of its fast tokenizers."""
            base = _base_of_transformers()
            return type(self) if base is None else _recognised(type(self), base)

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}; tokenizer.to_transformers() returns a tokenizer of"
                " transformers, which may have it"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle refuses its default form if __class__ is not the type.
        return _blank, (type(self),), self.__getstate__()

    @functools.cached_property
    def deprecation_warnings(self) -> dict[str, bool]:
        """Return the warnings that collators switch off; this tokenizer has none."""
        return {}

    @property
    def files_loaded(self) -> list[str]:
        """Return an empty list, for transformers."""
        return []

    @property
    def init_kwargs(self) -> dict[str, Any]:
        """Return the options of an equal tokenizer, by transformers' names."""
        tokenizer: Any = self
        options = {name: getattr(tokenizer, name) for name in self.option_names}
        extra = {"extra_special_tokens": tokenizer.extra_special_tokens, "name_or_path": tokenizer.name_or_path}
        return options | tokenizer.special_tokens_map | extra

    @property
    def _tokenizer(self) -> Any:
        """Return an equal `tokenizers.Tokenizer`, a copy, from which pipelines read the prefix of continued words."""
        if self._backend is None:
            self._backend = self.to_transformers().backend_tokenizer
        return self._backend

    @property
    def backend_tokenizer(self) -> ReadOnlyBackend:
        """Return an equal `tokenizers.Tokenizer`, read-only, since changes would have no effect."""
        return ReadOnlyBackend(self._tokenizer)

    def to_transformers(self) -> Any:
        """Return an equal fast tokenizer of transformers, independent of this tokenizer.

        It is a `BertTokenizerFast` for WordPiece, else a `PreTrainedTokenizerFast`, and has the same ids, special and
        added tokens, lengths and sides. Needed only for code that calls methods that this tokenizer lacks; pipelines,
        collators, `Trainer` and sentence-transformers accept this tokenizer, which is faster.

        Raises:
            UserError: transformers is not installed.
        """
        raise NotImplementedError

    def save_vocabulary(
        self, save_directory: str | os.PathLike[str], filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write only the vocabulary and return the paths of its files: `vocab.txt` for WordPiece, `vocab.json` and
        `merges.txt` for BPE, `unigram.json` for Unigram."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        names = self._write_vocabulary(folder, f"{filename_prefix}-" if filename_prefix else "")
        return tuple(str(folder / name) for name in names)

    def _write_vocabulary(self, folder: Path, prefix: str = "") -> list[str]:
        """Write the vocabulary's own files, with a prefix of their names; return the names."""
        raise NotImplementedError

    def push_to_hub(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise UserError: fastbert does not upload."""
        raise UserError(
            "this tokenizer does not upload: save_pretrained(folder) and `hf upload REPOSITORY folder`, or"
            " tokenizer.to_transformers().push_to_hub(REPOSITORY)"
        )

    def apply_chat_template(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise UserError: encoders have no chat template."""
        raise UserError("this tokenizer has no chat template; tokenize the text of the messages itself")


class ReadOnlyBackend:
    """A read-only view of a `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: Any) -> None:
        object.__setattr__(self, "_wrapped", tokenizer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("add_", "enable_", "no_", "train")):
            self.__setattr__(name, None)
        return getattr(self.__dict__["_wrapped"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise UserError(
            f"backend_tokenizer.{name}: the backend of a fastbert tokenizer is a copy, and changing it would have no"
            " effect; set the tokenizer's own attribute (do_lower_case, strip_accents, add_tokens, ...), or use"
            " tokenizer.to_transformers()"
        )

    def __repr__(self) -> str:
        return repr(self.__dict__["_wrapped"])


def check_save_options(options: Mapping[str, Any]) -> None:
    """Raise UserError for unsupported options of transformers' `save_pretrained`; ignore those without effect."""
    for name in ("push_to_hub", "filename_prefix"):
        if options.get(name):
            raise UserError(
                f"save_pretrained({name}={options[name]!r}) is not supported; save to a folder without it, and"
                " `hf upload` or rename the files"
            )


def bert_tokenizer(tokenizer: Any) -> Any:
    """Return a `transformers.BertTokenizerFast` equal to a `WordPieceTokenizer`."""
    from tokenizers import AddedToken as TokenizersAddedToken

    BertTokenizer = _transformers().BertTokenizerFast
    tokens = list(tokenizer.vocab)
    added: dict[int, AddedToken] = tokenizer.added_tokens_decoder
    converted = BertTokenizer(
        vocab={token: index for index, token in enumerate(tokens[: tokenizer.vocab_size])},
        **_arguments(tokenizer),
        added_tokens_decoder={
            index: TokenizersAddedToken(
                token.content,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                single_word=token.single_word,
                normalized=token.normalized,
                special=token.special,
            )
            for index, token in added.items()
        },
    )
    return _checked(converted, tokenizer)


def fast_tokenizer(tokenizer: Any, content: Mapping[str, Any]) -> Any:
    """Return a `transformers.PreTrainedTokenizerFast` of a tokenizer.json's content, equal to a tokenizer with it."""
    PreTrainedTokenizerFast = _transformers().PreTrainedTokenizerFast
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(json.dumps(content))
    converted = PreTrainedTokenizerFast(tokenizer_object=backend, **_arguments(tokenizer))
    return _checked(converted, tokenizer)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UserError(f"to_transformers() needs transformers ({error}): `pip install -U transformers`") from None
    return transformers


def _arguments(tokenizer: Any) -> dict[str, Any]:
    """Return the options and special tokens of a tokenizer as arguments of transformers' classes."""
    options: dict[str, Any] = {name: getattr(tokenizer, name) for name in tokenizer.option_names}
    if tokenizer.additional_special_tokens:
        options["extra_special_tokens"] = list(tokenizer.additional_special_tokens)
    return options | {"model_input_names": list(tokenizer.model_input_names)} | tokenizer.special_tokens_map


def _checked(converted: Any, tokenizer: Any) -> Any:
    converted.name_or_path = tokenizer.name_or_path
    if converted.get_vocab() != tokenizer.get_vocab():
        raise UserError(
            "the installed transformers builds a different vocabulary from this tokenizer's tokens: `pip install"
            " -U transformers`"
        )
    return converted


def _base_of_transformers() -> type | None:
    """Return transformers' class of fast tokenizers, if transformers has been imported."""
    for module, name in _BASES:
        # A module that is just being imported may lack the name.
        base = getattr(sys.modules.get(module), name, None)
        if isinstance(base, type):
            return base
    return None


@functools.cache
def _recognised(kind: type, base: type) -> type:
    """Return a class for `isinstance` and class methods; its instances are of type `kind`."""

    def new(cls: type, *arguments: Any, **options: Any) -> Any:
        return kind(*arguments, **options)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, "__new__": new}
    return type(kind.__name__, (kind, base), names)


def _blank(kind: type) -> Any:
    """Return an empty instance for unpickling."""
    return object.__new__(kind)
