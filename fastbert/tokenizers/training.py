"""Train a WordPiece vocabulary: the same corpus always gives the same vocabulary.

Words are counted by the C++ code that later tokenizes. Pieces are then learned by the `tokenizers` library, whose
results differ between identical runs if it finds the alphabet itself: it numbers characters in the order of a randomly
seeded hash map and breaks ties between merges by number. It is therefore given the alphabet in a fixed order.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tokenizers.word_counts import count_words

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Characters per training text: the trainer distributes texts over threads, so they should be neither huge nor tiny.
_CHARS_PER_TEXT = 16384


def train_vocabulary(
    sentences: Iterable[str],
    vocab_size: int = 30522,
    *,
    lower_case: bool = True,
    min_frequency: int = 2,
    alphabet_limit: int = 1000,
    unused: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """Learn a vocabulary: `[PAD] [UNK] [CLS] [SEP] [MASK]`, unused tokens, the alphabet, then pieces by frequency.

    Args:
        sentences: the corpus, read once: any strings (sentences, lines, documents).
        vocab_size: the number of tokens. A small corpus may support fewer, which is logged as a warning.
        lower_case: count words in lower case and without accents, as an uncased tokenizer does.
        min_frequency: form a piece only from a pair that occurs at least this often.
        alphabet_limit: maximum number of characters, the most frequent ones, which never fill more than half of the
            vocabulary; words with other characters are ignored (they become unknown).
        unused: the number of `[unused0]`, `[unused1]`, ... for additional tokens.
        progress: called with the number of sentences read since the last call.

    Returns:
        The tokens in the order of their ids; a function of the arguments alone.

    Raises:
        UserError: the corpus has no words, or `vocab_size` is too small.

    Example:
        >>> from fastbert.tokenizers import WordPieceTokenizer, train_vocabulary
        >>> vocabulary = train_vocabulary(["low slow lower slower"] * 9, vocab_size=30)
        >>> vocabulary[:6]
        ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'e']
        >>> WordPieceTokenizer(vocabulary).tokenize("slower lows")
        ['slower', 'low', '##s']
    """
    check_size(vocab_size, min_frequency, alphabet_limit, unused)
    words = count_words(sentences, lower_case=lower_case, progress=progress)
    return learn_vocabulary(
        words, vocab_size, min_frequency=min_frequency, alphabet_limit=alphabet_limit, unused=unused
    )


def learn_vocabulary(
    words: Mapping[str, int],
    vocab_size: int = 30522,
    *,
    min_frequency: int = 2,
    alphabet_limit: int = 1000,
    unused: int = 0,
    heartbeat: Callable[[float], None] | None = None,
) -> list[str]:
    """Learn a vocabulary from counted words, as `train_vocabulary` does from text.

    Args:
        words: how often each normalised word occurs, see `count_words`.
        vocab_size, min_frequency, alphabet_limit, unused: as in `train_vocabulary`.
        heartbeat: called ten times per second with the elapsed seconds, while the pieces are learned.

    Returns:
        The tokens in the order of their ids.

    Raises:
        UserError: there are no words, or `vocab_size` is too small.
    """
    room = check_size(vocab_size, min_frequency, alphabet_limit, unused)
    if not words:
        raise UserError("the corpus holds no words; give it some text")
    # The order of the words decides between equally frequent pieces.
    words = dict(sorted(words.items()))
    alphabet = _alphabet(words, alphabet_limit, room // 2)
    pieces = in_thread(lambda stop: _learn_pieces(words, alphabet, room, min_frequency, stop), heartbeat)
    if len(pieces) < room:
        logger.warning(
            "the text supports only %d of %d tokens of a vocabulary; add text for more",
            vocab_size - room + len(pieces),
            vocab_size,
        )
    return [*SPECIAL_TOKENS, *(f"[unused{index}]" for index in range(unused)), *pieces]


def check_size(vocab_size: int, min_frequency: int = 2, alphabet_limit: int = 1000, unused: int = 0) -> int:
    """Return the number of entries beside special and unused tokens. Raises `UserError` if there is no room."""
    room = vocab_size - len(SPECIAL_TOKENS) - unused
    if unused < 0 or room < 2:
        raise UserError(
            f"vocab_size={vocab_size} has no room beside {len(SPECIAL_TOKENS)} special and {unused} unused tokens;"
            f" use at least {len(SPECIAL_TOKENS) + max(unused, 0) + 2}"
        )
    check_limits(vocab_size, min_frequency, alphabet_limit)
    return room


def check_limits(vocab_size: int, min_frequency: int, alphabet_limit: int) -> None:
    """Raise `UserError` for values that no kind of vocabulary can have."""
    if vocab_size >= 1 << 31:
        raise UserError(f"vocab_size={vocab_size} must be below 2^31")
    if min_frequency < 1 or alphabet_limit < 1:
        raise UserError(f"min_frequency={min_frequency} and alphabet_limit={alphabet_limit} must be at least 1")


def in_thread(work: Callable[[threading.Event], Any], heartbeat: Callable[[float], None] | None) -> Any:
    """Return the result of `work`, whose argument is an event that requests it to stop.

    Learning is one call into native code, which does not react to Ctrl-C. In a separate thread it leaves the caller
    free to be interrupted and to report progress; as a daemon it does not keep the process alive afterwards.
    """
    stop = threading.Event()
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = work(stop)
        except BaseException as error:  # noqa: BLE001  (raised in the caller's thread)
            outcome["error"] = error

    thread = threading.Thread(target=run, name="fastbert-vocabulary", daemon=True)
    start = time.monotonic()
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
            if heartbeat is not None:
                heartbeat(time.monotonic() - start)
    finally:
        stop.set()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def _alphabet(words: Mapping[str, int], limit: int, room: int) -> list[str]:
    """Return the most frequent characters that fit, and their continuing forms with "##" where they occur; sorted."""
    counts: Counter[str] = Counter()
    continuing: set[str] = set()
    isolated: set[str] = set()
    for word, count in words.items():
        for char in word:
            counts[char] += count
        (continuing if len(word) > 1 else isolated).update(word)
    # A character that is only ever a word of its own (punctuation, Chinese) needs no continuing form.
    always_isolated = isolated - continuing
    alphabet: list[str] = []
    for char in most_frequent_characters(counts):
        tokens = [char] if char in always_isolated else [char, f"##{char}"]
        if limit == 0 or len(alphabet) + len(tokens) > room:
            break
        alphabet += tokens
        limit -= 1
    return sorted(alphabet, key=lambda token: (token.startswith("##") and len(token) > 1, token))


def most_frequent_characters(counts: Mapping[str, int]) -> list[str]:
    """Return the characters in the order of their counts, equally frequent ones by code point."""
    return [char for char, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _learn_pieces(
    words: Mapping[str, int], alphabet: Sequence[str], size: int, min_frequency: int, stop: threading.Event
) -> list[str]:
    """Return at most `size` tokens: the alphabet, then merges in the order in which they were learned."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.trainers import WordPieceTrainer

    characters = {token for token in alphabet if len(token) == 1}
    known = {word: count for word, count in words.items() if characters.issuperset(word)}
    learner = Tokenizer(WordPiece(unk_token=SPECIAL_TOKENS[1]))
    learner.pre_tokenizer = WhitespaceSplit()
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        show_progress=False,
        special_tokens=list(alphabet),
        limit_alphabet=len(characters),
    )
    learner.train_from_iterator(repeated(known, stop), trainer)
    return [token for token, _ in sorted(learner.get_vocab().items(), key=lambda item: item[1])]


def repeated(words: Mapping[str, int], stop: threading.Event) -> Iterator[str]:
    """Yield each word as often as it was counted, in texts of bounded size, until `stop` is set."""
    for word, count in words.items():
        per_text = max(1, _CHARS_PER_TEXT // (len(word) + 1))
        full, rest = divmod(count, per_text)
        for repeats in (*repeat(per_text, full), rest):
            if stop.is_set():
                return
            yield f"{word} " * repeats
