"""Texts and pairs of texts: the forms of GLUE and of others, columns by name and number, and what is wrong."""

import io
import json
import logging
from pathlib import Path

import pytest
from task_data import task_file

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.readers.texts import read_texts
from fastbert.tasks.settings import Columns


def read(path: Path | str, *, labelled: bool = True, regression: bool = False, **columns: str) -> Dataset[TextExample]:
    return read_texts(str(path), Columns(**columns), labelled=labelled, regression=regression)


def tsv(folder: Path, *rows: str, name: str = "t.tsv") -> Path:
    """A file of rows whose cells are parted by `|` here."""
    path = folder / name
    path.write_text("".join(row.replace("|", "\t") + "\n" for row in rows), encoding="utf-8")
    return path


SNLI_JSON = {"gold_label": "neutral", "sentence1": "A b.", "sentence2": "C d.", "pairID": "p1", "annotator_labels": []}
FORMS = {
    "CoLA": (("gj04|1||A b.", "gj04|0|*|C d."), ("A b.", None, "1", "0")),
    "SST-2": (("sentence|label", "A b.|1"), ("A b.", None, "1", "0")),
    "MRPC": (("\ufeffQuality|#1 ID|#2 ID|#1 String|#2 String", '1|70|71|"A b.|C d.'), ('"A b.', "C d.", "1", "0")),
    "QQP": (("id|qid1|qid2|question1|question2|is_duplicate", "133|1|2|A?|B?|0"), ("A?", "B?", "0", "133")),
    "MNLI": (
        ("index|promptID|pairID|genre|sentence1|sentence2|label1|gold_label", "0|31|31n|x|A b.|C d.|neutral|neutral"),
        ("A b.", "C d.", "neutral", "0"),
    ),
    "QNLI": (("index|question|sentence|label", "7|A?|B.|not_entailment"), ("A?", "B.", "not_entailment", "7")),
    "RTE": (("index|sentence1|sentence2|label", "0|A b.|C d.|entailment"), ("A b.", "C d.", "entailment", "0")),
    "AX": (("Logic|Domain|Premise|Hypothesis|Label", "x|y|A b.|C d.|neutral"), ("A b.", "C d.", "neutral", "0")),
    "plain": (("label|text", " 1 | A b. "), (" A b. ", None, "1", "0")),
    "plain-pair": (("premise|hypothesis|label", "A b.|C d.|yes"), ("A b.", "C d.", "yes", "0")),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_are_known_by_their_columns(tmp_path: Path, form: str) -> None:
    rows, expected = FORMS[form]
    example = read(tsv(tmp_path, *rows))[0]
    assert (example.text, example.pair, example.label, example.id) == expected
    assert example.location == f"line {1 if form == 'CoLA' else 2}"


def test_snli_as_json_lines_and_as_its_own_table(tmp_path: Path) -> None:
    path = tmp_path / "snli_1.0_dev.jsonl"
    path.write_text(json.dumps(SNLI_JSON) + "\n" + json.dumps(SNLI_JSON | {"pairID": "p2"}) + "\n")
    dataset = read(path)
    assert [(e.id, e.text, e.pair, e.label) for e in dataset] == [("p1", "A b.", "C d.", "neutral"),
                                                                  ("p2", "A b.", "C d.", "neutral")]  # fmt: skip
    path = tsv(tmp_path, "gold_label|sentence1|sentence2|pairID", "neutral|A b.|C d.|p1", name="snli_1.0_dev.txt")
    assert (read(path)[0].label, read(path)[0].id) == ("neutral", "p1")


def test_the_official_test_sets_have_no_labels(tmp_path: Path) -> None:
    dataset = read(tsv(tmp_path, "index|#1 ID|#2 ID|#1 String|#2 String", "0|1|2|A.|B.", "1|1|2|C.|D."), labelled=False)
    assert [(e.id, e.text, e.pair, e.label) for e in dataset] == [("0", "A.", "B.", None), ("1", "C.", "D.", None)]
    assert read(tsv(tmp_path, "index|sentence", "0|A."), labelled=False)[0].pair is None
    # Labels that are there are not looked at.
    assert read(tsv(tmp_path, "label|sentence", "|A."), labelled=False)[0].label is None


def test_regression(tmp_path: Path) -> None:
    rows = (
        "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score",
        "0|g|f|2012|1|a|b|A b.|C d.|2.500",
        "1|g|f|2012|1|a|b|A b.|C d.|1e-1",
    )
    assert [example.label for example in read(tsv(tmp_path, *rows), regression=True)] == [2.5, 0.1]


@pytest.mark.parametrize("label", ["nan", "inf", "-inf", "1,5", "", "1_0", "x", "١", "1e999"])
def test_a_number_that_is_none(tmp_path: Path, label: str) -> None:
    path = tsv(tmp_path, "score|text", "1|A b.", f"{label}|C d.")
    with pytest.raises(UserError, match=r"t.tsv, line 3: 'score' must be a finite number"):
        read(path, regression=True)


@pytest.mark.parametrize("value", ["true", "NaN", "Infinity", "[1]", "null", '"x"', "1" + "0" * 400])
def test_a_number_of_json_that_is_none(tmp_path: Path, value: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"text": "a", "score": 1}}\n{{"text": "a", "score": {value}}}\n')
    with pytest.raises(UserError, match=r"t.jsonl, line 2: 'score' must be a finite number"):
        read(path, regression=True)


def test_classes_of_json(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"text": "a", "label": {value}}}\n' for value in ('"x"', "3", "true")))
    assert [example.label for example in read(path)] == ["x", "3", "true"]
    path.write_text('{"text": "a", "label": 0.5}\n')
    with pytest.raises(UserError, match=r"line 1: 'label' must be a string or an integer, not float"):
        read(path)
    path.write_text('{"text": "a", "label": "x"}\n{"text": 5, "label": "x"}\n')
    with pytest.raises(UserError, match=r"line 2: 'text' must be a string, not int"):
        read(path)


def test_pairs_without_gold_label_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tsv(tmp_path, "premise|hypothesis|label", "A|B|neutral", "C|D|-", "E|F|-", "G|H|entailment")
    assert [(example.id, example.label) for example in read(path)] == [("0", "neutral"), ("3", "entailment")]
    assert f"{path}, line 3: 2 of 4 pairs, this one first, have no gold label (-); left out" in caplog.messages
    assert len(read(path, labelled=False)) == 4, "what is predicted has a row each"
    with pytest.raises(UserError, match=r"line 2: no pair has a gold label"):
        read(tsv(tmp_path, "gold_label|sentence1|sentence2", "-|A|B"))


def test_a_dash_may_be_a_class(tmp_path: Path) -> None:
    assert [e.label for e in read(tsv(tmp_path, "text|label", "A|-", "B|+"))] == ["-", "+"]
    assert [e.label for e in read(tsv(tmp_path, "premise|hypothesis|label", "A|B|-", "B|C|+"))] == ["-", "+"]


def test_broken_rows_of_qqp_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    head = "id|qid1|qid2|question1|question2|is_duplicate"
    path = tsv(tmp_path, head, "1|1|2|A?|B?|0", "2|3|4|A?", "3|5|6|A?||1", "4|7|8|C?|D?|1")
    assert [(example.id, example.label) for example in read(path)] == [("1", "0"), ("4", "1")]
    assert f"{path}, line 3: 2 rows, this one first, lack cells or a question; left out" in caplog.messages


def test_columns_by_name(tmp_path: Path) -> None:
    path = tsv(tmp_path, "Tweet|Target|Stance|ID", "A b.|C|AGAINST|t1", "D e.|F|FAVOR|t2")
    dataset = read(path, text="Tweet", pair="Target", label="Stance", id="ID")
    assert [(e.id, e.text, e.pair, e.label) for e in dataset] == [
        ("t1", "A b.", "C", "AGAINST"),
        ("t2", "D e.", "F", "FAVOR"),
    ]
    assert read(path, text="Tweet", label="Stance")[0].pair is None
    csv = tmp_path / "t.csv"
    csv.write_text('body,label\n"a, ""b""\nc",x\n')
    assert read(csv, text="body")[0].text == 'a, "b"\nc'


def test_columns_by_number_without_header(tmp_path: Path) -> None:
    path = tsv(tmp_path, "A b.|0", "C d.|1")
    assert [(e.text, e.label, e.id) for e in read(path, text="1", label="2")] == [
        ("A b.", "0", "0"),
        ("C d.", "1", "1"),
    ]
    assert read(tsv(tmp_path, "text|x", "A b.|0"), text="1", label="2")[0].label == "0", "below a header"
    path = tsv(tmp_path, "A b.|0", "C d.|1")
    with pytest.raises(UserError, match=r"t.tsv, line 1: no column '3' \(its cells: 'A b.', '0'"):
        read(path, text="1", label="3")


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        pytest.param(("Tweets|Camp", "A|x"), {}, r"line 1: .*not clear \(its cells: 'Tweets', 'Camp'", id="unknown"),
        pytest.param(("text|sentence|label", "A|B|x"), {}, r"columns: text, sentence, label\); .*--text-column,"
                     " --pair-column, --label-column and --id-column", id="two-texts"),
        pytest.param(("text|mood|who", "A|x|y"), {}, r"line 1: no column of classes .*: text, mood, who\).*--label-col",
                     id="no-label"),
        pytest.param(("text|label", "A|x"), {"text": "txt"}, r"line 1: no column 'txt' \(columns: text, label\)",
                     id="misspelled"),
        pytest.param(("text|label", "A|x", "|y"), {}, r"line 3: 'text' is empty", id="empty-text"),
        pytest.param(("text|label", "A|x", "  |y"), {}, r"line 3: 'text' is empty", id="blank-text"),
        pytest.param(("text|label", "A|x", "B|"), {}, r"line 3: 'label' is empty", id="empty-label"),
        pytest.param(("text|label", "A|x", "B"), {}, r"line 3: has 1 cells, not 2", id="ragged"),
        pytest.param(("text|label",), {}, r"line 1: has a header and no rows", id="header-only"),
        pytest.param(("text|label|key", "A|x|1", "B|y|1"), {"id": "key"}, r"line 3: 'key' '1' is also that of line 2",
                     id="same-id"),
    ],
)  # fmt: skip
def test_what_is_unclear_or_missing_is_named(
    tmp_path: Path, rows: tuple[str, ...], columns: dict[str, str], words: str
) -> None:
    with pytest.raises(UserError, match=rf"t.tsv, {words}" if words.startswith("line") else words) as error:
        read(tsv(tmp_path, *rows), **columns)
    assert "\n" not in str(error.value)


def test_ids_that_nobody_asked_for_may_repeat(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = read(tsv(tmp_path, "id|text|label", "a|A|x", "a|B|y"))
    assert [example.id for example in dataset] == ["0", "1"]
    assert "line 3: 'id' 'a' is also that of line 2; the examples are numbered instead" in caplog.text


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def feed(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    feed("A b.\n\nC d.")
    assert [(e.text, e.pair) for e in read("-", labelled=False)] == [("A b.", None), ("", None), ("C d.", None)]
    feed("A b.\tC d.\nE\tF\n")
    assert [(e.text, e.pair, e.location) for e in read("-", labelled=False)] == [
        ("A b.", "C d.", "line 1"),
        ("E", "F", "line 2"),
    ]
    feed('{"premise": "A", "hypothesis": "B", "id": 7}\n')
    assert [(e.id, e.text, e.pair) for e in read("-", labelled=False)] == [("7", "A", "B")]
    feed("A\tB\nC\n")
    with pytest.raises(UserError, match=r"standard input, line 2: has 1 cells, not 2"):
        read("-", labelled=False)
    feed("\n\n")
    with pytest.raises(UserError, match=r"standard input, line 1: column 1 is empty in all rows"):
        read("-", labelled=False)


def test_splits_of_one_json_file(tmp_path: Path) -> None:
    path = tmp_path / "data_full.json"
    path.write_text(json.dumps({"val": [["a b", "x"]], "oos_val": [["c", "oos"]], "train": [["d", ""]]}, indent=1))
    dataset = read(f"{path}#val+oos_val")
    assert [(e.id, e.text, e.label) for e in dataset] == [("0", "a b", "x"), ("1", "c", "oos")]
    assert dataset.where(1) == f"{path}, oos_val item 1"
    with pytest.raises(UserError, match=r"data_full.json, train item 1: the class is empty"):
        read(f"{path}#train")
    with pytest.raises(UserError, match=r"has the splits val, oos_val, train; name one"):
        read(path)
    with pytest.raises(UserError, match=r"c#/data.tsv: no such file"):
        read("c#/data.tsv")
    with pytest.raises(UserError, match=r"has no split 'test'; choose among val, oos_val, train"):
        read(f"{path}#test")
    tsv(tmp_path, "text|label", "A|x", name="a#b.tsv")
    assert len(read(tmp_path / "a#b.tsv")) == 1


REAL = [
    ("SST-2", "train.tsv", 67349, {"0", "1"}), ("SST-2", "dev.tsv", 872, {"0", "1"}),
    ("WNLI", "train.tsv", 635, {"0", "1"}), ("QNLI", "official_dev.tsv", 5463, {"entailment", "not_entailment"}),
    ("SNLI", "dev.tsv", 9842, {"entailment", "neutral", "contradiction"}),
    ("uci-sentiment", "all.tsv", 3000, {"0", "1"}),
]  # fmt: skip


@pytest.mark.parametrize(("archive", "name", "count", "labels"), REAL)
def test_real_files(
    tmp_path: Path,
    data_dir: Path,
    caplog: pytest.LogCaptureFixture,
    archive: str,
    name: str,
    count: int,
    labels: set[str],
) -> None:
    dataset = read(task_file(data_dir, archive, name, tmp_path))
    assert len(dataset) == count
    assert {example.label for example in dataset} == labels
    assert {example.pair is None for example in dataset} == {archive in ("SST-2", "uci-sentiment")}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_real_numbers(tmp_path: Path, data_dir: Path) -> None:
    dataset = read(task_file(data_dir, "STS-B", "dev.tsv", tmp_path), regression=True)
    labels = [example.label for example in dataset]
    assert (len(labels), min(labels), max(labels)) == (1500, 0.0, 5.0)


def test_real_intents(tmp_path: Path, data_dir: Path) -> None:
    path = task_file(data_dir, "clinc150", "data_full.json", tmp_path)
    assert len(read(f"{path}#train+oos_train")) == 15100
    assert len({example.label for example in read(f"{path}#test")}) == 150
