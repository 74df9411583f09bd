"""The layouts of benchmarks' own archives, read without a flag; and what is said of columns that no name explains."""

from pathlib import Path

import pytest

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.readers.texts import read_texts
from fastbert.tasks.settings import Columns


def read(path: Path, *, labelled: bool = True, regression: bool = False, **columns: str) -> Dataset[TextExample]:
    return read_texts(str(path), Columns(**columns), labelled=labelled, regression=regression)


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def cells(*rows: str) -> str:
    """Rows of a TSV, whose cells are separated by `|` here."""
    return "".join(row.replace("|", "\t") + "\n" for row in rows)


PARSES = "sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse|sentence1|sentence2"
PARSED = "( A b )|( C d )|(ROOT A)|(ROOT C)|A b.|C d."
STSB = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
# File name, rows, and the first example: text, pair, label, id. Test sets have no label.
GLUE = {
    "CoLA-train": (
        "train.tsv",
        ("gj04|1||A b.", "ks08|0|*|C.", "ks08|0|*?|D.", "l-93|0|??|E."),
        ("A b.", None, "1", "0"),
    ),
    "CoLA-dev": ("dev.tsv", ("gj04|1| |A b.", "ks08|0|*|C.", "ad03|0|#|D."), ("A b.", None, "1", "0")),
    "CoLA-test": ("test.tsv", ("index|sentence", "0|A b."), ("A b.", None, None, "0")),
    "MRPC-original": (
        "msr_paraphrase_train.txt",
        ("\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String", '1|70|71|"A b.|C "d.', '0|1|2|E f."|G'),
        ('"A b.', 'C "d.', "1", "0"),
    ),
    "MRPC-train": (
        "train.tsv",
        ("Quality|#1 ID|#2 ID|#1 String|#2 String", '1|70|71|"A "b."|C d.'),
        ('"A "b."', "C d.", "1", "0"),
    ),
    "MRPC-test": (
        "test.tsv",
        ("index|#1 ID|#2 ID|#1 String|#2 String", '0|70|71|"A b.|C'),
        ('"A b.', "C", None, "0"),
    ),
    "RTE-train": (
        "train.tsv",
        ("index|sentence1|sentence2|label", "0|A.|B.|entailment"),
        ("A.", "B.", "entailment", "0"),
    ),
    "RTE-test": ("test.tsv", ("index|sentence1|sentence2", "0|A.|B."), ("A.", "B.", None, "0")),
    "QQP-train": (
        "train.tsv",
        ("id|qid1|qid2|question1|question2|is_duplicate", '5|1|2|"A?|B ""c""?|1'),
        ('"A?', 'B ""c""?', "1", "5"),
    ),
    "QQP-test": ("test.tsv", ("id|question1|question2", "0|A?|B?"), ("A?", "B?", None, "0")),
    "MNLI-train": (
        "train.tsv",
        (f"index|promptID|pairID|genre|{PARSES}|label1|gold_label", f"0|31|31n|x|{PARSED}|neutral|neutral"),
        ("A b.", "C d.", "neutral", "0"),
    ),
    "MNLI-dev": (
        "dev_mismatched.tsv",
        (
            f"index|promptID|pairID|genre|{PARSES}|label1|label2|label3|label4|label5|gold_label",
            f"0|31|31n|x|{PARSED}|neutral|neutral|entailment|neutral|neutral|neutral",
        ),
        ("A b.", "C d.", "neutral", "0"),
    ),
    "MNLI-test": (
        "test_matched.tsv",
        (f"index|promptID|pairID|genre|{PARSES}", f"0|31|31n|x|{PARSED}"),
        ("A b.", "C d.", None, "0"),
    ),
    "QNLI-train": (
        "train.tsv",
        ("index|question|sentence|label", "0|A?|B.|not_entailment"),
        ("A?", "B.", "not_entailment", "0"),
    ),
    "QNLI-test": ("test.tsv", ("index|question|sentence", "0|A?|B."), ("A?", "B.", None, "0")),
    "WNLI-train": ("train.tsv", ("index|sentence1|sentence2|label", "0|A.|B.|1"), ("A.", "B.", "1", "0")),
    "WNLI-test": ("test.tsv", ("index|sentence1|sentence2", "0|A.|B."), ("A.", "B.", None, "0")),
    "STS-B-train": ("train.tsv", (f"{STSB}|score", "0|g|f|2012|1|a|b|A.|B.|2.500"), ("A.", "B.", 2.5, "0")),
    "STS-B-test": ("test.tsv", (STSB, "0|g|f|2012|1|a|b|A.|B."), ("A.", "B.", None, "0")),
    "SST-2-train": ("train.tsv", ("sentence|label", "A b |1"), ("A b ", None, "1", "0")),
    "SST-2-test": ("test.tsv", ("index|sentence", "0|A b ."), ("A b .", None, None, "0")),
    "AX": ("diagnostic.tsv", ("index|sentence1|sentence2", "0|A.|B."), ("A.", "B.", None, "0")),
    "AX-full": (
        "diagnostic-full.tsv",
        (
            "Lexical Semantics|Predicate-Argument Structure|Logic|Knowledge|Domain|Premise|Hypothesis|Label",
            "||Negation||News|A.|B.|neutral",
        ),
        ("A.", "B.", "neutral", "0"),
    ),
}


def test_the_files_of_glue_need_no_flag(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for form, (name, rows, expected) in GLUE.items():
        caplog.clear()
        path = write(tmp_path, name, cells(*rows))
        dataset = read(path, labelled=expected[2] is not None, regression=form.startswith("STS-B"))
        example = dataset[0]
        assert (example.text, example.pair, example.label, example.id) == expected, form
        assert len(dataset) == len(rows) - (form not in ("CoLA-train", "CoLA-dev")), form
        assert bool(caplog.messages) == (form in ("CoLA-train", "CoLA-dev")), form
        if expected[2] is None:
            with pytest.raises(UserError, match=r"line 1: no column of .*fastbert predict"):
                read(path, regression=form.startswith("STS-B"))


def test_of_the_marks_of_cola_none_is_a_word(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not clear"):
        read(write(tmp_path, "t.tsv", cells("gj04|1|x|A b.")))


BY_SHAPE = "(the rest, without a header), class from column 1 (whole numbers throughout)"
OTHERS = {
    "banking77": (
        "train.csv",
        'text,category\n"I, too, paid",card_arrival\nWhere?,card_linking\n',
        [("I, too, paid", "card_arrival"), ("Where?", "card_linking")],
        "took text from 'text' (by its name), class from 'category' (by its name)",
    ),
    "left-over": (
        "train.csv",
        ",text,mood of it\n0,A,x\n1,B,y\n",
        [("A", "x"), ("B", "y")],
        "took text from 'text' (by its name), class from 'mood of it' (the only other column)",
    ),
    "left-over-text": (
        "train.tsv",
        "label\twhat they wrote\nx\tA\n",
        [("A", "x")],
        "took text from 'what they wrote' (the only other column), class from 'label' (by its name)",
    ),
    "AG-News": (
        "train.csv",
        '"3","The ""T""","A\\band, so"\n"4","","D"\n',
        [('The "T" A\\band, so', "3"), ("D", "4")],
        f"took text from column 2 and column 3 {BY_SHAPE}",
    ),
    "AG-News-header": (
        "train.csv",
        "Class Index,Title,Description\n3,T,D d\n",
        [("T D d", "3")],
        "took text from 'Title' and 'Description' (by their names, joined by a blank), class from 'Class Index'",
    ),
    "Yelp": (
        "train.csv",
        '"1","A b"\n"2","C\nd"\n',
        [("A b", "1"), ("C\nd", "2")],
        f"took text from column 2 {BY_SHAPE}",
    ),
    "UCI": ("yelp_labelled.txt", "A b.\t1\nC, d!\t0\n", [("A b.", "1"), ("C, d!", "0")], "took text from column 1 ("),
    "IMDB": (
        "imdb.csv",
        'review,sentiment\n"A ""b""<br /><br />c\nd",positive\nE,negative\n',
        [('A "b"<br /><br />c\nd', "positive"), ("E", "negative")],
        "took text from 'review' (by its name), class",
    ),
    "TREC": (
        "train_5500.label",
        b"DESC:manner How did b ?\nNUM:count How many \xf0 ?\n",
        [("How did b ?", "DESC:manner"), ("How many \xf0 ?", "NUM:count")],
        "line 2: is not UTF-8; the file is read as Latin",
    ),
}


def test_files_of_others_need_no_flag_and_what_was_taken_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for form, (name, content, expected, message) in OTHERS.items():
        caplog.clear()
        path = write(tmp_path, name, content)
        assert [(example.text, example.label) for example in read(path)] == expected, form
        assert message in caplog.messages[0], form
        assert [example.text for example in read(path, labelled=False)] == [text for text, _ in expected], form


def test_77_classes_of_the_column_that_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = "".join(f'"Text {i}, of it",kind_{i % 77}\n' for i in range(308))
    dataset = read(write(tmp_path, "t.csv", f"text,what\n{rows}"))
    assert len({example.label for example in dataset}) == 77
    assert len(caplog.messages) == 1
    with pytest.raises(UserError, match=r"'what' differs in each of the 200 rows; name it with --label-c"):
        read(write(tmp_path, "t.csv", "text,what\n" + "".join(f"a,http://{i}\n" for i in range(200))))
    with pytest.raises(UserError, match=r"columns: text, what, who\); name it with --label-column"):
        read(write(tmp_path, "t.csv", "text,what,who\na,b,c\n"))


def test_halves_of_trec_classes(tmp_path: Path) -> None:
    path = write(tmp_path, "t.txt", "DESC:manner How did b ?\nNUM:count How many ?\n")
    assert [example.label for example in read(path, label="coarse")] == ["DESC", "NUM"]
    path = write(tmp_path, "t.txt", "DESC:manner How did b ?\nHow many ?\n")
    assert [example.text for example in read(path, labelled=False)] == ["DESC:manner How did b ?", "How many ?"]


def test_numbers_that_count_the_rows_are_no_classes(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "".join(f"{i},A b\n" for i in range(12)))
    with pytest.raises(UserError, match="which column holds the text is not clear"):
        read(path)


def test_a_first_line_of_plain_text_may_be_a_name(tmp_path: Path) -> None:
    path = write(tmp_path, "t.txt", "review\nquestion\n")
    assert [example.text for example in read(path, labelled=False)] == ["review", "question"]


@pytest.mark.parametrize(
    ("name", "content", "cure"),
    [
        ("t.csv", "text\tlabel\na\tx\n", "separated by TABs: rename it to .tsv"),
        ("t.tsv", "text,label\na,x\n", "separated by commas: rename it to .csv"),
        ("t.csv", "text;label\na;x\n", "separated by semicolons: use commas"),
    ],
)
def test_a_separator_that_is_not_the_names(tmp_path: Path, name: str, content: str, cure: str) -> None:
    with pytest.raises(UserError, match=cure):
        read(write(tmp_path, name, content))


def test_a_row_of_texts_that_holds_a_usual_name_is_no_header(tmp_path: Path) -> None:
    pairs = write(tmp_path, "pairs.txt", cells("How are you|content", "foo|bar", "Review|This is good"))
    examples = read(pairs, labelled=False)
    assert [(example.text, example.pair) for example in examples] == [
        ("How are you", "content"), ("foo", "bar"), ("Review", "This is good"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="no column of classes is known by its name"):
        read(write(tmp_path, "asked.tsv", cells("How are you|question", "Fine|statement")))
    assert read(write(tmp_path, "named.tsv", cells("Review|stars", "A b.|good"))).examples[0].text == "A b."


def test_numbered_columns_do_not_make_a_label_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "numbered.tsv", cells("x|content|1", "y|z|0"))
    assert [(example.text, example.label) for example in read(path, text="1", label="3")] == [("x", "1"), ("y", "0")]
    path = write(tmp_path, "header.csv", "0,1\nA b.,good\nC d.,bad\n")
    assert [(example.text, example.label) for example in read(path, text="0", label="1")] == [
        ("A b.", "good"), ("C d.", "bad"),
    ]  # fmt: skip


def test_splits_and_dates_are_not_learned_unless_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "split.csv", "text,split\nA b.,train\nC d.,test\n")
    with pytest.raises(UserError, match=r"'split' is unlikely to be the label; name it with --label-column"):
        read(path)
    assert read(path, label="split").examples[1].label == "test"
    with pytest.raises(UserError, match="'year' is unlikely to be the label"):
        read(write(tmp_path, "year.csv", "text,year\nA b.,1999\nC d.,2001\n"), regression=True)
