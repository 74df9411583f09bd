"""`WordPieceTokenizer`: BERT's tokenizer over the C++ core, with the results of Hugging Face's `BertTokenizerFast`."""

import functools
import hashlib
import json
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbert import _C
from fastbert.tokenizers import call, decoding, files
from fastbert.tokenizers.added import AddedToken, as_added_token, as_added_tokens
from fastbert.tokenizers.encoding import Encoding, Layout, make_encoding
from fastbert.tokenizers.line_files import read_line_batches
from fastbert.tokenizers.padding import pad_rows
from fastbert.tokenizers.row_encoding import RowTable

if TYPE_CHECKING:
    from fastbert.packing import PackedBatch


class WordPieceTokenizer:
    """BERT's whole pipeline in C++: special tokens in text, clean-up, Chinese characters, accents, case, WordPiece.

    Stateless: no call changes what another one returns, so an instance may be shared between threads. Picklable.

    Args:
        vocab: the tokens in the order of their ids, or the path of a vocab.txt.
        do_lower_case: turn text to lower case.
        strip_accents: remove accents; None means "if `do_lower_case`", as in the original BERT.
        tokenize_chinese_chars: make a word of each Chinese character.
        model_max_length: the length, in tokens, that truncation and padding use when none is given.
        unk_token, sep_token, pad_token, cls_token, mask_token: the special tokens; they must be in the vocabulary or
            among the added tokens. In text they are recognised as they are written here, before anything else is done.
        additional_special_tokens: more tokens that are recognised in the same way. Those that are not in the vocabulary
            become added tokens.
        split_special_tokens: treat special tokens in text as plain text.
        added_tokens: strings or `AddedToken`s that are recognised as a whole. One that is in the vocabulary keeps its
            id; the others get the ids behind the vocabulary, in order.
        padding_side, truncation_side: "right" or "left", for calls that do not say.
    """

    is_fast = True
    model_input_names = ("input_ids", "token_type_ids", "attention_mask")
    pad_token_type_id = 0

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
        options = self._normalizer_options()
        for token in self.added_tokens:
            # What is searched in normalised text is also named so: "Foo Bar" decodes to "foo bar", as in transformers.
            name = _C.normalize(token.content, options) if token.normalized else token.content
            if not name:
                raise files.VocabularyError(
                    f"added token {token.content!a}: nothing is left of it when it is normalised; pass normalized=False"
                )
            self._names[ids[token.content]] = name
        self._other_core: _C.WordPiece | None = None
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
            for index, token in self.added_tokens_decoder.items()
        ]
        return _C.WordPiece(self._tokens, added, split_special_tokens, self.unk_token_id, self._normalizer_options())

    def _normalizer_options(self) -> _C.NormalizerOptions:
        strip = self.do_lower_case if self.strip_accents is None else self.strip_accents
        return _C.NormalizerOptions(self.do_lower_case, strip, self.tokenize_chinese_chars)

    # Files

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], **options: Any) -> "WordPieceTokenizer":
        """Read a tokenizer's folder, a bare vocab.txt or a bare tokenizer.json; `options` override what is found there.

        The options come from `tokenizer_config.json` and `special_tokens_map.json`, then from `tokenizer.json`, and
        added tokens from these and `added_tokens.json`, as in transformers. If all are missing and the vocabulary holds
        capitals, lower-casing is off, and a notice is logged.
        """
        path = Path(path)
        if path.is_dir():
            vocab, found = files.read_folder(path)
        elif path.suffix == ".json":
            vocab, found = files.read_tokenizer_file(path)
        else:
            vocab, found = files.read_vocab_file(path)
        try:
            return cls(vocab, **(found | options))
        except files.VocabularyError as error:
            raise files.VocabularyError(f"{path}: {error}") from None

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write `vocab.txt`, `tokenizer_config.json` and `special_tokens_map.json`, which transformers reads alike.

        A `tokenizer.json` is written too if there is one already, or if a token ends with white space.
        """
        options: dict[str, Any] = {
            "do_lower_case": self.do_lower_case,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.tokenize_chinese_chars,
            "model_max_length": self.model_max_length or int(1e30),
            "split_special_tokens": self.split_special_tokens,
            "padding_side": self.padding_side,
            "truncation_side": self.truncation_side,
        }
        special_tokens: dict[str, Any] = dict(self.special_tokens_map)
        if self.additional_special_tokens:
            special_tokens["additional_special_tokens"] = self.additional_special_tokens
        files.write_folder(Path(folder), self._tokens, options, special_tokens, self.added_tokens_decoder)

    # The vocabulary

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
        special = [AddedToken(name, special=True) for name in self.all_special_tokens]
        found = {self._ids[token.content]: token for token in as_added_tokens([*special, *self.added_tokens])}
        return dict(sorted(found.items()))

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
        new = as_added_tokens(new_tokens, special=special_tokens)
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
        before = self.added_tokens_decoder
        left_out = [token for token in before.values() if token.content in self.all_special_tokens]
        added = as_added_tokens([*self.added_tokens, *left_out, *new])
        self._replace(added_tokens=added, **changes)
        return len({token.content for token in new} - {token.content for token in new if token in before.values()})

    def _replace(self, **changes: Any) -> None:
        """Change options; if that fails, nothing is changed."""
        before = dict(self.__dict__)
        self.__dict__.update(changes)
        try:
            self._update()
        except Exception:
            self.__dict__.update(before)
            raise

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens by role."""
        return {name: getattr(self, name) for name in files.SPECIAL_TOKEN_NAMES}

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens, each once."""
        return list(dict.fromkeys([*self.special_tokens_map.values(), *self.additional_special_tokens]))

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
        return [self._ids.get(token, self.unk_token_id) for token in tokens]

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

    # Text to ids

    def encode_ragged(
        self, texts: Sequence[str], add_special_tokens: bool = False, *, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids of many texts without padding, and without a Python object per token: the bulk path.

        Returns:
            ids: int32; text i has `ids[offsets[i] : offsets[i + 1]]`.
            offsets: int64, one more than there are texts.

        The GIL is released; `threads` (default: the CPUs this process may use) changes the speed, never the result.
        """
        threads = call.checked_threads(threads)
        if not add_special_tokens:
            return self._core.encode_ragged(texts, False, threads)  # type: ignore[return-value]
        return self._core.encode_wrapped(texts, None, self.cls_token_id, self.sep_token_id, threads)

    def encode_aligned_ragged(
        self, texts: Sequence[str], *, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Tokens of many texts with the places they come from, without special tokens around them.

        Returns:
            ids, begins, ends, words: int32, one item per token: its id, its first code point in the text and the one
                behind its last, and the index of its word (before WordPiece) in the text.
            offsets: int64; text i has the items from `offsets[i]` to `offsets[i + 1]`.
        """
        return self._core.encode_ragged(texts, True, call.checked_threads(threads))  # type: ignore[return-value]

    def encode_files(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        add_special_tokens: bool = True,
        *,
        batch_bytes: int = 16_000_000,
        threads: int | None = None,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids of the lines of text files (UTF-8; also .gz and .xz), as results of `encode_ragged`, batch by batch.

        Lines end with a line feed, with or without a carriage return before it; empty lines count. A batch has whole
        lines of one file, of about `batch_bytes` bytes in all, so files may be larger than memory.

        Raises:
            UserError: a file that cannot be read or is not UTF-8, with its name, line and byte.
        """
        for lines in read_line_batches(paths, batch_bytes):
            yield self.encode_ragged(lines, add_special_tokens, threads=threads)

    def __call__(
        self,
        text: Any,
        text_pair: Any = None,
        *,
        pairs: Any = None,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        truncation_side: str | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        split_special_tokens: bool | None = None,
        verbose: bool = True,
        threads: int | None = None,
    ) -> Encoding:
        """Model inputs of one text or of a batch of texts, alone or in pairs; the arguments are those of transformers.

        Args:
            text: a string; a list of strings, or of pairs of strings, for a batch. With `is_split_into_words`, a list
                of words, or a list of such lists.
            text_pair: the second sequence of each pair, of the same kind (`pairs` is another name). As in
                transformers, a single text with an empty second sequence is no pair, while in a batch it is one.
            add_special_tokens: put `[CLS]` before and `[SEP]` after the sequences.
            padding: True or "longest" of the batch, or "max_length".
            truncation: True or "longest_first", "only_first", "only_second"; False for none. None means "longest_first"
                if `max_length` is given without padding, else none.
            max_length: for truncation and for `padding="max_length"`; None means `model_max_length`.
            stride: the tokens that a row of overflow has in common with the row before it.
            is_split_into_words: texts are lists of words.
            pad_to_multiple_of: rounds the padded length up.
            padding_side, truncation_side: "right" or "left"; None means the tokenizer's attribute.
            return_tensors: None for lists, "np" for int64 arrays, "pt" for int64 tensors.
            return_token_type_ids, return_attention_mask: True unless False.
            return_overflowing_tokens: what truncation cuts off becomes further rows; "overflow_to_sample_mapping" says
                which text a row is from.
            return_special_tokens_mask, return_offsets_mapping, return_length: add these keys.
            split_special_tokens: special tokens in text are plain text; None means the tokenizer's attribute.
            verbose: warn of rows over `model_max_length`.
            threads: at most so many (default: the CPUs this process may use); the result does not depend on it.

        Raises:
            TypeError: something is not a string, or is half of a character (a lone surrogate).
            ValueError: an option that is none of the above; a length that leaves no room for the special tokens or for
                the stride; rows of different lengths that were to become a torch tensor.
        """
        if pairs is not None and text_pair is not None:
            raise TypeError("text_pair and pairs are two names of one argument; give one of them")
        inputs = call.read_inputs(text, text_pair if pairs is None else pairs, is_split_into_words)
        threads = call.checked_threads(threads)
        tensors = call.checked_tensors(return_tensors)
        lengths = call.read_lengths(
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            stride=stride,
            pad_to_multiple_of=pad_to_multiple_of,
            left=call.checked_side(truncation_side or self.truncation_side, "truncation_side") == "left",
            overflow=return_overflowing_tokens,
            model_max_length=self.model_max_length,
            added=self.num_special_tokens_to_add(inputs.pairs is not None) if add_special_tokens else 0,
        )
        core = self._core_for(split_special_tokens)
        plan = functools.partial(self._plan, inputs, add_special_tokens, lengths.cutting, core=core)
        rows = plan(return_offsets_mapping, threads)
        table = RowTable(rows, None if return_offsets_mapping else lambda: plan(True, threads), self._token_of)
        width = lengths.width(table.longest_main)
        if tensors == "pt":
            call.check_tensor_rows(table, width, lengths.padding)
        if verbose and max_length is None:
            call.warn_of_length(table.longest_main, self.model_max_length)
        layout = Layout(
            width=width,
            left=call.checked_side(padding_side or self.padding_side, "padding_side") == "left",
            pad_token_id=self.pad_token_id,
            tensors=tensors,
            single=inputs.single and not tensors and not return_overflowing_tokens,
            threads=threads,
        )
        wanted = {
            "input_ids": True,
            "token_type_ids": return_token_type_ids is not False,
            "attention_mask": return_attention_mask is not False,
            "special_tokens_mask": return_special_tokens_mask,
            "offset_mapping": return_offsets_mapping,
            "length": return_length,
            "overflow_to_sample_mapping": return_overflowing_tokens,
        }
        return make_encoding(table, layout, [name for name, wants in wanted.items() if wants])

    def _plan(
        self,
        inputs: call.Inputs,
        add_special_tokens: bool,
        cutting: _C.Cutting,
        aligned: bool,
        threads: int,
        core: _C.WordPiece | None = None,
    ) -> _C.Rows:
        template = _C.Template(add_special_tokens, self.cls_token_id, self.sep_token_id)
        return (core or self._core).encode_rows(
            inputs.texts, inputs.pairs, inputs.text_bounds, inputs.pair_bounds, template, cutting, aligned, threads
        )

    def _core_for(self, split_special_tokens: bool | None) -> _C.WordPiece:
        if split_special_tokens is None or bool(split_special_tokens) == self.split_special_tokens:
            return self._core
        if self._other_core is None:
            self._other_core = self._build_core(not self.split_special_tokens)
        return self._other_core

    def _token_of(self, token_id: int) -> str:
        return self._names[token_id]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """The special tokens around a single sequence or a pair."""
        return 3 if pair else 2

    def pack(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, max_length: int | None = 512
    ) -> "PackedBatch":
        """A `PackedBatch` of the texts (or pairs) with special tokens, cut to `max_length` (None: not cut)."""
        import torch

        from fastbert.packing import PackedBatch

        inputs = call.read_inputs(_as_batch(texts, "texts"), pairs, False)
        if not inputs.texts:
            raise ValueError("texts is empty; a batch needs at least one text")
        lengths = call.read_lengths(
            padding=False,
            truncation=max_length is not None,
            max_length=max_length,
            stride=0,
            pad_to_multiple_of=None,
            left=self.truncation_side == "left",
            overflow=False,
            model_max_length=None,
            added=self.num_special_tokens_to_add(inputs.pairs is not None),
        )
        rows = self._plan(inputs, True, lengths.cutting, False, call.checked_threads(None))
        offsets = rows.offsets()
        return PackedBatch(
            input_ids=torch.from_numpy(rows.column(_C.Column.IDS).astype(np.int64)),
            token_type_ids=torch.from_numpy(rows.column(_C.Column.TYPES).astype(np.int64)),
            cu_seqlens=torch.from_numpy(offsets.astype(np.int32)),
            max_seqlen=int(np.diff(offsets).max()),
        )

    def encode(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        """The ids of one text or pair; options as in a call."""
        return self(text, text_pair, **options)["input_ids"]

    def tokenize(
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, **options: Any
    ) -> list[str]:
        """The tokens of a text (or pair) as strings."""
        return self(text, pair, add_special_tokens=add_special_tokens, verbose=False, **options).tokens()

    # Rows that are ids already

    def pad(
        self,
        encoded_inputs: Any,
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> Encoding:
        """Pad rows that this tokenizer returned: a mapping of lists, or a list of mappings, as collators have it.

        `input_ids`, `token_type_ids`, `attention_mask` (made if it is missing) and `special_tokens_mask` are padded;
        other keys stay as they are.
        """
        fillers = {
            "input_ids": self.pad_token_id,
            "token_type_ids": self.pad_token_type_id,
            "attention_mask": 0,
            "special_tokens_mask": 1,
        }
        return pad_rows(
            encoded_inputs,
            fillers=fillers,
            padding=padding,
            max_length=self.model_max_length if max_length is None else max_length,
            pad_to_multiple_of=pad_to_multiple_of,
            side=padding_side or self.padding_side,
            with_mask=return_attention_mask is not False,
            return_tensors=return_tensors,
        )

    def build_inputs_with_special_tokens(self, ids: Sequence[int], pair_ids: Sequence[int] | None = None) -> list[int]:
        """`[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]`, of ids."""
        first = [self.cls_token_id, *ids, self.sep_token_id]
        return first if pair_ids is None else [*first, *pair_ids, self.sep_token_id]

    def create_token_type_ids_from_sequences(
        self, ids: Sequence[int], pair_ids: Sequence[int] | None = None
    ) -> list[int]:
        """0 for the first sequence and its special tokens, 1 for the second."""
        return [0] * (len(ids) + 2) + ([] if pair_ids is None else [1] * (len(pair_ids) + 1))

    def get_special_tokens_mask(
        self, ids: Sequence[int], pair_ids: Sequence[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """1 where a special token stands: by their ids in a finished row, else by the place they will have."""
        if already_has_special_tokens:
            if pair_ids is not None:
                raise ValueError(
                    "pair_ids must be None with already_has_special_tokens=True; give the whole row as ids"
                )
            special = set(self.all_special_ids)
            return [int(token_id in special) for token_id in ids]
        first = [1, *[0] * len(ids), 1]
        return first if pair_ids is None else [*first, *[0] * len(pair_ids), 1]

    # Ids to text

    def decode(self, ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False) -> str:
        """Text from ids: words joined by spaces, as transformers does it. Ids outside the vocabulary are skipped."""
        special = (token.content for token in self.added_tokens_decoder.values() if token.special)
        skipped = set(special) if skip_special_tokens else set()
        names = (self._names[index] for index in _integers(ids) if 0 <= index < len(self))
        text = decoding.join_tokens(name for name in names if name not in skipped)
        return decoding.clean_up(text) if clean_up_tokenization_spaces else text

    def batch_decode(
        self, rows: Iterable[Any], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> list[str]:
        """The text of each row of ids."""
        return [self.decode(row, skip_special_tokens, clean_up_tokenization_spaces) for row in rows]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_core", "_other_core")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._other_core = None
        self._core = self._build_core(self.split_special_tokens)

    def __repr__(self) -> str:
        return (
            f"WordPieceTokenizer(vocab_size={self.vocab_size}, do_lower_case={self.do_lower_case}, "
            f"strip_accents={self.strip_accents}, tokenize_chinese_chars={self.tokenize_chinese_chars}, "
            f"model_max_length={self.model_max_length})"
        )


def _integers(ids: Any) -> list[int]:
    """Ids as a list of Python integers, from a list, an array, a tensor or a single id."""
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    return [operator.index(index) for index in ([ids] if isinstance(ids, int) else ids)]


def _as_batch(texts: Any, name: str) -> Any:
    if isinstance(texts, str):
        raise TypeError(f"{name} must be a sequence of strings, not one string")
    return texts


def _checked_model_max_length(length: int | float | None) -> int | None:
    # transformers writes a float-like 1e30 for "no limit".
    if length is None or length > files.UNLIMITED_LENGTH:
        return None
    if length != int(length) or length < 1:
        raise ValueError(f"model_max_length={length} must be a whole number of at least 1 (None for no limit)")
    return int(length)
