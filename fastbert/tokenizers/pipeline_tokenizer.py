"""Tokenizers that are described by a tokenizer.json: byte-level BPE and Unigram."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from fastbert.checkpoints.manifest import TOKENIZER, update_manifest, verify_path
from fastbert.io.atomic_write import write_atomic, write_json_atomic
from fastbert.io.collector import collector_paused
from fastbert.tokenizers import call, files
from fastbert.tokenizers.added import AddedToken, as_added_tokens
from fastbert.tokenizers.json_errors import VocabularyError
from fastbert.tokenizers.pipeline import SPACE, Content, Pipeline, decoder_of
from fastbert.tokenizers.pipeline_files import read_content
from fastbert.tokenizers.template import PostProcessor, RowTemplate, read_post_processor
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.transformers_interface import check_save_options, fast_tokenizer

# transformers warns of wrong ids in any folder with more tokens whose config.json was not written by its version 5,
# unless the tokenizer's options say that there is nothing to correct.
_SUSPECTED_OF_MISTRAL = 100_000


class PipelineTokenizer(Tokenizer):
    """A tokenizer whose normalizer, pre-tokenizer, rows and decoder are those of a tokenizer.json.

    A subclass adds the model: what a word becomes.

    Raises:
        UserError: a step is one that fastbert does not have, a token is empty or occurs twice, or a special token is
            missing.
        ValueError: a side or `model_max_length` has another value.
    """

    _needs_unknown = False
    option_names: ClassVar[tuple[str, ...]] = (
        "model_max_length",
        "split_special_tokens",
        "padding_side",
        "truncation_side",
    )

    def __init__(
        self,
        vocab: Sequence[str],
        *,
        pipeline: Pipeline,
        model_max_length: int | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        unk_token: str | None = None,
        sep_token: str | None = None,
        pad_token: str | None = None,
        cls_token: str | None = None,
        mask_token: str | None = None,
        additional_special_tokens: Sequence[str] = (),
        split_special_tokens: bool = False,
        added_tokens: Sequence[str | AddedToken] = (),
        padding_side: str = "right",
        truncation_side: str = "right",
        model_input_names: Sequence[str] | None = None,
    ) -> None:
        self.pipeline = pipeline
        self._post_processor: PostProcessor = read_post_processor(pipeline.post_processor, pipeline.path)
        self._normalizer = pipeline.compiled_normalizer()
        decoder_of(pipeline.decoder, pipeline.path)  # refuses a step that is not supported
        self.split_special_tokens: bool = bool(split_special_tokens)
        self.padding_side: str = call.checked_side(padding_side, "padding_side")
        self.truncation_side: str = call.checked_side(truncation_side, "truncation_side")
        self.model_max_length: int = call.checked_model_max_length(model_max_length)
        self.bos_token: str | None = bos_token
        self.eos_token: str | None = eos_token
        self.unk_token: str | None = unk_token
        self.sep_token: str | None = sep_token
        self.pad_token: str | None = pad_token
        self.cls_token: str | None = cls_token
        self.mask_token: str | None = mask_token
        self.additional_special_tokens: list[str] = list(additional_special_tokens)
        self.added_tokens: list[AddedToken] = as_added_tokens(added_tokens)
        if model_input_names is None:
            types = {type_id for row in (self.template.single, self.template.pair) for _, type_id in row}
            has_types = types != {0} and bool(self.template.special_tokens())
            model_input_names = ["input_ids", *["token_type_ids"] * has_types, "attention_mask"]
        self.model_input_names: list[str] = list(model_input_names)
        self._tokens = list(vocab)
        self._update(str(pipeline.path))
        for token, token_id in self._post_processor.ids.items():
            if self._ids.get(token) != token_id:
                raise VocabularyError(
                    f"{pipeline.path}: its post_processor gives {token!r} the id {token_id}, but the vocabulary"
                    f" {self._ids.get(token)}; make them agree"
                )

    # Files

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], *, verify: bool = True, **options: Any) -> Self:
        """Read a tokenizer's folder or a tokenizer.json; `options` override those of the files.

        Without a tokenizer.json, byte-level BPE is read from vocab.json and merges.txt, and Unigram from spiece.model,
        sentencepiece.bpe.model or spm.model (which needs the sentencepiece package), with the steps of the folder's
        architecture. Options come from `tokenizer_config.json` and `special_tokens_map.json`. Files are compared with
        the `fastbert_manifest.json` beside them, unless `verify` is False. Raises `UserError` for files that are
        missing, damaged, or not of this kind of tokenizer.
        """
        path = Path(path)
        verify_path(path, TOKENIZER, verify=verify)
        with collector_paused():
            content = read_content(path)
            if content.kind != cls.kind:
                raise VocabularyError(f"{path}: holds a {content.kind} tokenizer, not {cls.kind}; use load_tokenizer")
            return cls.from_content(content, path, **options)

    @classmethod
    def from_content(cls, content: Content, path: Path, **options: Any) -> Self:
        """Build the tokenizer of a folder's files that have been read; `options` override theirs.

        Raises:
            UserError: the content is not that of a tokenizer of this kind.
        """
        try:
            tokenizer = cls(content.vocab, **content.model, pipeline=content.pipeline, **(content.options | options))
        except VocabularyError as error:
            raise VocabularyError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
        tokenizer.name_or_path = str(path)
        return tokenizer

    def to_json(self) -> dict[str, Any]:
        """Return the content of the tokenizer's tokenizer.json."""
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": index, **token.to_dict()} for index, token in self._recognised.items()],
            "normalizer": self.pipeline.normalizer,
            "pre_tokenizer": self.pipeline.pre_tokenizer,
            "post_processor": self.pipeline.post_processor,
            "decoder": self.pipeline.decoder,
            "model": self._model_json(),
        }

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> tuple[str, ...]:
        """Write `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json`, with which transformers loads
        an equal tokenizer, and for BPE `vocab.json` and `merges.txt`.

        The files' checksums are entered in `fastbert_manifest.json`. Other options of transformers are ignored.

        Returns:
            The paths of the files.

        Raises:
            UserError: `push_to_hub` or `filename_prefix` is given.
        """
        check_save_options(options)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        special_tokens: dict[str, Any] = dict(self.special_tokens_map)
        if self.additional_special_tokens:
            special_tokens["additional_special_tokens"] = self.additional_special_tokens
        config = {
            # A class of transformers that takes every step from tokenizer.json.
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{name: getattr(self, name) for name in self.option_names},
            "model_input_names": self.model_input_names,
            "clean_up_tokenization_spaces": False,
            **special_tokens,
        }
        if len(self) > _SUSPECTED_OF_MISTRAL:
            config["fix_mistral_regex"] = False
        write_json_atomic(folder / files.TOKENIZER_FILE, self.to_json(), ensure_ascii=False)
        write_json_atomic(folder / files.CONFIG_FILE, config, ensure_ascii=False)
        write_json_atomic(folder / files.SPECIAL_TOKENS_FILE, special_tokens, ensure_ascii=False)
        names = [
            files.TOKENIZER_FILE,
            files.CONFIG_FILE,
            files.SPECIAL_TOKENS_FILE,
        ]
        if self._vocabulary_beside_json:
            names += self._write_vocabulary(folder)
        for stale in (files.VOCAB_FILE, files.ADDED_TOKENS_FILE, "vocab.json", "merges.txt"):
            if stale not in names:
                (folder / stale).unlink(missing_ok=True)
        manifest = update_manifest(folder, names, self.fingerprint)
        return (*(str(folder / name) for name in names), str(manifest))

    def to_transformers(self) -> Any:
        """Return an equal `transformers.PreTrainedTokenizerFast`, as `Tokenizer.to_transformers`."""
        return fast_tokenizer(self, self.to_json())

    def lower_cased(self) -> Self:
        """Return a tokenizer that converts texts to lower case before its other steps."""
        tokenizer = object.__new__(type(self))
        tokenizer.__dict__.update(self.__getstate__(), pipeline=self.pipeline.lower_cased())
        tokenizer._normalizer = tokenizer.pipeline.compiled_normalizer()
        tokenizer._update(self.name_or_path)
        return tokenizer

    # The kind

    kind: ClassVar[str]
    """The name of the model in a tokenizer.json."""

    _vocabulary_beside_json = False
    """True if a folder has the vocabulary's own files beside the tokenizer.json."""

    def _model_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def _model_fingerprint(self) -> str:
        """Return a hash of what the model holds beside its tokens."""
        raise NotImplementedError

    @property
    def template(self) -> RowTemplate:
        """Return the rows of the post-processor."""
        return self._post_processor.template

    @property
    def is_continuation(self) -> np.ndarray:
        """Return which ids continue a word, bool (len(tokenizer),): those that do not begin with a space."""
        special = set(self.all_special_tokens)
        continues = [not token.startswith(self._space) and token not in special for token in self._tokens]
        return np.array(continues + [False] * (len(self) - self.vocab_size), dtype=np.bool_)

    _space = SPACE

    def _normalize(self, text: str) -> str:
        return self._normalizer.normalize(text)

    def _fingerprint_options(self) -> dict[str, Any]:
        parts = self.pipeline
        steps = json.dumps([parts.normalizer, parts.pre_tokenizer, parts.post_processor], sort_keys=True)
        return {
            "kind": self.kind,
            "model": self._model_fingerprint(),
            "pipeline": hashlib.sha256(steps.encode()).hexdigest(),
        }

    def _join_tokens(self, tokens: Iterable[str]) -> str:
        return self.pipeline.decode(tokens)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_normalizer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__["_normalizer"] = state["pipeline"].compiled_normalizer()
        super().__setstate__(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size}, model_max_length={self.model_max_length})"


def check_distinct(tokens: Sequence[str], path: Path) -> None:
    """Raise VocabularyError for empty and repeated tokens."""
    files.check_tokens(tokens, lambda index: f"{path}, id {index}")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file, line by line."""
    write_atomic(path, "".join(f"{line}\n" for line in lines))


def hash_of(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of some values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
