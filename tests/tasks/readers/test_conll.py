"""Words with tags: columns, documents, comments, CoNLL-U, JSON lines, and what is wrong."""

from pathlib import Path

import pytest
from task_data import task_file

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, TaggedExample
from fastbert.tasks.readers.conll import read_conll
from fastbert.tasks.readers.tags import scheme_of
from fastbert.tasks.settings import Columns


def read(
    folder: Path, text: str, name: str = "t.conll", *, labelled: bool = True, **columns: str
) -> Dataset[TaggedExample]:
    path = folder / name
    path.write_bytes(text.encode())
    return read_conll(str(path), Columns(**columns), labelled=labelled)


def test_columns_and_sentences(tmp_path: Path) -> None:
    dataset = read(tmp_path, "\ufeffAl\tB-X\r\nZ\u2028a\tI-X\r\n\t\r\n\r\n\r\n#\tO\r\n#tag\tO\r\n# \tO")
    assert [(e.words, e.tags, e.id, e.location) for e in dataset] == [
        (("Al", "Z\u2028a"), ("B-X", "I-X"), "0", "line 1"),
        (("#", "#tag", "# "), ("O", "O", "O"), "1", "line 6"),
    ]


def test_blanks_as_separators_and_documents(tmp_path: Path) -> None:
    text = (
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\n# NN I-NP O\n\n# NN B-NP O\n\n-DOCSTART- -X- -X- O\n\n"
        "Peter NNP B-NP B-PER\n"
    )
    dataset = read(tmp_path, text)
    assert [(e.words, e.tags, e.document) for e in dataset] == [
        (("EU", "#"), ("B-ORG", "O"), 0), (("#",), ("O",), 0), (("Peter",), ("B-PER",), 1),
    ]  # fmt: skip
    assert read(tmp_path, text, label="2")[0].tags == ("NNP", "NN")
    assert read(tmp_path, text, label="chunk")[0].tags == ("B-NP", "I-NP")
    assert read(tmp_path, text, labelled=False)[0].tags is None


def test_names_of_columns_by_their_number(tmp_path: Path) -> None:
    text = "a\tDET\tDT\nb\tNOUN\tNN\n"
    assert read(tmp_path, text)[0].tags == ("DT", "NN")
    assert read(tmp_path, text, label="upos")[0].tags == ("DET", "NOUN")
    with pytest.raises(
        UserError, match=r"no column 'ner'; give --label-column a number from 1 to 3, or word, upos, xpos"
    ):
        read(tmp_path, text, label="ner")


def test_conll_u(tmp_path: Path) -> None:
    def row(number: str, form: str, upos: str, xpos: str) -> str:
        return "\t".join((number, form, "_", upos, xpos, "_", "0", "root", "_", "_")) + "\n"

    text = (
        "# newdoc id = a\n# sent_id = s-1\n# text = Can't 1 000\n"
        + row("1-2", "Can't", "_", "_") + row("1", "Ca", "AUX", "MD")
        + row("2", "n't", "PART", "RB")
        + row("2.1", "x", "X", "X") + row("3", "1 000", "NUM", "CD") + "\n"
        + "# newdoc id = b\n# sent_id = s-2\n" + row("1", "#", "SYM", "NFP") + "\n"
    )  # fmt: skip
    dataset = read(tmp_path, text, "t.conllu")
    assert [(e.id, e.words, e.tags, e.document) for e in dataset] == [
        ("s-1", ("Ca", "n't", "1 000"), ("AUX", "PART", "NUM"), 0), ("s-2", ("#",), ("SYM",), 1),
    ]  # fmt: skip
    assert read(tmp_path, text, "t.conllu", label="xpos")[1].tags == ("NFP",)


def test_words_alone(tmp_path: Path) -> None:
    dataset = read(tmp_path, "# sent_id = a\nEU\n#x\n#\n\nb\n", labelled=False)
    assert [e.words for e in dataset] == [("EU", "#x", "#"), ("b",)]
    with pytest.raises(UserError, match=r"t.conll, line 1: has one column, so words and no tags"):
        read(tmp_path, "EU\nb\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("a\tO\nb\n", r"t.conll, line 2: has 1 columns, not 2 as line 1 has", id="short"),
        pytest.param("\na\tO\n\nb\tO\tO\n", r"t.conll, line 4: has 3 columns, not 2 as line 2 has", id="long"),
        pytest.param("a O\nb\tO\n", r"line 1: has 1 columns, not 2 as line 2 .* TABs", id="mixed"),
        pytest.param("a\tO\n \tO\n", r"t.conll, line 2: column 1 is empty", id="no-word"),
        pytest.param("a\tO\n\nb\t \n", r"t.conll, line 3: column 2 is empty", id="no-tag"),
        pytest.param("\n\n# newdoc\n", r"t.conll, line 1: the file has no words", id="empty"),
        pytest.param("a\tB-X\nb\tO\n\nc\tB_X\n", r"t.conll, line 4 ff.: the tag 'B_X' is neither O nor", id="odd-tag"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read(tmp_path, text)


def test_tags_that_the_scheme_does_not_allow_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read(tmp_path, "a\tB-X\n\nb\tB-X\n\nc\tO\nd\tI-X\ne\tI-X\nf\tI-Y\n")
    expected = f"{tmp_path}/t.conll, line 5: 2 tags, the first in this sentence, stand where BIO does not allow them"
    assert caplog.messages == [expected]


def test_json_lines(tmp_path: Path) -> None:
    text = '{"tokens": ["a", "b"], "ner_tags": ["O", "B-X"], "id": "k"}\n'
    text += '{"tokens": ["c d"], "ner_tags": ["O"], "id": "l"}\n'
    dataset = read(tmp_path, text, "t.jsonl")
    assert [(e.id, e.words, e.tags) for e in dataset] == [("k", ("a", "b"), ("O", "B-X")), ("l", ("c d",), ("O",))]
    assert read(tmp_path, '{"words": ["a"]}', "t.jsonl", labelled=False)[0].tags is None
    for line, words in (
        ('{"words": ["a", "b"], "tags": ["O"]}', "line 1: has 1 tags for 2 words"),
        ('{"words": [], "tags": []}', "line 1: 'words' must be a list of strings that is not empty"),
        ('{"words": ["a", ""], "tags": ["O", "O"]}', "line 1: item 2 of 'words' must be a string of characters"),
        ('{"words": ["a", 1.5], "tags": ["O", "O"]}', "line 1: item 2 of 'words' must be"),
        ('{"words": ["a"]}', "line 1: not one key of ner_tags, tags"),
    ):
        with pytest.raises(UserError, match=rf"t.jsonl, {words}"):
            read(tmp_path, line, "t.jsonl")


REAL = [
    ("uner-en-ewt", "dev.conll", 2001, 25149, "BIO"), ("wnut17", "train.conll", 3394, 62730, "BIO"),
    ("wnut17", "test.conll", 1287, 23394, "BIO"), ("ud-ewt-pos", "test.conll", 2077, 25094, None),
]  # fmt: skip


@pytest.mark.parametrize(("archive", "name", "sentences", "words", "scheme"), REAL)
def test_real_files(
    tmp_path: Path, data_dir: Path, archive: str, name: str, sentences: int, words: int, scheme: str | None
) -> None:
    dataset = read_conll(task_file(data_dir, archive, name, tmp_path), Columns(), labelled=True)
    assert len(dataset) == sentences
    assert sum(len(example.words) for example in dataset) == words
    assert scheme_of([example.tags or () for example in dataset]) == scheme


def test_running_text_is_a_sentence_a_line(tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    path.write_text("Ada lives here .\n\nIn Bern\n")
    dataset = read_conll(str(path), Columns(), labelled=False)
    assert [example.words for example in dataset] == [("Ada", "lives", "here", "."), ("In", "Bern")]
    assert dataset.where(1) == f"{path}, line 3"
    path.write_text("Ada\nlives\n\nBern\n")
    assert [example.words for example in read_conll(str(path), Columns(), labelled=False)] == [
        ("Ada", "lives"),
        ("Bern",),
    ]


def test_separators_documents_and_empty_lines_of_all_kinds(tmp_path: Path) -> None:
    rows = [(("EU", "is"), ("B-ORG", "O")), (("Ada",), ("B-PER",))]
    for form, text in {
        "blanks that repeat": "-DOCSTART- -X- O\n\nEU  NNP   B-ORG \nis VBZ \tO\n \t\n\nAda NNP B-PER\n\n\n",
        "tabs that repeat": "EU\tB-ORG\nis\t\tO\n\nAda\tB-PER\t\n",
        "tabs that repeat everywhere": "EU\t\tB-ORG\nis\t\tO\n\nAda\tB-PER\n",
        "tabs behind": "EU\tB-ORG\t\nis\tO\t\n\nAda\tB-PER\t\n",
        "carriage returns": "-DOCSTART-\tO\r\n\r\nEU\tB-ORG\r\nis\tO\r\n\r\nAda\tB-PER\r\n",
        "a mark with blanks": "-DOCSTART- -X- -X- O\n\nEU\tB-ORG\nis\tO\n-DOCSTART- -X- -X- O\nAda\tB-PER\n",
        "one tab among blanks": "EU B-ORG\nis\tO\n\nAda B-PER\n",
    }.items():
        dataset = read(tmp_path, text)
        assert [(example.words, example.tags) for example in dataset] == rows, form
    assert [example.document for example in read(tmp_path, "-DOCSTART- O\na O\n\n-DOCSTART- O\n\nb O\n")] == [0, 1]
    assert read(tmp_path, "1\u00a0000 CD\nx NN\n")[0].words == ("1\u00a0000", "x"), "only blanks and TABs separate"


def test_a_header_is_no_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "Token\tPOS\tNER\nEU\tNNP\tB-ORG\nis\tVBZ\tO\n"
    assert [(e.words, e.tags) for e in read(tmp_path, text)] == [(("EU", "is"), ("B-ORG", "O"))]
    assert "line 1: holds names of columns (Token, POS, NER); left out" in caplog.text
    assert read(tmp_path, text, label="pos")[0].tags == ("NNP", "VBZ")
    assert read(tmp_path, "tag\tNN\nword\ttag\nx\ttag\n")[0].words == ("tag", "word", "x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("text\tlabel\nI like it\tgood\nbad\tbad\n", r"line 1: 'text' and 'label' are the names of a table of texts"),
        ("I like it\tgood\nnot this one\tbad\n", r"line 1: 'I like it' is a text of several words, as most are here"),
        ("I like it\tgood\n\nnot this one\tbad\n\n", r"line 1: 'I like it' is a text of several words"),
    ],
)
def test_a_table_of_texts_and_labels_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=rf"t.tsv, {words}.*; use --task classification"):
        read(tmp_path, text, "t.tsv")
    with pytest.raises(UserError, match=r"tagging does not read \.csv"):
        read(tmp_path, text, "t.csv")


def test_words_may_have_blanks(tmp_path: Path) -> None:
    assert read(tmp_path, "New York\tB-LOC\n")[0].words == ("New York",)
    assert read(tmp_path, "New York\tB-LOC\n\nSan Jose\tB-LOC\nis\tO\n")[1].words == ("San Jose", "is")
