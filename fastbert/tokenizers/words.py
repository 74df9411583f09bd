"""A vocabulary of whole words, for models that predict words and read them by their characters (ELMo)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tokenizers import call
from fastbert.tokenizers.training import SPECIAL_TOKENS
from fastbert.tokenizers.word_counts import count_words
from fastbert.tokenizers.word_table import WORD_TABLE
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    from fastbert.packing import PackedBatch

MOST_WORDS = 1 << 20


def word_tokenizer(sentences: Iterable[str], predicted: int, limit: int = MOST_WORDS) -> WordPieceTokenizer:
    """Return a cased tokenizer whose tokens are words: special tokens, then the words of the corpus by frequency, those
    of equal frequency in the order of their code points.

    Words are split as by BERT's tokenizer, at spaces and punctuation. Words of more than 100 characters, and all but
    the `limit` most frequent ones, are [UNK]. A corpus with fewer words than a model should predict is logged as a
    warning. Raises `UserError` for a corpus without words.
    """
    counts = count_words(sentences, lower_case=False)
    if not counts:
        raise UserError("the corpus holds no words; give it some text")
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if len(words) > limit:
        logger.warning("the corpus has %d different words; the %d most frequent ones are kept", len(words), limit)
    tokens = [*SPECIAL_TOKENS, *words[:limit]]
    if len(tokens) < predicted:
        logger.warning(
            "the corpus has only %d of %d words (special tokens included), and all of them are predicted; use more text"
            " or a smaller vocab_size",
            len(tokens),
            predicted,
        )
    return WordPieceTokenizer(tokens, do_lower_case=False, split_special_tokens=True, model_max_length=None)


def check_words(tokens: Sequence[str], source: str) -> None:
    """Raise `UserError` for a vocabulary with pieces of words, which is named by `source`."""
    piece = next((token for token in tokens if token.startswith("##") and len(token) > 2), None)
    if piece is not None:
        raise UserError(
            f"{source}: holds {piece!r}, a piece of a word, but --objective bilm reads whole words; leave it out, or"
            " give the tokenizer of another ELMo"
        )


class WordTokenizer(WordPieceTokenizer):
    """A tokenizer of whole words, each of which keeps its characters: ids are numbers in the `WORD_TABLE` of this
    process, also of words that the vocabulary lacks.

    Text is split as by the tokenizer of the vocabulary. `encode_ragged`, `encode_aligned_ragged`, `pack` and
    `convert_ids_to_tokens` have these ids; a call of the tokenizer has those of its vocabulary.
    """

    def _update(self, source: str = "vocab") -> None:
        super()._update(source)
        if self._tokens[: len(SPECIAL_TOKENS)] != list(SPECIAL_TOKENS):
            raise UserError(f"{source}: must begin with {', '.join(SPECIAL_TOKENS)}, as vocabularies of words do")
        check_words(self._tokens, source)
        self._numbers = np.full(len(self), -1, np.int32)  # in the table, of tokens that have occurred
        self._numbers[: len(SPECIAL_TOKENS)] = np.arange(len(SPECIAL_TOKENS))

    def encode_aligned_ragged(
        self, texts: Sequence[str], *, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return numbers in the table and positions, as `Tokenizer.encode_aligned_ragged`."""
        ids, begins, ends, words, offsets = super().encode_aligned_ragged(texts, threads=threads)
        new = np.unique(ids[self._numbers[ids] < 0])
        self._numbers[new] = WORD_TABLE.ids([self._tokens[index] for index in new.tolist()])
        numbers = self._numbers[ids]
        unknown = np.flatnonzero(ids == self.unk_token_id)
        of_texts = (np.searchsorted(offsets, unknown, side="right") - 1).tolist()
        spans = zip(of_texts, begins[unknown].tolist(), ends[unknown].tolist(), strict=True)
        spelled = [texts[text][begin:end] for text, begin, end in spans]
        numbers[unknown] = WORD_TABLE.ids([self._normalize(word).strip() or word for word in spelled])
        return numbers, begins, ends, words, offsets

    def encode_ragged(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = False,
        *,
        max_length: int | None = None,
        threads: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers in the table, as `Tokenizer.encode_ragged`."""
        special = 2 if add_special_tokens else 0
        ids, _, _, _, offsets = self.encode_aligned_ragged(texts, threads=threads)
        sizes = np.diff(offsets)
        if max_length is not None:
            call.check_room(call.checked_max_length(max_length) or 0, special)
            sizes = np.minimum(sizes, max_length - special)
        return self._rows([ids], [offsets[:-1]], [sizes], special=bool(special))

    def pack(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, max_length: int | None = 512
    ) -> PackedBatch:
        """Return texts (or pairs) as a `PackedBatch` of numbers in the table, as `Tokenizer.pack`: of a pair the longer
        text is cut first."""
        import torch

        from fastbert.packing import PackedBatch

        if isinstance(texts, str):
            raise TypeError("texts must be a sequence of strings, not one string")
        inputs = call.read_inputs(texts, pairs, False)
        if not inputs.texts:
            raise ValueError("texts is empty; a batch needs at least one text")
        encoded = [self.encode_aligned_ragged(side) for side in (texts, pairs) if side is not None]
        sizes = [np.diff(each[4]) for each in encoded]
        if max_length is not None:
            call.check_room(max_length, self.num_special_tokens_to_add(pairs is not None))
            sizes = _cut(sizes, max_length - self.num_special_tokens_to_add(pairs is not None))
        ids, offsets = self._rows(
            [each[0] for each in encoded], [each[4][:-1] for each in encoded], sizes, special=True
        )
        types = np.zeros(len(ids), np.int64)
        if pairs is not None:
            types[_ranges(offsets[:-1] + 2 + sizes[0], sizes[1] + 1)] = 1
        return PackedBatch(
            input_ids=torch.from_numpy(ids.astype(np.int64)),
            token_type_ids=torch.from_numpy(types),
            cu_seqlens=torch.from_numpy(offsets.astype(np.int32)),
            max_seqlen=int(np.diff(offsets).max()),
        )

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return the word of a number in the table, or the words of a list of numbers. Raises IndexError for others."""
        if isinstance(ids, int | np.integer):
            return WORD_TABLE.words([int(ids)])[0]
        words = WORD_TABLE.words(int(index) for index in ids)
        return [word for word in words if not (skip_special_tokens and word in SPECIAL_TOKENS)]

    def spelled(self, ids: np.ndarray) -> tuple[list[str], np.ndarray]:
        """Return the different words of an array of numbers in the table, sorted, and the index of each word there,
        int64 and of the same shape: the same in every process."""
        numbers, inverse = np.unique(ids, return_inverse=True)
        words = WORD_TABLE.words(numbers.tolist())
        ranks = {word: rank for rank, word in enumerate(sorted(words))}
        indices = np.array([ranks[word] for word in words], np.int64)
        return list(ranks), indices[inverse.reshape(ids.shape)]

    def _rows(
        self, ids: list[np.ndarray], begins: list[np.ndarray], sizes: list[np.ndarray], *, special: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of the first `sizes` ids from `begins` on of each side, and their offsets; with `special` [CLS]
        is put before and [SEP] behind each side."""
        total = np.sum(sizes, axis=0) + (1 + len(sizes)) * special
        offsets = np.concatenate(([0], np.cumsum(total, dtype=np.int64)))
        rows = np.full(offsets[-1], self.sep_token_id, np.int32)
        positions = offsets[:-1].copy()
        if special:
            rows[positions] = self.cls_token_id
            positions += 1
        for side, first, size in zip(ids, begins, sizes, strict=True):
            rows[_ranges(positions, size)] = side[_ranges(first, size)]
            positions += size + special
        return rows, offsets


def _ranges(begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the concatenated ranges of `sizes` numbers from `begins` on, int64."""
    ends = np.cumsum(sizes, dtype=np.int64)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - sizes), sizes)


def _cut(sizes: list[np.ndarray], room: int) -> list[np.ndarray]:
    """Return the sizes of texts, or of both texts of pairs, cut to `room` words, the longer one first."""
    if len(sizes) == 1:
        return [np.minimum(sizes[0], room)]
    short, long = np.minimum(*sizes), np.maximum(*sizes)
    long = np.where(short > room, short, np.maximum(short, np.minimum(long, room - short)))
    over = short + long > room
    short, long = np.where(over, room // 2, short), np.where(over, room - room // 2, long)
    swapped = sizes[0] > sizes[1]
    return [np.where(swapped, long, short), np.where(swapped, short, long)]
