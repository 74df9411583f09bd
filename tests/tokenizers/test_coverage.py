"""What is held out, and the figures of a coverage report, against counts made by hand and by the tokenizer itself."""

import json
import random

import pytest

from fastbert.errors import UserError
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.coverage import measure_coverage, write_report
from fastbert.tokenizers.variants import with_vocabulary
from fastbert.tokenizers.word_counts import Normalization, count_documents, count_words

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##a", "##b", "##c", "cab", ".", "##d", "d"]


def documents(count: int, sentences: int = 3) -> list[list[str]]:
    return [[f"doc{index} line{line}" for line in range(sentences)] for index in range(count)]


def test_every_twentieth_document_is_held_out() -> None:
    split = count_documents(documents(60), holdout=0.05)
    assert split.unit == "documents"
    held = {word for word in split.held_out.words if word.startswith("doc")}
    assert held == {"doc19", "doc39", "doc59"}
    assert not held & set(split.learn.words)
    assert (split.learn.documents, split.held_out.documents) == (57, 3)
    assert split.learn.sentences == 57 * 3


@pytest.mark.parametrize("share", [0.1, 0.05, 0.01, 0.3, 1 / 3])
def test_the_share_is_kept(share: float) -> None:
    split = count_documents(documents(1000, sentences=1), holdout=share)
    assert split.held_out.documents == pytest.approx(1000 * share, abs=1)
    assert split.held_out.documents + split.learn.documents == 1000


def test_few_documents_give_their_ends() -> None:
    split = count_documents([[f"s{number}" for number in range(40)], ["x", "y"], ["alone"]], holdout=0.05)
    assert split.unit == "sentences"
    assert split.held_out.words == {"s38": 1, "s39": 1, "y": 1}
    assert split.held_out.sentences == 3
    assert split.learn.sentences == 40
    assert not set(split.held_out.words) & set(split.learn.words)
    everything = split.learn.bytes + split.held_out.bytes
    assert everything == 10 * 2 + 30 * 3 + 2 + 5


def test_at_least_one_sentence_is_held_out() -> None:
    split = count_documents([["first"], ["second"]], holdout=0.05)
    assert split.held_out.words == {"second": 1}
    assert split.learn.words == {"first": 1}


@pytest.mark.parametrize(
    ("texts", "share"), [([["only one"]], 0.05), (documents(30), 0.0), ([], 0.05), ([["a", " "]], 0.05)]
)
def test_nothing_to_hold_out(texts: list[list[str]], share: float) -> None:
    split = count_documents(texts, holdout=share)
    assert split.unit == "none"
    assert split.learn == split.held_out


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0])
def test_a_share_is_below_one(share: float) -> None:
    with pytest.raises(UserError, match=f"holdout={share}"):
        count_documents([["a"]], holdout=share)


def test_figures_by_hand() -> None:
    # cab (1 piece), a (1), ab (2), bac (3), abcabc (6), é (unknown), x (unknown), a word too long for any vocabulary
    sentences = ["Cab a cab.", "ab bac abcabc", "aé\u0301x xb b", "a" * 101]
    tokenizer = WordPieceTokenizer(VOCABULARY, do_lower_case=True, strip_accents=False)
    text = count_documents([sentences], Normalization.of(tokenizer)).learn
    assert text.long_words == 1
    report = measure_coverage(tokenizer, text)
    assert report.words == 4 + 3 + 3 + 1
    assert report.tokens == 4 + (2 + 3 + 6) + 3 + 1
    assert report.pieces_per_word == {"1": 5 / 11, "2": 1 / 11, "3": 1 / 11, "4+": 1 / 11, "unknown": 3 / 11}
    assert report.unknown_words == report.unknown_tokens == 3
    assert report.unknown_token_share == 3 / 19
    assert report.bytes_per_token == sum(len(sentence.encode()) for sentence in sentences) / 19
    assert dict(report.unknown_characters) == {"x": 2, "é": 1, "\u0301": 1}
    assert report.unknown_examples == (("aé\u0301x", 1), ("xb", 1))
    assert report.entries_used == len(["[UNK]", "a", "b", "cab", ".", "##a", "##b", "##c"])
    assert report.curve[-1].entries == len(VOCABULARY)
    assert report.curve[-1].whole_words == report.pieces_per_word["1"]


def test_figures_are_those_of_the_tokenizer(small_vocab: list[str], hostile_text, seed: int) -> None:
    """On text without special tokens, counting tokens word by word is tokenizing."""
    rng = random.Random(seed)
    tokenizer = WordPieceTokenizer(small_vocab, split_special_tokens=True)
    sentences = [hostile_text(rng) for _ in range(2000)]
    report = measure_coverage(tokenizer, count_documents([sentences]).learn)
    ids, _ = tokenizer.encode_ragged(sentences)
    assert report.tokens == len(ids)
    assert report.unknown_tokens == int((ids == tokenizer.unk_token_id).sum())
    assert sum(report.pieces_per_word.values()) == pytest.approx(1)


def test_the_curve_is_what_a_smaller_vocabulary_would_do() -> None:
    rng = random.Random(1)
    letters = "abcdefgh"
    words = ["".join(rng.choice(letters) for _ in range(rng.randint(1, 5))) for _ in range(3000)]
    tokens = [
        *VOCABULARY[:5],
        *letters,
        *(f"##{letter}" for letter in letters),
        *sorted({w for w in words if len(w) > 1}),
    ]
    tokenizer = WordPieceTokenizer(tokens[:900])
    text = count_documents([words]).learn
    report = measure_coverage(tokenizer, text)
    assert [point.entries for point in report.curve] == [125, 250, 500, 900]
    for point in report.curve:
        alone = measure_coverage(WordPieceTokenizer(tokens[: point.entries]), text)
        assert point.tokens_per_word == alone.tokens_per_word
        assert point.whole_words == alone.pieces_per_word["1"]
        assert point.unknown_words == alone.unknown_word_share == 0
    assert report.curve[0].whole_words < report.curve[-1].whole_words


def test_special_tokens_at_the_end_leave_the_curve_open() -> None:
    tokens = [f"word{index}" for index in range(300)] + VOCABULARY
    report = measure_coverage(WordPieceTokenizer(tokens), count_documents([["word7 cab"]]).learn)
    assert [point.tokens_per_word for point in report.curve] == [None, None, 1.0]
    assert [point.whole_words for point in report.curve] == [0.5, 0.5, 1.0]


def test_no_words_is_an_error() -> None:
    with pytest.raises(UserError, match="no words to measure"):
        measure_coverage(WordPieceTokenizer(VOCABULARY), count_documents([[" "]]).learn)


def test_options_outlive_another_vocabulary() -> None:
    options = {
        "do_lower_case": False,
        "strip_accents": True,
        "tokenize_chinese_chars": False,
        "model_max_length": 77,
        "additional_special_tokens": ["cab"],
        "unk_token": "b",
        "split_special_tokens": True,
    }
    other = with_vocabulary(WordPieceTokenizer(VOCABULARY, **options), [*VOCABULARY, "more"])
    assert {name: getattr(other, name) for name in options} == options
    assert other.vocab["more"] == len(VOCABULARY)


def test_the_same_text_gives_the_same_file(tmp_path) -> None:
    written = set()
    for order in (1, -1):
        text = count_documents([["a cab cd", "é zz"]][::order]).learn
        write_report(tmp_path / "report.json", measure_coverage(WordPieceTokenizer(VOCABULARY), text).to_dict())
        written.add((tmp_path / "report.json").read_bytes())
    assert len(written) == 1
    report = json.loads(written.pop())
    assert report["format_version"] == 1
    assert report["unknown_characters"][0] == {"character": "z", "code_point": "U+007A", "count": 2}


def test_counting_follows_the_tokenizers_options() -> None:
    cased = WordPieceTokenizer(VOCABULARY, do_lower_case=False, strip_accents=True, tokenize_chinese_chars=False)
    assert count_words(["Né 中中"], normalization=Normalization.of(cased)) == {"Ne": 1, "中中": 1}
