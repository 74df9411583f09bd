"""Splitting prose into sentences."""

import lzma
import time
from itertools import islice

import pytest

from fastbert.data.sentences import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        pytest.param(["He left.", "She stayed!", "Why?", "Nobody knew…", "The end"], id="stops"),
        pytest.param(["Mr. Smith met Dr. J. R. Jones and Mrs. Lee.", "They left."], id="titles-and-initials"),
        pytest.param(["It cost $3.50 at 7.15 a.m. on Jan. 5.", "Then 2.5 more."], id="numbers"),
        pytest.param(["He joined the U.S. Army.", "He lived in the U.S.", "He left."], id="country"),
        pytest.param(["See Fig. 3, pp. 5-6 and vol. 2.", "The answer was no.", "He saw No. 5."], id="before-numbers"),
        pytest.param(["Cats, e.g. lions, i.e. big ones, etc. are cats.", "Dogs vs. cats."], id="latin"),
        pytest.param(['"Go!" he said.', '"Now."', "“Who?” asked she.", "‘I am.’", "(He was.)", "Good."], id="quotes"),
        pytest.param(["He ran... and fell.", "Yes!!", "What?!", "Acme Inc. Ltd. closed."], id="runs-of-stops"),
        pytest.param(["1. Take one.", "2. Take two."], id="list"),
        pytest.param(["He met Mr. X.", "He was (b. 1950) old."], id="initial-before-a-starter"),
        pytest.param(["El señor llegó.", "¿Quién?", "¡Él!", "Éste."], id="spanish"),
        pytest.param(["यह एक है।", "वह दो है।"], id="hindi"),
        pytest.param(["a single line without a stop"], id="no-stop"),
    ],
)
def test_sentences_joined_by_spaces_are_found_again(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


def test_cjk_stops_need_no_space():
    sentences = ["今天天气好。", "我去“公园。”", "真的？！", "是（对。）", "好"]
    assert split_sentences("".join(sentences)) == sentences


@pytest.mark.parametrize("text", ["", " ", ".", "...", '"', ". . .", "!\n?", "(", "A. ( ", "。。", "I. \u00a0 ("])
def test_no_text_is_lost(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


@pytest.mark.parametrize("unit", [".", "。", '"', "!?", "( ", '. " ', ".'", "Mr. ", "x.", "a. ", "。」", ". -"])
def test_time_is_linear(unit):
    start = time.perf_counter()
    split_sentences(unit * (400_000 // len(unit)) + "x")
    assert time.perf_counter() - start < 5  # quadratic time would be hours


def test_agrees_with_a_published_segmentation(data_dir):
    with lzma.open(data_dir / "wiki-en" / "wiki_en.sent.txt.xz", "rt", encoding="utf8") as file:
        lines = [line.strip() for line in islice(file, 30_000)]
    expected = actual = common = 0
    documents = [document.split("\n") for document in "\n".join(lines).split("\n\n")]
    for document in documents:
        ends = [boundaries(document), boundaries(split_sentences(" ".join(document)))]
        expected, actual, common = expected + len(ends[0]), actual + len(ends[1]), common + len(ends[0] & ends[1])
    print(f"recall {common / expected:.4f}, precision {common / actual:.4f}")
    assert common / expected > 0.99
    assert common / actual > 0.99


def boundaries(sentences: list[str]) -> set[int]:
    """Where sentences end, in characters without spaces."""
    ends, position = set(), 0
    for sentence in sentences:
        position += len("".join(sentence.split()))
        ends.add(position)
    return ends
