"""Convert text to model inputs: what is common to tokenizers of any kind, in the interface of transformers."""

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbert import _C
from fastbert.tokenizers import call
from fastbert.tokenizers.encoding import Encoding, Layout, make_encoding, pad_rows
from fastbert.tokenizers.line_files import read_line_batches
from fastbert.tokenizers.row_encoding import RowTable, TokenNames
from fastbert.tokenizers.template import RowTemplate
from fastbert.tokenizers.vocabulary import Vocabulary

if TYPE_CHECKING:
    from fastbert.packing import PackedBatch


class Tokenizer(Vocabulary):
    """A tokenizer of any kind over a C++ core, with rows such as `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`.

    Stateless: no call changes the results of another, so threads may share an instance. Picklable.
    """

    model_input_names: list[str] = ["input_ids", "token_type_ids", "attention_mask"]  # noqa: RUF012 (as transformers)
    pad_token_type_id = 0

    # Files

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> tuple[str, ...]:
        """Write the tokenizer's files, which transformers loads with the same result; return their paths.

        Raises:
            UserError: `push_to_hub` or `filename_prefix` is given, or the files cannot hold the tokenizer.
        """
        raise NotImplementedError

    # Text to ids

    def encode_ragged(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = False,
        *,
        max_length: int | None = None,
        threads: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of many texts without padding and without a Python object per token: the bulk path.

        Returns:
            The ids, int32 (tokens,), and their offsets, int64 (texts + 1,). Text i has the ids
            `ids[offsets[i] : offsets[i + 1]]`.

        Texts are truncated on the right to `max_length` tokens, including special tokens (None: not truncated). The GIL
        is released; `threads` (default: the CPUs this process may use) changes the speed, never the result.

        Raises:
            TypeError: a text is not a string.
            ValueError: `max_length` has no room for the special tokens, or `threads` is below 1.
        """
        threads = call.checked_threads(threads)
        max_length = call.checked_max_length(max_length)
        if max_length is not None:
            max_length = min(max_length, 2**40)
            call.check_room(max_length, self.num_special_tokens_to_add() if add_special_tokens else 0)
        if not add_special_tokens:
            return self._core.encode_ragged(texts, max_length, threads)
        return self._core.encode_wrapped(texts, max_length, self.prefix_ids, self.suffix_ids, threads)

    def encode_aligned_ragged(
        self, texts: Sequence[str], *, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the tokens of many texts with their positions in the text, without special tokens.

        Returns:
            For each token, int32 (tokens,), its id, its first code point in the text, its end (exclusive), and the
            index of the word that it is a piece of; then the offsets, int64 (texts + 1,). Text i has the items from
            `offsets[i]` to `offsets[i + 1]`.

        Raises:
            TypeError: a text is not a string.
            ValueError: `threads` is below 1.
        """
        return self._core.encode_aligned_ragged(texts, call.checked_threads(threads))

    def encode_files(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        add_special_tokens: bool = True,
        *,
        max_length: int | None = None,
        batch_bytes: int = 16_000_000,
        threads: int | None = None,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the ids of the lines of text files (UTF-8; also .gz and .xz) in batches.

        A batch is a result of `encode_ragged`: ids, int32 (tokens,), and offsets, int64 (lines + 1,), of whole lines of
        one file, about `batch_bytes` bytes in total, so files may be larger than memory. Lines end with a line feed,
        optionally after a carriage return; empty lines count. They are truncated to `max_length` tokens, including
        special tokens (None: not truncated).

        Raises:
            UserError: a file cannot be read or is not UTF-8; the message names file, line and byte.
        """
        for lines in read_line_batches(paths, batch_bytes):
            yield self.encode_ragged(lines, add_special_tokens, max_length=max_length, threads=threads)

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
        """Return the model inputs of one text or a batch, single or in pairs; the arguments are those of transformers.

        Args:
            text: a string; a list of strings, or of pairs of strings, for a batch. With `is_split_into_words`, a list
                of words, or a list of such lists.
            text_pair: the second sequence of each pair, of the same type (`pairs` is an alias). As in transformers, a
                single text with an empty second sequence is not a pair, whereas in a batch it is.
            add_special_tokens: put `[CLS]` before and `[SEP]` after the sequences.
            padding: True or "longest" of the batch, or "max_length".
            truncation: True or "longest_first", "only_first", "only_second"; False: none. None means "longest_first" if
                `max_length` is given without padding, else no truncation.
            max_length: for truncation and for `padding="max_length"`; None means `model_max_length`.
            stride: the number of tokens that an overflowing row shares with the previous row.
            is_split_into_words: texts are lists of words.
            pad_to_multiple_of: round the padded length up to a multiple.
            padding_side, truncation_side: "right" or "left"; None means the tokenizer's attribute.
            return_tensors: None for lists, "np" for int64 arrays, "pt" for int64 tensors.
            return_token_type_ids, return_attention_mask: None means True if `model_input_names` has the name.
            return_overflowing_tokens: return truncated tokens as further rows; "overflow_to_sample_mapping" holds the
                index of each row's text.
            return_special_tokens_mask, return_offsets_mapping, return_length: add these keys.
            split_special_tokens: treat special tokens in text as plain text; None means the tokenizer's attribute.
            verbose: warn about rows longer than `model_max_length`.
            threads: maximum number of threads (default: the CPUs this process may use); it does not change the result.

        Raises:
            TypeError: a text is not a string, or contains a lone surrogate (half of a character).
            ValueError: an option has an invalid value, a length leaves no room for the special tokens or the stride, or
                rows of different lengths should become a torch tensor.
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
            model_max_length=self._length_limit,
            added=self.num_special_tokens_to_add(inputs.pairs is not None) if add_special_tokens else 0,
            added_to_single=self.num_special_tokens_to_add(),
        )
        core = self._core_for(split_special_tokens)
        plan = functools.partial(self._plan, inputs, add_special_tokens, lengths.truncation, core=core)
        rows = plan(return_offsets_mapping, threads)
        realign = None if return_offsets_mapping else lambda: plan(True, threads)
        table = RowTable(rows, realign, TokenNames(self._spelled, self._varying, core), inputs)
        width = lengths.width(table.longest_main)
        if tensors == "pt":
            call.check_tensor_rows(table, width, lengths.padding)
        if verbose and max_length is None:
            call.warn_of_length(table.longest_main, self._length_limit)
        if width and self.pad_token_id is None:
            raise ValueError("this tokenizer has no pad_token; set it, e.g. tokenizer.pad_token = tokenizer.eos_token")
        layout = Layout(
            width=width,
            left=call.checked_side(padding_side or self.padding_side, "padding_side") == "left",
            pad_token_id=self.pad_token_id or 0,
            tensors=tensors,
            single=inputs.single and not tensors and not return_overflowing_tokens,
            threads=threads,
        )
        requested = {
            "input_ids": True,
            "token_type_ids": self._returns("token_type_ids", return_token_type_ids),
            "attention_mask": self._returns("attention_mask", return_attention_mask),
            "special_tokens_mask": return_special_tokens_mask,
            "offset_mapping": return_offsets_mapping,
            "length": return_length,
            "overflow_to_sample_mapping": return_overflowing_tokens,
        }
        return make_encoding(table, layout, [name for name, is_requested in requested.items() if is_requested])

    def _returns(self, name: str, requested: bool | None) -> bool:
        return name in self.model_input_names if requested is None else bool(requested)

    def _plan(
        self,
        inputs: call.Inputs,
        add_special_tokens: bool,
        truncation: _C.TruncationOptions,
        aligned: bool,
        threads: int,
        core: Any = None,
    ) -> _C.Rows:
        template = self._template(add_special_tokens)
        return (core or self._core).encode_rows(
            inputs.texts, inputs.pairs, inputs.text_bounds, inputs.pair_bounds, template, truncation, aligned, threads
        )

    def _core_for(self, split_special_tokens: bool | None) -> Any:
        if split_special_tokens is None or bool(split_special_tokens) == self.split_special_tokens:
            return self._core
        if self._other_core is None:
            self._other_core = self._build_core(not self.split_special_tokens)
        return self._other_core

    @property
    def template(self) -> RowTemplate:
        """Return the rows of this tokenizer: the special tokens around sequences, and types."""
        raise NotImplementedError

    def _template(self, add_special_tokens: bool) -> _C.Template:
        return self.template.compiled(self._ids.__getitem__, add_special_tokens)

    @property
    def prefix_ids(self) -> list[int]:
        """Return the ids of the special tokens before a single sequence."""
        return [self._ids[token] for token in self.template.around()[0]]

    @property
    def suffix_ids(self) -> list[int]:
        """Return the ids of the special tokens behind a single sequence."""
        return [self._ids[token] for token in self.template.around()[1]]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return the number of special tokens around a single sequence or a pair."""
        return len(self.template.special_tokens(pair))

    def pack(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, max_length: int | None = 512
    ) -> "PackedBatch":
        """Return texts (or pairs) as a `PackedBatch` with special tokens, truncated to `max_length` (None: not).

        Raises:
            TypeError: a text is not a string.
            ValueError: there are no texts, `max_length` has no room for the special tokens, or there is not one second
                text per text.
        """
        import torch

        from fastbert.packing import PackedBatch

        if isinstance(texts, str):
            raise TypeError("texts must be a sequence of strings, not one string")
        inputs = call.read_inputs(texts, pairs, False)
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
        rows = self._plan(inputs, True, lengths.truncation, False, call.checked_threads(None))
        offsets = rows.offsets()
        return PackedBatch(
            input_ids=torch.from_numpy(rows.column(_C.Column.IDS).astype(np.int64)),
            token_type_ids=torch.from_numpy(rows.column(_C.Column.TYPES).astype(np.int64)),
            cu_seqlens=torch.from_numpy(offsets.astype(np.int32)),
            max_seqlen=int(np.diff(offsets).max()),
        )

    def encode(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        """Return the ids of one text or pair; options are those of a call. Raises the errors of a call."""
        return self(text, text_pair, **options)["input_ids"]

    def tokenize(
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, **options: Any
    ) -> list[str]:
        """Return the tokens of a text (or pair); options are those of a call. Raises the errors of a call."""
        return self(text, pair, add_special_tokens=add_special_tokens, verbose=False, **options).tokens()

    # Rows of ids

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
        """Pad rows of ids: a mapping of lists, or a list of mappings, as collators pass them.

        `input_ids`, `token_type_ids`, `attention_mask` (created if missing) and `special_tokens_mask` are padded; other
        keys are not changed. With `return_tensors` they are int64 (rows, length). Raises ValueError for rows without
        `input_ids`, or of different lengths where they should become a tensor, and TypeError for rows that are not
        mappings.
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
            max_length=self._length_limit if max_length is None else max_length,
            pad_to_multiple_of=pad_to_multiple_of,
            side=padding_side or self.padding_side,
            with_mask=return_attention_mask is not False,
            return_tensors=return_tensors,
        )

    def build_inputs_with_special_tokens(self, ids: Sequence[int], pair_ids: Sequence[int] | None = None) -> list[int]:
        """Return the ids of a row with one sequence or two, as `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`."""
        row: list[int] = []
        for item, _ in self.template.items(pair_ids is not None):
            row += [self._ids[item]] if isinstance(item, str) else (ids, pair_ids or ())[item]
        return row

    def create_token_type_ids_from_sequences(
        self, ids: Sequence[int], pair_ids: Sequence[int] | None = None
    ) -> list[int]:
        """Return the types of a row: in BERT's, 0 for the first sequence and its special tokens, 1 for the second."""
        row: list[int] = []
        for item, type_id in self.template.items(pair_ids is not None):
            row += [type_id] * (1 if isinstance(item, str) else len((ids, pair_ids or ())[item]))
        return row

    def get_special_tokens_mask(
        self, ids: Sequence[int], pair_ids: Sequence[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """Return 1 for special tokens, else 0: by id in a finished row, else by the positions that they will have.

        Raises ValueError for a finished row given in two parts.
        """
        if already_has_special_tokens:
            if pair_ids is not None:
                raise ValueError(
                    "pair_ids must be None with already_has_special_tokens=True; give the whole row as ids"
                )
            special = set(self.all_special_ids)
            return [int(token_id in special) for token_id in ids]
        row: list[int] = []
        for item, _ in self.template.items(pair_ids is not None):
            row += [1] if isinstance(item, str) else [0] * len((ids, pair_ids or ())[item])
        return row
