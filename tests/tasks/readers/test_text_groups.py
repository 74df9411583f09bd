"""Training files of embedders and rerankers: their forms, their columns, and what is wrong with one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from task_data import task_file

from fastbert.errors import UserError
from fastbert.tasks.readers.group_scores import find_score_range, scaled_scores
from fastbert.tasks.readers.text_groups import Form, GroupColumns, TextGroups, read_text_groups


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def records(folder: Path, *rows: dict[str, Any]) -> str:
    return write(folder, "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def read(folder: Path, *rows: dict[str, Any], columns: GroupColumns | None = None, **options: Any) -> TextGroups:
    return read_text_groups(records(folder, *rows), columns, **options)


@pytest.mark.parametrize(
    ("row", "form", "texts", "labels", "description"),
    [
        ({"Anchor": "a", "Positive": "p"}, "pairs", "ap", None, "anchor='Anchor', positive='Positive'"),
        ({"question": "a", "answer": "p"}, "pairs", "ap", None, "anchor='question', positive='answer'"),
        ({"sentence1": "a", "sentence2": "p"}, "pairs", "ap", None, "anchor='sentence1', positive='sentence2'"),
        (
            {"anchor": "a", "positive": "p", "negative": "n"},
            "triplets",
            "apn",
            None,
            "anchor='anchor', positive='positive', negatives='negative' (1 per row)",
        ),
        (
            {"query": "a", "positive": "p", "negative_2": "m", "negative_1": "n", "negative_10": "o"},
            "triplets",
            "apnmo",
            None,
            "anchor='query', positive='positive', negatives='negative_1' + 'negative_2' + 'negative_10' (3 per row)",
        ),
        (
            {"query": "a", "pos": ["p"], "neg": ["n", "m"], "prompt": "x"},
            "triplets",
            "apnm",
            None,
            "anchor='query', positive='pos', negatives='neg' (2 per row)",
        ),
        (
            {"text1": "a", "text2": "b", "score": 0.5},
            "scored",
            "ab",
            (0.5,),
            "text1='text1', text2='text2', score='score' (0.5 to 0.5)",
        ),
        ({"sentence1": "a", "sentence2": "b", "label": 3.8}, "scored", "ab", (3.8,), "text1='sentence1'"),
        ({"query": "a", "document": "d", "label": 1}, "labelled", "ad", (1.0,), "query='query', document='document'"),
        ({"query": "a", "passage": "d", "label": True}, "labelled", "ad", (1.0,), "query='query', document='passage'"),
        ({"question1": "a", "question2": "b", "is_duplicate": 0}, "labelled", "ab", (0.0,), "label='is_duplicate'"),
        (
            {"query": "a", "documents": ["d", "e"], "labels": [2, 0]},
            "lists",
            "ade",
            (2.0, 0.0),
            "query='query', candidates='documents' (2 per row), labels='labels' (0 to 2)",
        ),
        ({"query": "a", "answer": ["d", "e"], "labels": [1, 0]}, "lists", "ade", (1.0, 0.0), "candidates='answer'"),
    ],
)
def test_forms(
    tmp_path: Path, row: dict[str, Any], form: str, texts: str, labels: tuple[float, ...] | None, description: str
) -> None:
    groups = read(tmp_path, row)
    assert (groups.form, groups[0].texts, groups[0].labels) == (form, tuple(texts), labels)
    assert groups.description.startswith("columns: ")
    assert description in groups.description
    assert (groups[0].id, groups[0].location, groups[0].keys, groups[0].teacher) == ("0", "line 1", None, None)
    assert groups.score_range == (None if labels is None else (min(labels), max(labels)))


def test_several_positives_make_several_groups(tmp_path: Path) -> None:
    groups = read(
        tmp_path,
        {"query": "a", "pos": ["p", "q"], "neg": ["n"], "pos_scores": [3, 2], "neg_scores": [1]},
        {"query": "b", "pos": ["r"], "neg": [], "pos_scores": [4], "neg_scores": []},
    )
    assert [(group.id, group.texts, group.teacher) for group in groups] == [
        ("0.0", ("a", "p", "n"), (3.0, 1.0)),
        ("0.1", ("a", "q", "n"), (2.0, 1.0)),
        ("1", ("b", "r"), (4.0,)),
    ]
    assert groups.description == (
        "columns: anchor='query', positive='pos' (3 in 2 rows), negatives='neg' (0 to 1 per row),"
        " teacher='pos_scores' + 'neg_scores'"
    )


def test_null_scores_are_no_teacher(tmp_path: Path) -> None:
    row = {"query": "a", "pos": ["p"], "neg": ["n"], "pos_scores": None, "neg_scores": None}
    assert read(tmp_path, row)[0].teacher is None


@pytest.mark.parametrize(
    ("row", "teacher"),
    [
        ({"query": "a", "positive": "p", "negative": "n", "score": 2.5}, (2.5, 0.0)),
        ({"query": "a", "positive": "p", "negatives": ["n"], "scores": [4, 1.5]}, (4.0, 1.5)),
        ({"query": "a", "positive": "p", "negative_1": "n", "negative_2": "m", "label": [4, 1, 2]}, (4.0, 1.0, 2.0)),
        ({"query": "a", "documents": ["p", "n"], "labels": [1, 0], "teacher_scores": [4, 1]}, (4.0, 1.0)),
        ({"query": "a", "documents": ["p", "n"], "scores": [4, -1]}, (4.0, -1.0)),
    ],
    ids=["margin", "scores", "label-list", "lists", "lists-without-labels"],
)
def test_teachers(tmp_path: Path, row: dict[str, Any], teacher: tuple[float, ...]) -> None:
    groups = read(tmp_path, row)
    assert groups[0].teacher == teacher
    assert "teacher=" in groups.description
    assert read(tmp_path, row, labelled=False)[0].teacher is None


def test_ids(tmp_path: Path) -> None:
    groups = read(
        tmp_path,
        {
            "id": "x",
            "qid": 7,
            "query": "a",
            "doc_id": "d1",
            "positive": "p",
            "negatives": ["n"],
            "negative_ids": ["d2"],
        },
        {"id": "y", "qid": 8, "query": "b", "doc_id": None, "positive": "q", "negatives": [], "negative_ids": []},
    )
    assert [(group.id, group.keys) for group in groups] == [("x", ("7", "d1", "d2")), ("y", ("8", ""))]
    listed = read(tmp_path, {"query": "a", "documents": ["d", "e"], "labels": [1, 0], "document_ids": [3, 4]})
    assert listed[0].keys == ("", "3", "4")


def test_rows_with_different_numbers_of_negatives(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "anchor,positive,negative_1,negative_2\na,p,n,m\nb,q,o,\nc,r,,\n")
    groups = read_text_groups(path)
    assert [group.texts[2:] for group in groups] == [("n", "m"), ("o",), ()]
    assert "(0 to 2 per row)" in groups.description


def test_columns_by_flag(tmp_path: Path) -> None:
    row = {"q": "a", "p": "b", "n": "c", "m": ["d", "e"], "s": 3}
    groups = read(tmp_path, row, columns=GroupColumns(anchor="q", positive="p", negative=("n", "m")))
    assert (groups.form, groups[0].texts) == (Form.TRIPLETS, tuple("abcde"))
    groups = read(tmp_path, row, columns=GroupColumns(text1="q", text2="p", label="s"))
    assert (groups.form, groups[0].labels) == (Form.LABELLED, (3.0,))
    # Votes are no similarity: flags for both texts say that they belong together.
    votes = {"question": "a", "answer": "b", "score": 812}
    groups = read(tmp_path, votes, columns=GroupColumns(anchor="question", positive="answer"))
    assert (groups.form, groups[0].labels) == (Form.PAIRS, None)
    with pytest.raises(UserError, match=r"no column 'x' .*name another with --anchor-column"):
        read(tmp_path, row, columns=GroupColumns(anchor="x", positive="p"))
    with pytest.raises(UserError, match="give flags of one kind"):
        read(tmp_path, row, columns=GroupColumns(anchor="q", text2="p"))


def test_a_table_without_header(tmp_path: Path) -> None:
    path = write(tmp_path, "t.tsv", "a\tp\tn\nb\tq\tm\n")
    groups = read_text_groups(path, GroupColumns(anchor="1", positive="2", negative=("3",)))
    assert [group.texts for group in groups] == [tuple("apn"), tuple("bqm")]
    assert groups.description.startswith("columns: anchor=column 1, positive=column 2, negatives=column 3")
    with pytest.raises(UserError, match=r"line 1: which column holds the anchor .* is not clear .*--anchor-column"):
        read_text_groups(path)


def test_unlabelled(tmp_path: Path) -> None:
    groups = read(tmp_path, {"query": "a", "document": "", "label": "unknown"}, labelled=False)
    assert (groups.form, groups[0].texts, groups[0].labels) == (Form.PAIRS, ("a", ""), None)
    groups = read(tmp_path, {"query": "a", "candidates": ["d", "e"]}, labelled=False)
    assert (groups.form, groups[0].texts, groups[0].labels) == (Form.LISTS, tuple("ade"), None)


def test_kinds_of_file(tmp_path: Path) -> None:
    rows = [
        {"anchor": "a", "positive": "p", "negatives": ["n", "m"]},
        {"anchor": "b", "positive": "q", "negatives": []},
    ]
    expected = [tuple("apnm"), tuple("bq")]
    (tmp_path / "t.json").write_text(json.dumps(rows))
    with gzip.open(tmp_path / "t.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    names = ["t.json", "t.jsonl.gz"]
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    for name in (*names, "t.parquet"):
        assert [group.texts for group in read_text_groups(str(tmp_path / name))] == expected, name
    assert read_text_groups(str(tmp_path / "t.parquet"))[1].location == "row 2"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, r"line 1: has one column \(columns: text\); each row must hold an anchor and a positive"),
        ({"left": "a", "right": "b"}, r"the anchor \(query\) is not clear \(columns: left, right\); name the columns"),
        ({"query": "a", "right": "b"}, r"the positive \(document\) is not clear"),
        ({"anchor": "a", "positive": " "}, "line 1: 'positive' is empty; fill it in"),
        ({"anchor": None, "positive": "b"}, "line 1: has no 'anchor'"),
        ({"query": "a", "pos": ["p", ""], "neg": ["n"]}, "line 1: item 1 of 'pos' is empty"),
        ({"query": "a", "pos": [], "neg": ["n"]}, "line 1: 'pos' has no positive"),
        ({"query": "a", "pos": ["p"], "neg": ["n", 3]}, "line 1: item 1 of 'neg' must be a string, not int"),
        (
            {"text1": "a", "text2": "b", "score": float("nan")},
            "line 1: 'score' must be a finite number, and nan is not",
        ),
        ({"text1": "a", "text2": "b", "score": None}, "line 1: 'score' must be a finite number"),
        ({"query": "a", "document": "b", "label": -1}, "line 1: 'label' must be 0 or more, not -1"),
        ({"question": "a", "sentence": "b", "label": "entailment"}, "use --task classification for classes"),
        (
            {"sentence1": "a", "sentence2": "b", "gold_label": "neutral"},
            "'gold_label' holds classes of natural language",
        ),
        (
            {"query": "a", "documents": ["d", "e"], "labels": [1]},
            "'labels' must be a list of numbers, one for each of 2",
        ),
        ({"query": "a", "documents": ["d", "e"]}, "no labels of the candidates in 'documents'"),
        ({"query": "a", "documents": [], "labels": []}, "'documents' has no candidates"),
        ({"query": "a", "documents": ["d"], "labels": [-2]}, "'labels' must be 0 or more, not -2"),
        ({"query": "a", "pos": ["p", "q"], "neg": ["n"], "scores": [1, 2]}, "has scores for one positive, and the row"),
        ({"query": "a", "pos": ["p"], "neg": ["n"], "pos_ids": ["x", "y"]}, "'pos_ids' has 2 ids for 1 texts"),
    ],
)
def test_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, row)


def test_numbers_of_inference_classes_are_refused(tmp_path: Path) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, 1, 2, -1)]
    with pytest.raises(UserError, match="number the classes of natural language inference"):
        read(tmp_path, *rows)
    assert read(tmp_path, *rows[:2]).form is Form.LABELLED


def test_bad_rows_are_named_or_skipped(tmp_path: Path) -> None:
    rows = [{"query": "a", "document": "d", "label": label} for label in (1, -1, "x", 0)]
    with pytest.raises(UserError, match=r"line 2: .*; line 3: .*\(2 bad rows in all\)"):
        read(tmp_path, *rows)
    groups = read(tmp_path, *rows, skip_bad=True)
    assert [(group.id, group.labels) for group in groups] == [("0", (1.0,)), ("3", (0.0,))]


def test_sts_b(data_dir: Path, tmp_path: Path) -> None:
    groups = read_text_groups(task_file(data_dir, "STS-B", "dev.tsv", tmp_path))
    assert (groups.form, len(groups), groups.score_range) == (Form.SCORED, 1500, (0.0, 5.0))
    assert "text1='sentence1', text2='sentence2', score='score' (0 to 5)" in groups.description
    assert groups[0].texts == ("A man with a hard hat is dancing.", "A man wearing a hard hat is dancing.")
    assert scaled_scores(groups)[0] == 1.0


def scored(folder: Path, *scores: float) -> TextGroups:
    return read(folder, *({"text1": "a", "text2": "b", "score": score} for score in scores))


def test_scaled_scores(tmp_path: Path) -> None:
    assert scaled_scores(scored(tmp_path, 0, 0.25, 1)) == (0.0, 0.25, 1.0)
    assert scaled_scores(scored(tmp_path, -1, 0.25)) == (-1.0, 0.25)
    assert scaled_scores(scored(tmp_path, 0, 2.5, 5)) == (0.0, 0.5, 1.0)
    assert scaled_scores(scored(tmp_path, 1, 4, 10), (1, 10)) == (0.0, pytest.approx(1 / 3), 1.0)
    assert scaled_scores(scored(tmp_path, -0.5, 1), (-1, 1)) == (0.25, 1.0)
    files = [scored(tmp_path, 0, 1), scored(tmp_path, 3, 4)]
    assert find_score_range(files) == (0.0, 5.0)
    assert find_score_range(files[:1]) is None


@pytest.mark.parametrize(
    ("scores", "range_", "message"),
    [
        ((1, 7.5), None, "line 2: the score 7.5 is neither .* --score-range LOW HIGH"),
        ((-0.5, 3), None, "line 1: the score -0.5 is neither"),
        ((1, 7.5), (0, 5), "line 2: the score 7.5 is outside --score-range 0 5"),
        ((1, 2), (5, 0), "--score-range 5 0 must be two finite numbers"),
        ((1, 2), (0, float("nan")), "--score-range 0 nan must be"),
    ],
)
def test_scores_out_of_range(
    tmp_path: Path, scores: tuple[float, ...], range_: tuple[float, float] | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        scaled_scores(scored(tmp_path, *scores), range_)


def test_pairs_have_no_scores(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 1: has no score"):
        scaled_scores(read(tmp_path, {"anchor": "a", "positive": "b"}))
