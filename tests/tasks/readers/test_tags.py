"""Schemes of tags: which one it is, and from one to another."""

import random

import pytest

from fastbert.tasks.readers.tags import Scheme, convert, count_invalid, scheme_of, spans_of

BIO = ("B-X", "I-X", "B-X", "O", "B-Y", "B-X", "I-X", "I-X")
IOB1 = ("I-X", "I-X", "B-X", "O", "I-Y", "I-X", "I-X", "I-X")
BIOES = ("B-X", "E-X", "S-X", "O", "S-Y", "B-X", "I-X", "E-X")
BILOU = ("B-X", "L-X", "U-X", "O", "U-Y", "B-X", "I-X", "L-X")


@pytest.mark.parametrize(
    ("tags", "scheme"), [(BIO, "BIO"), (IOB1, "IOB1"), (BIOES, "BIOES"), (BILOU, "BIOES")], ids=lambda value: value[-1]
)
def test_schemes_are_told_apart_and_turned_into_each_other(tags: tuple[str, ...], scheme: Scheme) -> None:
    assert scheme_of([("O", "O"), tags]) == scheme
    assert convert(tags, scheme, "BIO") == BIO
    assert convert(tags, scheme, "IOB1") == IOB1
    assert convert(tags, scheme, "BIOES") == BIOES
    assert count_invalid(tags, scheme) == 0
    assert list(spans_of(tags, scheme)) == [(0, 2, "X"), (2, 3, "X"), (4, 5, "Y"), (5, 8, "X")]


def test_sets_of_tags_and_tags_of_no_scheme() -> None:
    assert scheme_of({"O", "B-X", "I-X"}) == "BIO"
    assert scheme_of(["O", "I-X"]) == "IOB1"
    assert scheme_of(["O", "B-X", "I-X", "S-X", "E-X"]) == "BIOES"
    assert scheme_of([("NN", "-LRB-")]) is None
    assert scheme_of([]) is None
    assert scheme_of([("O", "O")]) == "BIO"
    assert scheme_of([("B-X", "O")]) == "BIO"


def test_a_few_mistakes_do_not_make_another_scheme() -> None:
    assert scheme_of([BIO, BIO, ("O", "I-X")]) == "BIO"


@pytest.mark.parametrize(
    ("tags", "scheme", "mended", "wrong"),
    [
        (("O", "I-X"), "BIO", ("O", "B-X"), 1),
        (("B-X", "I-Y"), "BIO", ("B-X", "B-Y"), 1),
        (("B-X", "I-X", "O"), "BIOES", ("B-X", "I-X", "O"), 1),
        (("E-X", "E-X"), "BIOES", ("B-X", "B-X"), 2),
        (("I-X", "I-X"), "BIOES", ("B-X", "I-X"), 2),
        (("B-X", "I-X"), "IOB1", ("B-X", "I-X"), 1),
        ((), "BIO", (), 0),
        (("B-X", "NNP", "I-X"), "BIO", ("B-X", "O", "B-X"), 2),
    ],
)
def test_mistakes_are_counted_and_read_as_conlleval_reads_them(
    tags: tuple[str, ...], scheme: Scheme, mended: tuple[str, ...], wrong: int
) -> None:
    assert convert(tags, scheme, "BIO") == mended
    assert count_invalid(tags, scheme) == wrong


def test_random_tags_keep_their_entities_from_scheme_to_scheme(seed: int) -> None:
    draw = random.Random(seed)
    schemes: tuple[Scheme, ...] = ("BIO", "IOB1", "BIOES")
    for _ in range(300):
        tags = convert(
            [draw.choice(("O", "B-X", "I-X", "I-Y", "B-Y")) for _ in range(draw.randrange(12))], "BIO", "BIO"
        )
        for first in schemes:
            for second in schemes:
                through = convert(convert(tags, "BIO", first), first, second)
                assert count_invalid(through, second) == 0
                assert convert(through, second, "BIO") == tags


def test_entities_are_those_of_seqeval(seed: int) -> None:
    entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
    draw = random.Random(seed)
    for _ in range(300):
        tags = [draw.choice(("O", "B-X", "I-X", "I-Y", "B-Y")) for _ in range(draw.randrange(12))]
        ours = [(kind, first, last - 1) for first, last, kind in spans_of(tags, "BIO")]
        assert ours == [tuple(entity) for entity in entities(tags)], tags
