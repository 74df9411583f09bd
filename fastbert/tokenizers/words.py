"""A vocabulary of whole words, for models that predict words and read them by their characters (ELMo)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tokenizers.training import SPECIAL_TOKENS
from fastbert.tokenizers.word_counts import count_words
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

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
