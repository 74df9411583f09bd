"""The sentence reader of csrc/corpus against the Python reference, and what it drops as repeated."""

import random

import pytest

from fastbert import _C, WordPieceTokenizer
from fastbert.data.layouts import documents_of_lines
from fastbert.data.sentence_reader import sentence_reader, sentence_rules
from fastbert.data.sentences import split_sentences

SIGNS = ". . . ? ! ... … ‽ 。 ！ ． 、 ॥ । ؟ : , ; \" ' ” “ » ) ( ] [ * _ - — – / ½ ² ⅷ ª 漢 字 は"
WORDS = "Mr mr. U.S e.g No no. Op Fig. 5 12 1950 ١ 𝟙 The the He J b x A a é É ǅ 𝐀 K İ ß Ω Ph.D Inc Jan"
SPACES = [" ", " ", "  ", "\u00a0", "\u3000", "\t", "\x0b", "\x1c", "\x85"]
PIECES = [*SIGNS.split(), *WORDS.split(), *SPACES, "x" * 39, "É" * 41]


def random_paragraph(draw: random.Random, size: int) -> str:
    return "".join(draw.choice(PIECES) + " " * (draw.random() < 0.3) for _ in range(draw.randrange(size)))


def documents_of(batches):
    """The documents of batches, as `Corpus.documents` puts them together."""
    document = []
    for batch in batches:
        sentences, start = batch.strings(), 0
        for end in batch.document_ends.tolist():
            document += sentences[start:end]
            assert document, "a document without sentences"
            yield document
            document, start = [], end
        document += sentences[start:]
    assert not document, "the last document has no end"


def test_sentences_equal_the_reference(seed):
    draw = random.Random(seed)
    rules = sentence_rules()
    for _ in range(6000):
        paragraph = random_paragraph(draw, 25)
        assert rules.split(paragraph) == split_sentences(paragraph), repr(paragraph)
    for paragraph in (
        "",
        " ",
        ".",
        "a",
        "." * 10_000,
        ".\n" * 100,
        "\n",
        "Mr\n. The",
        "。" * 10_000 + "a",
        '."' * 9999,
    ):
        assert rules.split(paragraph) == split_sentences(paragraph), repr(paragraph[:20])


def test_documents_equal_the_reference(seed):
    draw = random.Random(seed)
    for _ in range(1500):
        lines = [random_paragraph(draw, draw.choice([1, 1, 2, 4, 9])) for _ in range(draw.randrange(30))]
        layout = draw.choice(["lines", "paragraphs", "prose"])
        options = {
            "one_document": draw.random() < 0.3,
            "max_document_chars": draw.choice([10, 100, 1 << 20]),
            "max_paragraph_chars": draw.choice([20, 1 << 20]),
        }
        reader = sentence_reader(layout, **options)
        end = draw.choice(["\n", "\r\n", "\r"])
        batches = []
        left = lines
        while left:
            count = draw.randrange(1, 9)
            reader.add("".join(line + end for line in left[:count]).encode())
            left = left[count:]
            if draw.random() < 0.5:
                batches.append(reader.take())
        reader.end_document()
        batches.append(reader.take())
        assert list(documents_of(batches)) == list(documents_of_lines(lines, layout, **options)), (
            lines,
            layout,
            options,
        )


def test_batches_are_tokenized_as_strings_are(seed):
    draw = random.Random(seed)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "mr", "no", "x", "##x", ".", "漢", "he"]
    tokenizer = WordPieceTokenizer(vocabulary)
    reader = sentence_reader("paragraphs", max_paragraph_chars=1 << 20)
    reader.add("\n".join(random_paragraph(draw, 30) for _ in range(400)).encode())
    batch = reader.take()
    assert len(batch) > 400
    for threads in (1, 3):
        ids, offsets = batch.encode(tokenizer._core, threads)
        expected_ids, expected_offsets = tokenizer.encode_ragged(batch.strings())
        assert (ids == expected_ids).all()
        assert (offsets == expected_offsets).all()
    ids, offsets = reader.take().encode(tokenizer._core, 1)
    assert (len(ids), offsets.tolist()) == (0, [0])


def read(text: str, layout: str = "lines", **options) -> list[list[str]]:
    reader = sentence_reader(layout, max_paragraph_chars=1 << 20, **options)
    batches = []
    for line in text.splitlines(keepends=True):  # so that documents span batches
        reader.add(line.encode())
        batches.append(reader.take())
    reader.end_document()
    return list(documents_of([*batches, reader.take()]))


TEXT = "one\ntwo\none\n\none\ntwo\none\n\ntwo\nthree\n\ntwo\n\nfour\n"


@pytest.mark.parametrize(
    ("lines", "documents", "expected", "counts"),
    [
        pytest.param(True, False, [["one", "two"], ["three"], ["four"]], (10, 6, 0), id="lines"),
        pytest.param(
            False, True, [["one", "two", "one"], ["two", "three"], ["two"], ["four"]], (7, 0, 1), id="documents"
        ),
        pytest.param(True, True, [["one", "two"], ["three"], ["four"]], (7, 3, 1), id="both"),
    ],
)
def test_repeats_are_dropped_and_counted(lines, documents, expected, counts):
    repeats = _C.Repeats(lines=lines, documents=documents)
    assert read(TEXT, repeats=repeats) == expected
    assert (repeats.lines, repeats.dropped_lines, repeats.dropped_documents) == counts
    assert repeats.documents == 5
    kept = sum(map(len, "".join(sentence for document in expected for sentence in document)))
    assert repeats.dropped_line_bytes + repeats.dropped_document_bytes == len("".join(TEXT.split())) - kept
    assert read(TEXT, repeats=repeats) == [], "the memory is shared by readers in turn"


def test_what_repeats_is_a_line_of_paragraphs_and_a_paragraph_of_prose():
    paragraphs = "A one. B two.\nB two. C three.\nA one. B two.\n"
    assert read(paragraphs, "paragraphs", repeats=_C.Repeats(True, True)) == [
        ["A one.", "B two.", "B two.", "C three."]
    ]
    prose = "A one.\nB two.\n\nB two.\n\nA one. B\ntwo.\n"
    assert read(prose, "prose", repeats=_C.Repeats(True, True)) == [["A one.", "B two.", "B two."]]


def test_repeats_equal_a_set_of_strings(seed):
    draw = random.Random(seed)
    documents = [[str(draw.randrange(300)) for _ in range(draw.randrange(1, 6))] for _ in range(2000)]
    repeats = _C.Repeats(lines=True, documents=True)
    result = read("\n\n".join("\n".join(document) for document in documents), repeats=repeats)
    seen_lines, seen_documents, expected = set(), set(), []
    for document in documents:
        if tuple(document) in seen_documents:
            continue
        seen_documents.add(tuple(document))
        new = [line for line in document if not (line in seen_lines or seen_lines.add(line))]
        if new:
            expected.append(new)
    assert result == expected
    assert repeats.dropped_lines == repeats.lines - len(seen_lines)
    assert repeats.dropped_documents == len(documents) - len(seen_documents)


def test_memory_of_repeats_is_as_documented():
    repeats = _C.Repeats(lines=True, documents=False)
    reader = sentence_reader("lines", max_paragraph_chars=1 << 20, repeats=repeats)
    for start in range(0, 300_000, 10_000):
        reader.add("".join(f"{i}\n" for i in range(start, start + 10_000)).encode())
        reader.end_document()
        reader.take()
    assert repeats.dropped_lines == 0
    assert 10 <= repeats.memory / 300_000 <= 20.5


def test_hashes_are_those_of_xxhash():
    for data, expected in [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ]:
        assert _C.hash_bytes(data) == expected


def test_wrong_input_is_refused():
    reader = sentence_reader("lines", max_paragraph_chars=9)
    with pytest.raises(ValueError, match="not UTF-8"):
        reader.add(b"\xff")
    with pytest.raises(ValueError, match="layout 'poem' must be"):
        sentence_reader("poem", max_paragraph_chars=9)
    with pytest.raises(TypeError, match=r"document\[1\] must be a string"):
        reader.add_document(["a", 1])
